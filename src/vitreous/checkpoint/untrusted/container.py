"""Identifies a file by its first bytes, and reads the header of a .safetensors file.

The format: the header's length N as 8 little-endian bytes, N bytes of JSON, and the tensors' bytes
(https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vitreous.checkpoint.untrusted.documents import MAX_BYTES, parse_object
from vitreous.errors import CheckpointError
from vitreous.files.opening import open_regular

__all__ = ["MAX_FILE_BYTES", "Header", "read_header", "reject_other_formats"]

MAX_FILE_BYTES = 1 << 42
"""Upper limit of a file of weights."""

_PICKLES = (
    (b"PK\x03\x04", "a zip archive with a pickle inside, as torch.save writes it"),
    (b"\x80", "a Python pickle"),  # protocols 2 to 5
)
_REMEDY = "give a model.safetensors, a run directory, or another family's weights"
_STATE = b"vitreous state "  # the first bytes that runs/state_file.py writes
_OTHERS = (
    (b"\x89PNG", "an image (PNG)", _REMEDY),
    (b"\xff\xd8\xff", "an image (JPEG)", _REMEDY),
    (b"GIF8", "an image (GIF)", _REMEDY),
    (b"BM", "an image (BMP)", _REMEDY),
    (b"II*\0", "an image (TIFF)", _REMEDY),
    (b"MM\0*", "an image (TIFF)", _REMEDY),
    (b"RIFF", "an image (WebP) or an audio file", _REMEDY),
    (b"%PDF", "a PDF document", _REMEDY),
    (b"GGUF", "a GGUF file of a language model", _REMEDY),
    (b"\x1f\x8b", "compressed with gzip", "decompress it first"),
    (b"\x89HDF", "an HDF5 file (Keras)", _REMEDY),
    (b"version https://git-lfs", "a Git LFS pointer", "run `git lfs pull`, then try again"),
    (b"<", "a web page", "the download failed or needs a login"),
    (b"{", "JSON text", "give the weights beside it, or their folder"),
    (_STATE, "the state of a run, from which training resumes", "give the run's model.safetensors, which is not here"),
)
"""First bytes, what the file is, and the remedy."""


@dataclass(frozen=True)
class Header:
    """The header of a .safetensors file; dtypes are in the format's names, such as ``F32``."""

    metadata: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


def read_header(file: Path) -> Header:
    """Read the header of a .safetensors file and compare the sizes that it claims with the file's."""
    try:
        with open_regular(file, MAX_FILE_BYTES) as stream:
            size = os.fstat(stream.fileno()).st_size
            start = stream.read(64)
            reject_other_formats(file, start)
            _reject_pickles(file, start, size)
            length = int.from_bytes(start[:8], "little")
            if length > min(size - 8, MAX_BYTES):
                raise CheckpointError(
                    f"'{file}' is no complete safetensors file: it has {size:,} bytes, and its header claims "
                    f"{length:,}; it was cut off or is of another kind"
                )
            stream.seek(8)
            text = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read '{file}': {error.strerror or error}") from error
    try:
        content = parse_object(text, f"the header of '{file}'", unique=True)
        metadata = content.pop("__metadata__", {})
        shapes = {str(name): tuple(int(n) for n in entry["shape"]) for name, entry in content.items()}
        dtypes = {str(name): str(entry["dtype"]) for name, entry in content.items()}
        end = max((int(entry["data_offsets"][1]) for entry in content.values()), default=0)
        texts = {str(name): str(value) for name, value in metadata.items()}
    except (CheckpointError, LookupError, ValueError, OverflowError, TypeError, AttributeError) as error:
        raise CheckpointError(f"'{file}' is damaged or not a safetensors file: its header is unreadable") from error
    expected = 8 + length + end
    if expected != size:
        why = "it was cut off: copy or download it again" if expected > size else "it has surplus bytes"
        raise CheckpointError(f"'{file}' is damaged: {size:,} bytes found, {expected:,} expected; {why}")
    return Header(texts, shapes, dtypes)


def reject_other_formats(file: Path, start: bytes) -> None:
    """Check the first bytes of a file, at least 24, for formats that users mistake for a model."""
    if start[8:9] == b"{":  # the JSON of a .safetensors, whose length may start with any bytes
        return
    for magic, kind, remedy in _OTHERS:
        if start.startswith(magic):
            model = file.with_name("model.safetensors")
            advice = f"give '{model}'" if magic == _STATE and model.is_file() else remedy
            raise CheckpointError(f"'{file}' is {kind}, not a model: {advice}")


def _reject_pickles(file: Path, start: bytes, size: int) -> None:
    """Raise for PyTorch's own formats where a .safetensors is expected, and for files that are too short."""
    if size < 8:
        raise CheckpointError(f"'{file}' is {'empty' if size == 0 else f'only {size} bytes long'}: not a model file")
    for magic, kind in _PICKLES:
        if start.startswith(magic) and start[8:9] != b"{":
            raise CheckpointError(
                f"'{file}' is {kind}, which can run code when it is loaded, so it is not read. A vitreous model file "
                "is a .safetensors; of other families' .pth, .pt and .bin files only the tensors are read"
            )
