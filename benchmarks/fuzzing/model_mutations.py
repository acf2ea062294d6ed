"""Damage to model files: to their bytes, and to their content with lengths and checksums corrected."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

Files = dict[str, bytes]

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 255, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, -0.0, 1e-300, 1e308),
    *(float("nan"), float("inf"), "", "x", "../../x", "F32", "F16", "I64", "gelu", "avg", "\0", "é\u202e", "9" * 5000),
    *([], [0], [1, 2], [-1, 4], [2**40, 2**40], [[[]]], {}, {"a": 1}, {"0": "x"}, ["a", "a", "b"], [None]),
)
INSTRUCTIONS = (
    *(b"cos\nsystem\n", b"cbuiltins\neval\n", b"cposix\nsystem\n", b"ctorch\nload\n", b"ctorch.hub\nload\n"),
    *(b"X\x04\0\0\0true\x85R", b"cbuiltins\ngetattr\n", b"cnumpy\nfromfile\n", b"ccollections\nOrderedDict\n)R"),
    *(b"\x8c\x02os\x8c\x06system\x93", b"0", b".", b"}", b"(", b"t", b"R", b"b", b"\x81", b"Q", b"K\xff", b"M\xff\xff"),
    *(b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 7 + b"\x7f"),
)


UNREADABLE = (  # errors of the steps here on files that earlier steps damaged
    *(ValueError, LookupError, TypeError, OverflowError, RuntimeError, StopIteration, EOFError, AttributeError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


def mutated(whole: Files, chance: random.Random) -> tuple[Files, str]:
    """Return the files of a model with one of them damaged, and a description of the damage."""
    files = dict(whole)
    weights = [name for name in files if not name.endswith(".json")]
    others = [name for name in files if name.endswith(".json")]
    name = chance.choice(others) if others and chance.random() < 0.3 else chance.choice(weights)
    content, what = files[name], []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        step = chance.choice(steps(name))
        try:
            content = step(content, chance)
        except UNREADABLE:
            continue  # unreadable after an earlier step
        what.append(step.__name__)
    files[name] = content
    return files, f"{name}: {', '.join(what)}"


def steps(name: str) -> tuple[Any, ...]:
    """Return the kinds of damage for a file of this name."""
    plain = (flip, cut, lengthen, repeat, blank, swap)
    if name.endswith(".json"):
        return (flip, cut, blank, document, document, document)
    if name.endswith(".safetensors"):
        return (*plain, header, header, header, description, nested)
    if name.endswith(".npz"):
        return (*plain, archive, archive, array_header, array_header)
    return (*plain, archive, archive, instructions, instructions)


def flip(content: bytes, chance: random.Random) -> bytes:
    """Flip up to 16 bits, half of the time near the start, where lengths and names are."""
    damaged = bytearray(content)
    span = len(damaged) if chance.random() < 0.5 else min(len(damaged), 400)
    for _ in range(chance.choice((1, 1, 2, 16))):
        damaged[chance.randrange(span)] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def cut(content: bytes, chance: random.Random) -> bytes:
    """Remove the end or a part of the middle."""
    a, b = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    return content[:a] if chance.random() < 0.5 else content[:a] + content[b:]


def lengthen(content: bytes, chance: random.Random) -> bytes:
    """Insert up to 4 KiB."""
    place = chance.choice((0, 8, chance.randrange(len(content)), len(content)))
    return content[:place] + chance.randbytes(chance.choice((1, 8, 4096))) + content[place:]


def repeat(content: bytes, chance: random.Random) -> bytes:
    """Repeat a part."""
    a, b = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    return content[:b] + content[a:]


def blank(content: bytes, chance: random.Random) -> bytes:
    """Overwrite a part with one repeated byte."""
    damaged = bytearray(content)
    a = chance.randrange(len(damaged))
    b = min(len(damaged), a + chance.choice((1, 4, 8, 64, 4096)))
    damaged[a:b] = bytes([chance.choice((0, 0xFF, 0x7F, 0x80, 0x20))]) * (b - a)
    return bytes(damaged)


def swap(content: bytes, chance: random.Random) -> bytes:
    """Exchange two parts."""
    a, b, c = sorted(chance.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def document(content: bytes, chance: random.Random) -> bytes:
    """Replace a value of a JSON file, drop it, or add one."""
    return json.dumps(_changed(json.loads(content), chance)).encode()


def header(content: bytes, chance: random.Random) -> bytes:
    """Change a name, shape, type or offset of a .safetensors file, with a correct header length."""
    length = struct.unpack("<Q", content[:8])[0]
    tree = json.loads(content[8 : 8 + length])
    tensors = [name for name in tree if name != "__metadata__"]
    name = chance.choice(tensors)
    kind = chance.randrange(5)
    if kind == 0:
        tree[chance.choice((*tensors, "x", "", "../x", "head.weight", "pos_embed"))] = tree.pop(name)
    elif kind == 1:
        tree[name], other = tree[(second := chance.choice(tensors))], tree[name]
        tree[second] = other
    elif kind == 2:
        tree[name]["shape"] = chance.choice(([], [1], tree[name]["shape"][::-1], [0], [2**62, 4], [-1]))
    elif kind == 3:
        tree[name]["dtype"] = chance.choice(("F64", "F16", "BF16", "I32", "U8", "BOOL", "F8_E4M3", "C64", "X"))
    else:
        tree = _changed(tree, chance)
    return _with_header(tree, content[8 + length :])


def description(content: bytes, chance: random.Random) -> bytes:
    """Change this package's JSON in the metadata and remove the checksum; add such metadata to other files."""
    length = struct.unpack("<Q", content[:8])[0]
    tree = json.loads(content[8 : 8 + length])
    metadata = tree.setdefault("__metadata__", {})
    metadata.pop("vitreous_sha256", None)
    metadata["vitreous"] = json.dumps(_changed(json.loads(metadata.get("vitreous", "{}")), chance))
    return _with_header(tree, content[8 + length :])


def nested(content: bytes, chance: random.Random) -> bytes:
    """Insert very deep or long JSON."""
    length = struct.unpack("<Q", content[:8])[0]
    depth = chance.choice((100, 990, 100_000))
    text = chance.choice(
        (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b'"' + b"x" * depth + b'"')
    )
    changed = content[8 : 8 + length].rstrip()[:-1] + b',"z":' + text + b"}"
    return struct.pack("<Q", len(changed)) + changed + content[8 + length :]


def archive(content: bytes, chance: random.Random) -> bytes:
    """Rename, drop, double, blank or damage an entry of a zip archive, with correct checksums."""
    entries = list(_entries(content))
    at = chance.randrange(len(entries))
    name, data = entries[at]
    kind = chance.randrange(6)
    if kind == 0:
        other = chance.choice(entries)[0]
        entries[at] = chance.choice((other, "x", "../../x", "/tmp/x", f"{name}/", "\u202e.npy", "a\0b.npy")), data
    elif kind == 1:
        del entries[at]
    elif kind == 2:
        entries.append((f"x{name}", data))
    elif kind == 3:
        entries[at] = name, b""
    else:
        entries[at] = name, (flip if kind == 4 else cut)(data, chance)
    return _zipped(entries, chance)


def array_header(content: bytes, chance: random.Random) -> bytes:
    """Replace the header of an array in an .npz archive; with correct lengths and checksums."""
    entries = list(_entries(content))
    at = chance.randrange(len(entries))
    name, data = entries[at]
    length = struct.unpack("<H", data[8:10])[0]
    descr = chance.choice(
        ("<f4", "<f4", "<f8", ">f4", "|V2", "|O", "<U9", "<c8", "<M8[s]", "<f2", "(2,)<f4", "x", "<f16")
    )
    shape = chance.choice(
        ("()", "(1,)", "(-1,)", "(1000000000000,)", "(0, 5)", "(4,)", "(2**70,)", "[1]", "('a',)", "(True,)")
    )
    text = f"{{'descr': '{descr}', 'fortran_order': {chance.choice(('True', 'False', '1'))}, 'shape': {shape}, }}\n"
    if chance.random() < 0.3:
        text = chance.choice(("__import__('os').system('true')", "(" * 5000, "[" * 90 + "]" * 90, "{}", "\0", "1e999"))
    body = data[10 + length :]
    encoded = text.encode()
    entries[at] = (
        name,
        data[:6] + bytes((chance.choice((1, 1, 1, 2, 9)), 0)) + struct.pack("<H", len(encoded)) + encoded + body,
    )
    return _zipped(entries, chance)


def instructions(content: bytes, chance: random.Random) -> bytes:
    """Insert pickle instructions, some of which would run a program, with correct checksums."""
    packed = content.startswith(b"PK")
    entries = list(_entries(content)) if packed else [("data.pkl", content)]
    at = next(i for i, (name, _) in enumerate(entries) if name.endswith("data.pkl"))
    name, data = entries[at]
    place = chance.choice((2, chance.randrange(2, len(data)), min(len(data), chance.randrange(2, 600))))
    keep = place + chance.choice((0, 0, 1, 5))
    entries[at] = name, data[:place] + b"".join(chance.choices(INSTRUCTIONS, k=chance.choice((1, 2, 4)))) + data[keep:]
    return _zipped(entries, chance) if packed else entries[at][1]


def _changed(tree: Any, chance: random.Random) -> Any:
    """Replace, drop or add one value somewhere in a tree of JSON."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    if not places:
        return chance.choice(VALUES)
    holder, key = chance.choice(places)
    kind = chance.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[chance.choice(("x", "", "shape", "act_layer", "global_pool", "depth"))] = chance.choice(VALUES)
    elif kind == 2 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] += chance.choice((-1, 1, 1000))
    else:
        holder[key] = chance.choice(VALUES)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _with_header(tree: Any, data: bytes) -> bytes:
    text = json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entries(content: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        for entry in packed.infolist():
            yield entry.filename, packed.read(entry)


def _zipped(entries: list[tuple[str, bytes]], chance: random.Random) -> bytes:
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if chance.random() < 0.2 else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind) as packed:
        for name, data in entries:
            packed.writestr(name, data)
    return buffer.getvalue()
