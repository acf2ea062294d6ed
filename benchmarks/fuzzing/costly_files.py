"""Generators of files that claim excessive resources: pickles, archives, arrays, descriptions and configurations.

Each takes a seeded random source and returns a name and bytes. Most patterns were first found by hand; numbers, orders
and nesting vary.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

Made = tuple[str, bytes]
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**64, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *(
        "",
        "x",
        "../../x",
        "\0",
        "a\0b",
        "\u202e",
        "\x1b[2J",
        "9" * 5000,
        "~nobody/x",
        "/dev/zero",
        "float8_e4m3fn",
        "nn",
    ),
    *([], [0], [[]], [True], ["a"], [None], {}, {"a": 1}, {"0": []}, {"tensor": "nn", "shape": [-1]}),
)
GLOBALS = (
    *("collections OrderedDict", "collections Counter", "torch Size", "torch FloatStorage", "torch float32"),
    *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v3"),
    *("torch._utils _rebuild_parameter", "torch._tensor _rebuild_from_type_v2", "torch.nn.parameter Parameter"),
    *("__builtin__ set", "__builtin__ bytearray", "__builtin__ complex", "_codecs encode", "torch device"),
    *("torch._utils _rebuild_meta_tensor_no_storage", "torch._utils _rebuild_sparse_tensor", "torch Tensor"),
    *("torch._utils _rebuild_qtensor", "torch._utils _rebuild_wrapper_subclass", "torch.serialization _get_layout"),
)


def number(value: int) -> bytes:
    """Return a pickle instruction for an integer."""
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return (b"\x8a" + bytes([len(raw)]) if len(raw) < 256 else b"\x8b" + struct.pack("<i", len(raw))) + raw


def text(value: str) -> bytes:
    """Return a pickle instruction for a string."""
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def named(name: str) -> bytes:
    """Return a pickle instruction for a Python global."""
    return b"c" + name.replace(" ", "\n").encode() + b"\n"


def doubled(chance: random.Random) -> bytes:
    """Nest containers that hold each child twice: 2^levels values."""
    levels, kind = chance.choice((5, 30, 40, 200, 5000)), chance.choice((b"\x86", b"le", b"t"))
    made = [b")q\0"]
    for _ in range(levels):
        pair = b"h\0h\0\x86" if kind == b"\x86" else b"](h\0h\0e" if kind == b"le" else b"(h\0h\0h\0t"
        made.append(pair + b"q\0")
    return b"".join(made)


def value(chance: random.Random, depth: int = 0) -> bytes:
    """Return instructions for one value of any kind."""
    kind = chance.randrange(11 if depth < 3 else 7)
    if kind == 0:
        return number(chance.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63, 2**200, 2 ** (8 * 5000))))
    if kind == 1:
        return text(chance.choice(("", "a", "storage", "cpu", "items", "keys", "\ud800", "x" * 70_000)))
    if kind == 2:
        return chance.choice((b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"G" + struct.pack(">d", 1e300)))
    if kind == 3:
        length = struct.pack("<q", chance.choice((0, 8, 2**33, 2**62, -1)))
        return chance.choice((b"\x96", b"\x8e", b"\x8d")) + length + b"x" * 8
    if kind == 4:
        return named(chance.choice(GLOBALS))
    if kind == 5:
        return b"\x8b" + struct.pack("<i", chance.choice((-1, 0, 9, 2**31 - 1, 60_000))) + b"\x7f" * 60_000
    if kind == 6:
        return storage(chance)
    parts = b"".join(value(chance, depth + 1) for _ in range(chance.choice((0, 1, 2, 4, 6))))
    return chance.choice((b"(" + parts + b"t", b"](" + parts + b"e", b"}(" + parts + b"u", doubled(chance)))


def storage(chance: random.Random) -> bytes:
    """Return a reference to a storage that may exist."""
    count = number(chance.choice((8, 8, 8, 0, -1, 2**31 - 1, 2**40, 2**62)))
    kind = named(chance.choice(("torch FloatStorage", "torch FloatStorage", "torch ByteStorage", "torch QInt8Storage")))
    view = chance.choice((b"", b"", b"N", b"(" + text("v") + number(2**30) + number(8) + b"t"))
    return b"(" + text("storage") + kind + text(chance.choice(("0", "0", "1"))) + text("cpu") + count + view + b"tQ"


def tensor(chance: random.Random) -> bytes:
    """Return a tensor whose shape, strides and offset may exceed its storage."""
    sides = chance.choice(((8,), (2, 4), (0,), (2**40,), (2**62, 4), (-1,), (1,) * 40, (2**20, 2**20), ()))
    strides = chance.choice(((1,), (4, 1), (0,), (0, 0), (2**40, 1), (-1,), (1,) * 40, ()))
    offset = number(chance.choice((0, 0, 1, -1, 2**62)))
    shapes = b"".join(b"(" + b"".join(map(number, each)) + b"t" for each in (sides, strides))
    place = storage(chance)
    return named("torch._utils _rebuild_tensor_v2") + b"(" + place + offset + shapes + b"\x89}tR"


def pluralize(chance: random.Random) -> bytes:
    """Return cheap instructions whose number makes the result, or its processing, expensive."""
    count = chance.choice((1000, 50_000, 300_000))
    kind = chance.randrange(6)
    if kind == 0:
        return b"](" + chance.choice((b"]", b"}", b"(t", b"K\1")) * count + b"e"
    if kind == 1:  # keys with equal hashes
        return b"}(" + b"".join(number(n * (2**61 - 1)) + b"N" for n in range(count // 10)) + b"u"
    if kind == 2:
        items = b"](" + b"K\1" * count + b"eq\1"
        call = named(chance.choice(("collections OrderedDict", "torch Size", "__builtin__ set"))) + b"h\1\x85R"
        return b"](" + items + call * min(count, 5000) + b"e"
    if kind == 3:
        items = text("x" * count) + b"q\1"
        call = chance.choice((named("_codecs encode") + b"h\1" + text("latin1") + b"\x86R", b"h\1h\1\x86"))
        return b"}(" + items + b"N" + (call + b"N") * min(count, 5000) + b"u"
    if kind == 4:  # tensors that share one storage
        shared = named("torch._utils _rebuild_tensor_v2") + b"q\1" + storage(random.Random(1)) + b"q\2"
        each = b"h\1(h\2K\0K\x08\x85K\1\x85\x89}tR"
        names = b"".join(text(f"t{n}") + each for n in range(count // 10))
        return b"](" + shared + b"e0}(" + names + b"u"
    return chance.randbytes(count)


def pickled(chance: random.Random) -> Made:
    """Return a pickle in a PyTorch file."""
    kind = chance.randrange(6)
    if kind == 0:
        body = b"}(" + doubled(chance) + b"K\1u"
    elif kind == 1:
        body = (
            named(chance.choice(GLOBALS)) + b"(" + b"".join(value(chance) for _ in range(chance.randrange(8))) + b"tR"
        )
    elif kind == 2:
        body = chance.choice((b"}", named("collections OrderedDict") + b")R", tensor(chance)))
        body += b"}(" + text(chance.choice(("items", "_metadata", "keys", "__class__"))) + value(chance) + b"ub"
    elif kind == 3:
        body = b"}(" + b"".join(text(f"w{n}") + tensor(chance) for n in range(chance.choice((1, 3)))) + b"u"
    elif kind == 4:
        body = pluralize(chance)
    else:
        body = b"}(" + b"".join(value(chance) for _ in range(8)) + b"u"
    body = b"\x80" + bytes([chance.choice((2, 2, 4, 5))]) + body + b"."
    where = chance.randrange(4)
    if where == 0:
        start = b"".join(pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, {}))
        return "m.pth", start + body + pickle.dumps(["0"], 2) + struct.pack("<q", 8) + bytes(32)
    if where == 1:
        return "m.pth", body
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED if where == 2 else zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("m/data.pkl", body)
        packed.writestr("m/data/0", bytes(32))
        packed.writestr("m/version", b"3\n")
    return "m.pth", buffer.getvalue()


def zipped(chance: random.Random) -> Made:
    """Return an archive with contradictory fields, or one that unpacks to far more than its size."""
    name = chance.choice(("m.pth", "m.npz"))
    buffer = io.BytesIO()
    size = chance.choice((100, 100, 1 << 20, 40 << 20, 100 << 20))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        packed.writestr(zipfile.ZipInfo("m/data.pkl"), pickle.dumps({"a": 1}, 2))
        packed.writestr("m/data/0" if name == "m.pth" else "a.npy", bytes(size))
    content = bytearray(buffer.getvalue())
    central = content.index(b"PK\x01\x02")
    kind = chance.randrange(8)
    if kind == 0:
        return name, bytes(content) + chance.choice(
            (b"PK\x05\x06", b"PK\x05\x06" + bytes(18), bytes(100), b"\0" * 70_000)
        )
    if kind == 1:
        return name, chance.randbytes(chance.choice((1, 100, 70_000))) + bytes(content)
    if kind == 2:
        place, form = chance.choice(((20, "<I"), (24, "<I"), (42, "<I"), (8, "<H"), (10, "<H"), (16, "<I"), (28, "<H")))
        struct.pack_into(form, content, central + place, chance.choice((0, 1, 8, 0xFFFF, 1000)))
        return name, bytes(content)
    if kind == 3:
        struct.pack_into("<2I", content, central + 20, 0xFFFFFFFF, 0xFFFFFFFF)
        return name, bytes(content)
    entries = chance.choice((2, 1000, 100_000, 300_000))
    if kind == 4:  # the directory entry of the first file, repeated
        line = bytes(content[central : content.index(b"PK\x01\x02", central + 4)])
        lines = b"".join(line[:28] + struct.pack("<H", 6) + line[30:46] + b"%06d" % n for n in range(entries))
        end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, entries & 0xFFFF, entries & 0xFFFF, len(lines), central, 0)
        return name, bytes(content[:central]) + lines + end
    if kind == 5:
        at = content.rindex(b"PK\x05\x06")
        struct.pack_into("<2I", content, at + 12, chance.choice((0, 2**32 - 1)), chance.choice((0, 2**32 - 1, central)))
        return name, bytes(content)
    if kind == 6:
        for _ in range(chance.choice((1, 4, 16))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return name, bytes(content)


def array(chance: random.Random) -> Made:
    """Return arrays whose header claims a lot or is invalid."""
    descr = chance.choice(
        ("<f4", "<f4", ">f8", "|V2", "|O", "<U9", "<f16", "(1000000,1000000)<f4", "f4," * 400, "|V999999999")
    )
    shapes = (
        "(True,)",
        "(2**40,)",
        "(1, -1)",
        "(-4,)",
        "(0, 1180591620717411303424)",
        "(1,)*9",
        "('a',)",
        "[4]",
        "(4,)",
        "4",
    )
    order = chance.choice(("True", "0", "None"))
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {chance.choice(shapes)}}}"
    count = chance.choice((3, 90, 500, 5000, 60_000))
    tricks = ("-" * count, "(" * count, "[" * count, "{" * count, "~" * count + "1", "1" + "+1" * count, "not " * count)
    header = chance.choice(tricks) if chance.random() < 0.4 else header
    if chance.random() < 0.2:
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'-' * count}4,)}}"
    raw = header.encode() + b"\n"
    version = chance.choice((1, 1, 2, 3, 9))
    length = (
        struct.pack("<H", len(raw) & 0xFFFF) if version == 1 else struct.pack("<I", chance.choice((len(raw), 2**31)))
    )
    body = b"\x93NUMPY" + bytes((version, 0)) + length + raw + bytes(chance.choice((0, 16, 1 << 20)))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as packed:
        packed.writestr("embedding/kernel.npy", body)
    return "m.npz", buffer.getvalue()


def described(whole: bytes, chance: random.Random) -> Made:
    """Return a model file of this package with one changed value in its description and a correct digest."""
    length = struct.unpack("<Q", whole[:8])[0]
    tree = json.loads(whole[8 : 8 + length])
    said = ""
    while not said:
        document = json.loads(tree["__metadata__"]["vitreous"])
        for _ in range(chance.choice((1, 1, 2))):
            _spoil(document, chance)
        with contextlib.suppress(RecursionError):  # a deep value inside a deep value
            said = json.dumps(document)
    tree["__metadata__"] = {"vitreous": said, "vitreous_sha256": _digest(said, tree, whole[8 + length :])}
    header = json.dumps(tree).encode()
    return "model.safetensors", struct.pack("<Q", len(header)) + header + whole[8 + length :]


def _odd(chance: random.Random) -> Any:
    """Return a fresh copy of an odd value, safe to modify."""
    return copy.deepcopy(chance.choice(ODD))


def _spoil(document: dict[str, Any], chance: random.Random) -> None:
    """Put an odd, deep or long value at an existing or new key of the description."""
    places = [(holder, key) for holder, key in _places(document)]
    new = ("layout", "data", "config", "x")
    places += (
        [(document["provenance"], name) for name in new] * 3 if isinstance(document.get("provenance"), dict) else []
    )
    holder, key = chance.choice(places)
    odd: Any = _odd(chance)
    kind = chance.randrange(10)
    if kind == 0:
        for _ in range(chance.choice((50, 100, 400, 900))):
            odd = chance.choice(([odd], {"a": odd}))
    elif kind == 1:
        odd = ["x"] * chance.choice((1000, 100_000))
    elif kind == 2:
        odd = {
            "family": chance.choice(("google", "timm", "huggingface", "torchvision", odd)),
            **{name: chance.choice((odd, _odd(chance))) for name in ("names", "prefix", "dtypes", "kept", "kind")},
            **{name: chance.choice((odd, _odd(chance))) for name in ("class_names", "scan", "block", "norm_rank")},
        }
    elif kind == 3:
        odd = {"data": {name: _odd(chance) for name in ("source", "val_fraction", "exclude", "dir", "fingerprint")}}
    elif kind == 4:
        odd = chance.choice(("\ud800", "a\udc80", "\udfff", "é" * 100_000))
    holder[key] = odd


def _places(tree: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    if depth > 8:  # inside an earlier insertion
        return []
    return [place for key, each in items for place in ((tree, key), *_places(each, depth + 1))]


def _digest(said: str, tree: dict[str, Any], data: bytes) -> str:
    """Compute the digest of vitreous.checkpoint.model_file for float32 and int64 tensors."""
    found = hashlib.sha256(said.encode())
    kinds = {"F32": "torch.float32", "I64": "torch.int64"}
    for name in sorted(name for name in tree if name != "__metadata__"):
        start, end = tree[name]["data_offsets"]
        found.update(f"\n{name} {kinds[tree[name]['dtype']]} {tree[name]['shape']}\n".encode())
        found.update(data[start:end])
    return found.hexdigest()


def configured(chance: random.Random) -> Made:
    """Return a configuration that is endless or invalid."""
    count = chance.choice((3, 9, 40, 3000))
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]" for n in range(min(count, 40))]
    many_keys = "\n".join(f"k{n}: {chance.choice(('1', '[]', '{}'))}" for n in range(count))
    choices = (
        *(
            "\n".join(lines),
            "a: &a [*a]",
            "a: &a {b: *a}",
            "epochs: " + "[" * count + "]" * count,
            "{" * count,
            many_keys,
        ),
        *("epochs: 1" + ":1" * 20 * count, "epochs: 0x" + "f" * 20 * count, "epochs: " + "9" * 20 * count),
        *("optim:\n" + "".join(" " * n + "a:\n" for n in range(1, min(count, 400))), "<<: [{a: 1}]", "? [a]\n: 1"),
        *(
            "epochs: !!python/object/apply:os.system [x]",
            "epochs: 1\nepochs: 2",
            "optim: c.yaml",
            "model: {class_path: os}",
        ),
        *(
            json.dumps({"epochs": chance.choice(ODD)}),
            json.dumps({"optim": {"lr": chance.choice(ODD)}}),
            "\0",
            "",
            "- a",
        ),
        *(
            "data: {source: " + json.dumps(chance.choice(ODD)) + "}",
            "model: " + json.dumps({"width": chance.choice(ODD)}),
        ),
        "a: " + "x" * 60 * count,
    )
    raw = chance.choice(choices).encode("utf-8", "surrogatepass")
    if chance.random() < 0.2:
        at = chance.randrange(len(raw) + 1)
        raw = raw[:at] + chance.randbytes(chance.choice((1, 3))) + raw[at:]
    return "c.yaml", raw


MAKERS: dict[str, Callable[[random.Random], Made]] = {
    "pickle": pickled,
    "archive": zipped,
    "array": array,
    "configuration": configured,
}
"""Those that need nothing; `described` needs a whole file besides."""
