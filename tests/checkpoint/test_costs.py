"""Files that claim more than they have are rejected in one line, quickly, and before memory is allocated."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import time
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from forked import run_forked
from vitreous.accelerate.cost import forward_bytes
from vitreous.accelerate.model import build
from vitreous.checkpoint import memory_check
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint, open_with_details
from vitreous.checkpoint.untrusted.tensors import read_tensors
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError, VitreousError
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from fuzzing import costly_files as made

SECONDS = 2.0


LONG_TEXT = b"](X" + struct.pack("<I", 10**6) + b"x" * 10**6 + b"q\1"


def archive(body: bytes, data: bytes = bytes(32)) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("m/data.pkl", b"\x80\x02" + body + b".")
        packed.writestr("m/data/0", data)
        packed.writestr("m/version", b"3\n")
    return buffer.getvalue()


def rejection(path: Path, content: bytes, read=read_tensors) -> str:
    """Return the error for a file, which is one line and takes at most two seconds of CPU time."""
    path.write_bytes(content)
    began = time.process_time()
    with pytest.raises(VitreousError) as caught:
        read(path)
    assert time.process_time() - began < SECONDS
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000
    return str(caught.value)


def twice(levels: int) -> bytes:
    return b")q\0" + b"h\0h\0\x86q\0" * levels


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"}(" + twice(40) + b"K\1u", "a dictionary with a tuple as a key"),
        (b"\x8f(" + twice(40) + b"\x90", "has set and no state dict"),
        (b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R", "has bytearray and no state dict"),
        (b"c__builtin__\nset\n](" + twice(40) + b"e\x85R", "has set"),
        (b"\x96" + struct.pack("<Q", 3 << 30), "ends too early"),
        (b"\x8b" + struct.pack("<i", 2**31 - 1), "an integer of 2,147,483,647 bytes"),
        (b"](" + b"]" * 600_000 + b"e", "more than 500,000 steps"),
        (b"](](" + b"K\1" * 100_000 + b"eq\1" + b"ctorch\nSize\nh\1\x85R" * 5000 + b"e", "more than 500,000 steps"),
        (LONG_TEXT + b"c_codecs\nencode\nh\1X\4\0\0\0utf8\x86R" * 5000 + b"e", "has list and no state dict"),
        (b"ccollections\nOrderedDict\n)R}(X\5\0\0\0itemsK\5ub", "holds no tensors"),
        (b"cposix\nsystem\nX\4\0\0\0true\x85R", r"has more than tensors \(posix.system\)"),
    ],
)  # fmt: skip
def test_cost_of_pickles_is_bounded(tmp_path, body, said):
    assert re.search(said, rejection(tmp_path / "m.pth", archive(body)))


def test_colliding_keys_take_no_longer(tmp_path):
    keys = b"".join(made.number(n * (2**61 - 1)) + b"N" for n in range(60_000))
    assert "a dictionary with a int as a key" in rejection(tmp_path / "m.pth", archive(b"}(" + keys + b"u"))
    keys = b"".join(b"G" + struct.pack(">d", 2.0 ** (61 * (n % 16)) * (n // 16)) + b"N" for n in range(60_000))
    assert "no state dict" in rejection(tmp_path / "m.pth", archive(b"}(" + keys + b"u"))


def test_shared_storage_cannot_be_multiplied(tmp_path):
    shared = torch.zeros(1 << 20)
    torch.save({f"t{n}": shared for n in range(200)}, tmp_path / "m.pth")
    assert "bytes that share" in rejection(tmp_path / "m.pth", (tmp_path / "m.pth").read_bytes())


@pytest.mark.parametrize("name", ["m.pth", "m.npz"])
def test_ambiguous_archives_are_rejected(tmp_path, name):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        packed.writestr("m/data.pkl" if name == "m.pth" else "a.npy", bytes(100 << 20))
    whole = buffer.getvalue()
    central = whole.index(b"PK\x01\x02")
    end = whole.rindex(b"PK\x05\x06")
    encrypted = bytearray(whole)
    encrypted[central + 8] |= 1
    line = whole[central:end]
    many = b"".join(line for _ in range(100_000))
    crowded = whole[:central] + many + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, len(many), central, 0)
    twofold = struct.pack("<2H2LH", 2, 2, 2 * len(line), central, 0)
    for content, said in (
        (whole + b"PK\x05\x06", "no complete"),
        (whole + bytes(100), "no complete"),
        (b"x" * 100 + whole, "no complete"),
        (whole, "would unpack to"),
        (bytes(encrypted), "encrypted"),
        (crowded, "a directory of"),
        (whole[:end] + line + whole[end : end + 8] + twofold, "two entries"),
    ):
        assert said in rejection(tmp_path / name, content)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("new", [True, False])
def test_every_pickle_protocol_is_read_exactly(tmp_path, protocol, new):
    base = torch.randn(6, 8)
    extra = torch.nn.Parameter(torch.randn(3))
    extra.note = "x"
    state = OrderedDict(
        a=base, b=base[1:3].t(), c=base.to(torch.bfloat16), d=extra, e=torch.empty(0, 3), f=torch.ones(())
    )
    optimiser = {"state": {0: {"step": torch.ones(())}}, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}]}
    rest = {"optimizer": optimiser, "epoch": 3, "big": 2**70, "s": {1, 2}, "c": Counter({3: 1}), "b": b"x", "z": 1j}
    torch.save(
        {"model": state, **rest}, tmp_path / "m.pth", pickle_protocol=protocol, _use_new_zipfile_serialization=new
    )
    found = read_tensors(tmp_path / "m.pth")
    assert list(found) == list(state)
    for name, want in state.items():
        assert found[name].dtype == want.dtype
        assert found[name].stride() == want.stride()
        assert torch.equal(found[name], want.detach())


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.ones(2).to(torch.float8_e4m3fn), "float8_e4m3fn in 'a'"),
        (torch.ones(2, device="meta"), "tensor without data"),
        (torch.ones(2, dtype=torch.complex64), "complex64 in 'a'"),
        (torch.ones(3).to_sparse(), "sparse tensor"),
        (torch.ones(2).to(torch.uint16), "uint16 in 'a'"),
    ],
)
@pytest.mark.parametrize("new", [True, False])
def test_unsupported_tensors_are_named(tmp_path, tensor, said, new):
    torch.save({"a": tensor}, tmp_path / "m.pth", _use_new_zipfile_serialization=new)
    assert said in rejection(tmp_path / "m.pth", (tmp_path / "m.pth").read_bytes())


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F4", "F6_E2M3", "C64", "U16", "nonsense"])
def test_unsupported_safetensors_dtypes_are_named(tmp_path, dtype):
    header = json.dumps({"a": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}).encode()
    assert dtype in rejection(tmp_path / "m.safetensors", struct.pack("<Q", len(header)) + header + bytes(4))


@pytest.mark.parametrize(
    "header",
    ["-" * 9000, "(" * 3000, "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}", "[" * 60_000,
     "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 1180591620717411303424)}", "~" * 3000 + "1",
     "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 40 + ")}"],
)  # fmt: skip
def test_invalid_array_headers(tmp_path, header):
    buffer = io.BytesIO()
    raw = header.encode() + b"\n"
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("a.npy", b"\x93NUMPY\2\0" + struct.pack("<I", len(raw)) + raw + bytes(4))
    assert "damaged" in rejection(tmp_path / "m.npz", buffer.getvalue())


def tiny(path: Path, **fields) -> tuple[VisionTransformer, Path]:
    """Save a small model; return it and the file."""
    config = {"image_size": 16, "patch_size": 8, "num_classes": 3, "width": 16, "depth": 2, "heads": 2, "mlp_dim": 32}
    model = build(ViTConfig(**(config | fields))).eval()
    half = PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3)
    size = model.config.image_size
    save_model(path, model, ModelInfo(("a", "b", "c"), EvalPipeline((size, size), 3, half), provenance={"seed": 0}))
    return model, path


PASSES = {  # fields of the configuration, tokens merged in each block, and image size
    "sincos": ({"position": "sincos-2d", "pool": "mean", "width": 64, "mlp_dim": 256}, 0, 1024),
    "relative": ({"position": "relative", "pool": "mean", "image_size": 256}, 0, 256),
    "stem": ({"stem": {"kind": "conv", "downsample": "stride"}, "width": 64, "mlp_dim": 256}, 0, 1024),
    "map": ({"pool": "map", "patch_size": 16, "width": 384, "mlp_dim": 1536}, 0, 512),
    "axial": ({"attention": "axial", "pool": "mean", "width": 192, "mlp_dim": 192, "heads": 3}, 0, 1024),
    "merged": ({"patch_size": 16}, 8, 1024),
    "every": ({"position": {"layers": "every"}, "image_size": 64, "patch_size": 16, "width": 64, "depth": 24}, 0, 1024),
    "every-2d": ({"position": {"kind": "learned-2d", "layers": "every"}, "width": 64, "depth": 12}, 0, 512),
}

MEASURE = """
import json, os, sys, torch
from process_limits import peak_memory
from vitreous.accelerate.merging import merge_tokens
from vitreous.accelerate.model import build
from vitreous.model.config import ViTConfig

torch.set_num_threads(1)
for name, (fields, merged, size) in json.loads(sys.argv[1]).items():
    if child := os.fork():  # each pass has a process of its own, with torch loaded
        assert os.waitpid(child, 0)[1] == 0, name
        continue
    model = build(ViTConfig(**fields)).eval()
    merge_tokens(model, merged)
    run = torch.inference_mode()(model)
    run(torch.zeros(1, 3, 64, 64))
    with peak_memory() as memory:
        run(torch.zeros(1, 3, size, size))
    print(json.dumps([name, memory.grown]), flush=True)
    os._exit(0)
"""


def pass_config(name: str) -> dict[str, object]:
    fields, _, size = PASSES[name]
    small = {"image_size": size, "patch_size": 8, "num_classes": 3, "width": 16, "depth": 2, "heads": 2, "mlp_dim": 32}
    return small | fields


@pytest.fixture(scope="module")
def measured_bytes() -> dict[str, int]:
    """The peak memory of each pass, by its name."""
    asked = {name: (pass_config(name), merged, size) for name, (_, merged, size) in PASSES.items()}
    # glibc returns every large block at once: by default it keeps some of them, more in some runs than in others.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = [sys.executable, "-c", MEASURE, json.dumps(asked)]
    run = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    return dict(map(json.loads, run.stdout.splitlines()))


@pytest.mark.parametrize("name", PASSES)
def test_counted_memory_equals_measured_memory(measured_bytes, name):
    """Peak memory of a separate process, within the margin that the check leaves."""
    _, merged, size = PASSES[name]
    counted, taken = forward_bytes(ViTConfig(**pass_config(name)), (size, size), merged=merged), measured_bytes[name]
    assert counted / 1.7 < taken < 1.2 * counted + (8 << 20), f"{taken:,} bytes measured, {counted:,} counted"


def test_memory_is_checked_before_it_is_allocated(tmp_path, monkeypatch):
    _, path = tiny(tmp_path / "m.safetensors", image_size=16_384, position="sincos-2d", pool="mean")
    assert path.stat().st_size < 80_000
    monkeypatch.setattr(memory_check, "memory_left", lambda: 2 << 30)
    said = rejection(path, path.read_bytes(), open_checkpoint)
    assert "16384 x 16384 pixels: one needs about" in said
    assert "2.0 GiB are free" in said
    smaller = int(said.rpartition(" ")[2])
    model, info = open_checkpoint(path, OpenOptions(image_size=smaller))
    assert info.pipeline.size == (smaller, smaller)
    tiny(path)
    with pytest.raises(ConfigError, match="Give a smaller size, such as --image-size"):
        open_with_details(path, OpenOptions(image_size=8192))
    with pytest.raises(ConfigError, match=r"Use --batch-size \d"):
        memory_check.check_batch(model.config, info.pipeline, 1 << 16)


LIMITED = """
import resource, sys
from vitreous.cli.main import main
resource.setrlimit(resource.RLIMIT_AS, (6_000_000 << 10, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


def test_limits_of_the_process_are_respected(tmp_path):
    _, path = tiny(tmp_path / "m.safetensors", image_size=16_384, position="sincos-2d", pool="mean")
    run = run_forked(tmp_path, "predict", path, tmp_path / "x.png", code=LIMITED)
    assert run.returncode == 1
    assert "of memory" in run.stderr
    assert "Give a smaller size" in run.stderr


def with_changed_metadata(path: Path, **changes) -> Path:
    """Change entries of a file's metadata, and its digest with them."""
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    tree = json.loads(whole[8 : 8 + length])
    said = json.dumps(json.loads(tree["__metadata__"]["vitreous"]) | changes)
    tree["__metadata__"] = {"vitreous": said, "vitreous_sha256": made._digest(said, tree, whole[8 + length :])}
    header = json.dumps(tree).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + whole[8 + length :])
    return path


TIMM = {"family": "timm", "names": "timm"}
LAYOUTS = (
    *(5, "x", ["a"], {"family": 1}, {"family": "google"}),
    {"family": "huggingface", "prefix": "", "names": [], "kind": "vit"},
    *(TIMM | {"dtypes": {"*": "nn"}}, TIMM | {"dtypes": 3}, TIMM | {"class_names": [1]}, TIMM | {"kept": {"x": 1}}),
    TIMM | {"kept": {"mask_token": {"shape": [2**40], "dtype": "float32", "base64": ""}}},
    {"family": "google", "prefix": "", "scan": 1, "block": "flax", "position": "x", "map": "", "norm_rank": -3},
)


def nested(depth: int):
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "changes",
    [
        *({"provenance": {"layout": layout}} for layout in LAYOUTS),
        {"provenance": {"x": nested(900)}},
        {"provenance": {"data": {"fingerprint": 5}}},
        {"provenance": {"config": {"data": {"source": 5}}}},
        {"provenance": {"config": {"data": {"val_fraction": "x"}}}},
        {"scores": {"x": nested(70)}},
        {"classes": ["a", "b", "\ud800"]},
        {"temperature": 10**400},
        {"temperature": float("nan")},
    ],
)
def test_invalid_metadata_is_rejected_even_with_a_valid_digest(tmp_path, changes):
    _, path = tiny(tmp_path / "m.safetensors")
    rejection(path, with_changed_metadata(path, **changes).read_bytes(), open_checkpoint)


def test_undecodable_bytes_in_class_names_are_kept(tmp_path):
    _, path = tiny(tmp_path / "m.safetensors")
    assert load_model(with_changed_metadata(path, classes=["a", "b", "caf\udce9"]))[1].classes[2] == "caf\udce9"


@pytest.mark.parametrize("depth", [50_000, 1000])
def test_claimed_blocks_and_heads_cost_nothing(tmp_path, depth):
    shapes = {f"blocks.{n}.x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(depth)}
    _, path = tiny(tmp_path / "m.safetensors")
    text = json.loads((raw := path.read_bytes())[8 : 8 + struct.unpack("<Q", raw[:8])[0]])["__metadata__"]["vitreous"]
    document = json.loads(text)
    document["model"] |= {"depth": depth, "width": 4096, "heads": 4096, "init": "mimetic"}
    header = json.dumps({"__metadata__": {"vitreous": json.dumps(document)}, **shapes}).encode()
    rejection(path, struct.pack("<Q", len(header)) + header, open_checkpoint)


def test_json_beside_weights_is_bounded(tmp_path):
    np.savez(tmp_path / "model.npz", a=np.zeros(3, np.float32))
    for text in ('{"a": ' + "[" * 900 + "]" * 900 + "}", "{", "[]", '{"a": ' + "9" * 5000 + "}"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            open_checkpoint(tmp_path)


def test_plain_pickle_is_not_a_pytorch_file(tmp_path):
    assert "does not begin" in rejection(tmp_path / "m.pth", pickle.dumps({"a": 1}))
