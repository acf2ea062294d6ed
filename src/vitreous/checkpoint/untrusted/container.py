"""The outside of a .safetensors file: what kind of file this is, and its header, read without believing it.

The format: 8 bytes, the header's length N as a little-endian integer; N bytes of JSON; the tensors' bytes.
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vitreous.checkpoint.untrusted.documents import LARGEST, parse_object
from vitreous.errors import CheckpointError
from vitreous.files.opening import open_regular

__all__ = ["Header", "read_header", "refuse_other_kinds"]


LARGEST_FILE = 1 << 42
"""Bytes of a file of weights: four terabytes."""

_PICKLES = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes it, with a pickle inside"),
    (b"\x80", "a Python pickle"),
)
_REMEDY = "give a model.safetensors, a run folder, or another family's weights"
_STATE = b"vitreous state "  # as runs/state_file.py begins
_OTHERS = (
    (b"\x89PNG", "a picture (PNG)", _REMEDY),
    (b"\xff\xd8\xff", "a picture (JPEG)", _REMEDY),
    (b"GIF8", "a picture (GIF)", _REMEDY),
    (b"BM", "a picture (BMP)", _REMEDY),
    (b"II*\0", "a picture (TIFF)", _REMEDY),
    (b"MM\0*", "a picture (TIFF)", _REMEDY),
    (b"RIFF", "a picture (WebP) or a recording", _REMEDY),
    (b"%PDF", "a PDF document", _REMEDY),
    (b"GGUF", "a GGUF file of a language model", _REMEDY),
    (b"\x1f\x8b", "packed with gzip", "unpack it first"),
    (b"\x89HDF", "an HDF5 file (Keras)", _REMEDY),
    (b"version https://git-lfs", "a Git LFS pointer and not the file itself", "run `git lfs pull`, then try again"),
    (b"<", "a web page", "the download went wrong, or needs a login"),
    (b"{", "JSON text", "give the weights that lie beside it, or their folder"),
    (
        _STATE,
        "the state of a run, from which training is resumed",
        "give the run's model.safetensors, which is not here",
    ),
)
"""First bytes, what begins with them, and what to do."""


@dataclass(frozen=True)
class Header:
    """What a .safetensors file says about itself.

    Args:
        metadata: Texts by name.
        shapes: Shape of each tensor.
        dtypes: Type of each tensor, in the format's own words such as ``F32``.
    """

    metadata: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


def read_header(file: Path) -> Header:
    """Read the header of a .safetensors file; at most as many bytes as the file has.

    Raises:
        CheckpointError: If it cannot be read, or is no whole .safetensors file; the message says what it is instead.
    """
    try:
        with open_regular(file, LARGEST_FILE) as stream:
            size = os.fstat(stream.fileno()).st_size
            start = stream.read(64)
            refuse_other_kinds(file, start)
            _refuse_pickles(file, start, size)
            length = int.from_bytes(start[:8], "little")
            if length > min(size - 8, LARGEST):
                raise CheckpointError(
                    f"'{file}' is no whole safetensors file: it has {size:,} bytes, and its header claims {length:,}; "
                    "it was cut off, or is of another kind"
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
        raise CheckpointError(f"'{file}' is no safetensors file, or a damaged one: its header is unreadable") from error
    if 8 + length + end != size:
        less = "it was cut off: copy or download it again" if 8 + length + end > size else "it has bytes too many"
        raise CheckpointError(f"'{file}' is damaged: {size:,} bytes found, {8 + length + end:,} expected; {less}")
    return Header(texts, shapes, dtypes)


def refuse_other_kinds(file: Path, start: bytes) -> None:
    """Name files that hold no weights but that people give for a model.

    Args:
        file: For the message.
        start: Its first bytes, 24 at least where it has as many.

    Raises:
        CheckpointError: If it is a picture, a document, text, or what a failed download leaves.
    """
    if start[8:9] == b"{":  # a length may begin like anything; then JSON follows at byte 8
        return
    for magic, kind, remedy in _OTHERS:
        if start.startswith(magic):
            model = file.with_name("model.safetensors")
            beside = f"give '{model}'" if magic == _STATE and model.is_file() else remedy
            raise CheckpointError(f"'{file}' is {kind}, no model: {beside}")


def _refuse_pickles(file: Path, start: bytes, size: int) -> None:
    """Refuse PyTorch's own files where a .safetensors is expected, and what is too short for one."""
    if size < 8:
        raise CheckpointError(f"'{file}' is {'empty' if size == 0 else f'only {size} bytes long'}: no model file")
    for magic, kind in _PICKLES:  # 0x80 and its protocol, 2 to 5
        if start.startswith(magic) and start[8:9] != b"{":
            raise CheckpointError(
                f"'{file}' is {kind}, which can run code when it is read, so it is refused. A model file of vitreous "
                "is a .safetensors; of other families' files that end in .pth, .pt or .bin the tensors alone are read"
            )
