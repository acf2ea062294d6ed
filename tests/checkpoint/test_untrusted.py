"""Untrusted files: nothing in them runs, claimed sizes are checked, and each damage is one clear error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from process_limits import peak_memory
from vitreous.checkpoint.opening import open_checkpoint
from vitreous.checkpoint.untrusted.tensors import read_tensors
from vitreous.errors import CheckpointError

STATE = {"a": torch.arange(12.0).view(3, 4), "b/c": torch.ones(1000)}


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def write(folder: Path, kind: str) -> Path:
    path = folder / f"m.{kind}"
    if kind == "npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in STATE.items()})
    elif kind == "safetensors":
        save_file(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=kind != "pt")
    return path


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pth", "pt"])
def test_every_format_gives_the_same_tensors(tmp_path, kind):
    found = read_tensors(write(tmp_path, kind))
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pth", "pt"])
def test_truncated_files_are_one_clear_error(tmp_path, kind):
    path = write(tmp_path, kind)
    whole = path.read_bytes()
    for length in {0, 1, 7, 8, 9, 40, len(whole) // 3, len(whole) // 2, len(whole) - 100, len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as caught:
            read_tensors(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pth", "pt"])
def test_flipped_bits_are_detected_where_there_are_checksums(tmp_path, kind):
    """Archives have checksums; safetensors and the legacy format have none, so a flip may change a number or name."""
    path = write(tmp_path, kind)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for place in random.integers(0, len(whole), 150):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << int(random.integers(8))
        path.write_bytes(spoiled)
        with contextlib.suppress(CheckpointError):  # anything else is a failure
            found = read_tensors(path)
            same = found.keys() == STATE.keys() and all(torch.equal(found[name], STATE[name]) for name in STATE)
            assert same or kind in ("safetensors", "pt")


@pytest.mark.parametrize("kind", ["npz", "pth", "pt", "bin", "npz-v2"])
def test_code_never_runs_and_the_error_says_why(tmp_path, kind):
    mark = tmp_path / "ran"
    path = tmp_path / f"m.{kind[:3]}"
    if kind == "npz":
        np.savez(path, a=np.array([Trap(mark)], dtype=object))
    elif kind == "npz-v2":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", pickle.dumps(Trap(mark)))
    elif kind == "bin":
        path.write_bytes(pickle.dumps({"a": Trap(mark)}))
    else:
        torch.save({"a": Trap(mark)}, path, _use_new_zipfile_serialization=kind == "pth")
    with pytest.raises(CheckpointError, match=r"run code|unreadable") as caught:
        read_tensors(path)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_pickled_module_is_rejected_by_name(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match=r"torch\.nn\.modules\.linear\.Linear"):
        read_tensors(tmp_path / "m.pth")


def npy(descr: str, shape: str, body: bytes) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("<f4", "(1000000000000,)", b"\0" * 16), "claims shape"),
        (npy("<f4", "(-4,)", b"\0" * 16), "claims shape"),
        (npy("<f4", "(3,)", b"\0" * 16), "claims shape"),
        (npy("<U4", "(1,)", b"\0" * 16), "expected numbers"),
        (npy("<c8", "(2,)", b"\0" * 16), "expected numbers"),
        (npy("|O", "(1,)", b"\0" * 16), "run code"),
        (npy("nonsense", "(1,)", b"\0" * 16), "unreadable"),
        (npy("<f4", "__import__('os').system('true')", b"\0" * 16), "unreadable"),
        (npy("<f4", "(" * 90, b"\0" * 16), "unreadable"),
        (b"", "unreadable"),
    ],
)
def test_array_headers_are_checked(tmp_path, content, message):
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(CheckpointError, match=message):
        read_tensors(tmp_path / "m.npz")


def test_fortran_order_big_endian_and_repeated_names(tmp_path):
    array = np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3))
    np.savez_compressed(tmp_path / "m.npz", a=array)
    assert torch.equal(read_tensors(tmp_path / "m.npz")["a"], torch.arange(6.0).view(2, 3).double())
    with zipfile.ZipFile(tmp_path / "two.npz", "w") as archive:
        archive.writestr("a.npy", npy("<f4", "(1,)", b"\0" * 4))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", npy("<f4", "(1,)", b"\0" * 4))
    with pytest.raises(CheckpointError, match="two entries named"):
        read_tensors(tmp_path / "two.npz")


@pytest.mark.parametrize("kind", ["npz", "pth"])
def test_zip_bomb_takes_no_memory(tmp_path, kind):
    path, zeros = tmp_path / f"bomb.{kind}", bytes(1 << 24)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        name = "a.npy" if kind == "npz" else "archive/data.pkl"
        with archive.open(name, "w", force_zip64=True) as stream:
            stream.write(npy("<f4", f"({1 << 28},)", b""))
            for _ in range(64):
                stream.write(zeros)
    assert path.stat().st_size < 1 << 24
    with peak_memory() as memory, pytest.raises(CheckpointError, match="would unpack to"):
        read_tensors(path)
    assert memory.grown < 64 << 20


def test_wrong_sizes_in_an_archive_take_no_memory(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy("<f4", f"({1 << 26},)", bytes(1 << 28)))
    content = bytearray(buffer.getvalue())
    central = content.rindex(b"PK\x01\x02")
    content[central + 24 : central + 28] = struct.pack("<I", 1000)  # the uncompressed size in the directory
    (tmp_path / "m.npz").write_bytes(content)
    with peak_memory() as memory, pytest.raises(CheckpointError, match=r"cut off or damaged|claims shape"):
        read_tensors(tmp_path / "m.npz")
    assert memory.grown < 64 << 20


def test_expanded_view_is_rejected(tmp_path):
    torch.save({"a": torch.zeros(1).expand(1 << 40)}, tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match="on fewer bytes"):
        read_tensors(tmp_path / "m.pth")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.safetensors", struct.pack("<Q", 1 << 60) + b"{}", "header claims"),
        ("m.safetensors", struct.pack("<Q", 2) + b"{}", "no tensors"),
        ("m.pth", b"not a model at all", "no complete PyTorch file"),
        ("m.npz", b"not a model at all", "no complete .npz"),
        ("m.npz", b"", "no complete .npz"),
    ],
)
def test_files_without_a_model(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / name)


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pth", "bin", "png", "weights"])
@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"\x89PNG\r\n\x1a\n", r"is an image \(PNG\), not a model: give a model\.safetensors"),
        (b"\xff\xd8\xff\xe0", "is an image"),
        (b"RIFF\0\0\0\0WEBP", "is an image"),
        (b"%PDF-1.7", "a PDF document"),
        (b"<!DOCTYPE html><html>", "a web page, not a model: the download failed"),
        (b'{"hidden_size": 192}', "JSON text, not a model: give the weights beside it"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ],
)
def test_other_formats_are_named(tmp_path, suffix, start, message):
    path = tmp_path / f"m.{suffix}"
    path.write_bytes(start + bytes(range(256)))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_header_length_that_looks_like_an_image_signature(tmp_path):
    save_file(STATE, tmp_path / "m.safetensors", metadata={"x": "y" * (0x4D42 - 8 - 200)})
    content = (tmp_path / "m.safetensors").read_bytes()
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    padded = struct.pack("<Q", 0x4D42) + header.rstrip().ljust(0x4D42) + content[8 + len(header) :]
    assert padded.startswith(b"BM")
    (tmp_path / "m.safetensors").write_bytes(padded)
    assert read_tensors(tmp_path / "m.safetensors").keys() == STATE.keys()


def test_files_without_a_state_dict(tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"model": {"a": 1}}, tmp_path / "numbers.pth")
    torch.save({"a": torch.zeros(3).to_sparse()}, tmp_path / "sparse.pth")
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pth")
    for name, message in (
        ("list", "no state dict"),
        ("numbers", "no state dict"),
        ("sparse", "sparse"),
        ("other", "no known family"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(tmp_path / f"{name}.pth")


def test_folders(tmp_path):
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "model.onnx").touch()
    with pytest.raises(CheckpointError, match=r"an exported model: name its file, '.*exported.model\.onnx'"):
        open_checkpoint(tmp_path / "exported")
    with pytest.raises(CheckpointError, match="no other weights"):
        open_checkpoint(tmp_path)
    for name in ("one", "two"):
        torch.save({"a": torch.zeros(3)}, tmp_path / f"{name}.pth")
    with pytest.raises(CheckpointError, match="has 2 files of weights"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="File name too long"):
        open_checkpoint("a" * 5000)
    with pytest.raises(CheckpointError, match=r"Did you mean '.*one\.pth'"):
        open_checkpoint(tmp_path / "onne.pth")
    index = tmp_path / "model.safetensors.index.json"
    for places, message in (
        ({"a": "../../etc/passwd"}, "outside its folder"),
        ({"a": "gone.safetensors"}, "no model file"),
        ({"a": "9" * 5000}, "File name too long"),
        ("x", "no weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": places}))
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(tmp_path)
    index.write_text("{")
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        open_checkpoint(tmp_path)


def test_names_in_a_file_cannot_control_or_flood_a_terminal(tmp_path):
    save_file({"a\n\x1b[2J\u202eb": torch.zeros(3), "x" * 50_000: torch.zeros(3)}, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="no known family") as caught:
        open_checkpoint(tmp_path / "m.safetensors")
    message = str(caught.value)
    assert message.isprintable()
    assert r"a\n\x1b[2J\u202eb" in message
    assert len(message) < 2000
    assert message.endswith("of google, timm, huggingface, torchvision and facebookresearch")
