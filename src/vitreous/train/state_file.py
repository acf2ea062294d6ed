"""The file of a run's state: plain values and tensors, a checksum over every byte, nothing that runs when it is read.

Layout: the line ``vitreous state 1``; 8 bytes, the length N of the header, little-endian; N bytes of JSON, in which a
tensor stands as ``{"tensor": dtype, "shape": [...]}``; the bytes of the tensors in the order in which they stand there;
32 bytes, the SHA-256 of everything before.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import CheckpointError
from vitreous.files.writing import replacing

__all__ = ["read_state", "write_state"]

_MAGIC = b"vitreous state 1\n"
_DIGEST = 32  # bytes
_AT_ONCE = 1 << 26  # bytes that are hashed and written at once


def write_state(path: Path, content: Any, keep: Path | None = None) -> None:
    """Write a state, whole or not at all, and on the disk when this returns.

    Args:
        path: The file.
        content: Dictionaries with text keys, lists, numbers, texts, None, and tensors on the CPU.
        keep: Where the file that was at ``path`` goes.

    Raises:
        OutputError: If it cannot be written; then what was at ``path`` is still there.
    """
    tensors: list[Tensor] = []
    header = json.dumps(_without_tensors(content, tensors)).encode()
    digest = hashlib.sha256()
    with replacing(path, keep) as temporary, temporary.open("wb", buffering=0) as file:
        for piece in (_MAGIC, len(header).to_bytes(8, "little"), header, *map(_bytes_of, tensors)):
            for start in range(0, len(piece), _AT_ONCE):
                part = memoryview(piece)[start : start + _AT_ONCE]
                digest.update(part)
                while len(part):  # an unbuffered file may take less than it is given
                    part = part[file.write(part) :]
        file.write(digest.digest())


def read_state(path: Path) -> Any:
    """Read what :func:`write_state` wrote.

    Raises:
        CheckpointError: If the file cannot be read, is cut off, or was changed by anything since.
    """
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror or error}") from error
    if bytes(data[: len(_MAGIC)]) != _MAGIC[: len(data)]:
        raise CheckpointError(f"'{path}' is no state of a run")
    if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise CheckpointError(f"'{path}' is damaged or cut off: its {len(data):,} bytes do not give its checksum")
    body = data[len(_MAGIC) :]
    length = int.from_bytes(body[:8], "little")
    try:
        header = json.loads(bytes(body[8 : 8 + length]))
        return _with_tensors(header, _Taken(body[8 + length : -_DIGEST]))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:  # a checksum can be made for these
        raise CheckpointError(f"'{path}' is no state of a run: {error}") from error


def _without_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """The value with a description in place of each tensor, which goes to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if isinstance(value, dict):
        return {name: _without_tensors(each, tensors) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(each, tensors) for each in value]
    return value


def _with_tensors(value: Any, data: _Taken) -> Any:
    """The value with the tensors in place of their descriptions."""
    if isinstance(value, dict) and value.keys() == {"tensor", "shape"}:
        dtype, shape = getattr(torch, value["tensor"]), value["shape"]
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(data.take(count * dtype.itemsize), dtype=dtype).reshape(shape)
    if isinstance(value, dict):
        return {name: _with_tensors(each, data) for name, each in value.items()}
    return [_with_tensors(each, data) for each in value] if isinstance(value, list) else value


class _Taken:
    """Bytes that are taken away from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._start = data, 0

    def take(self, count: int) -> bytearray:
        """The next bytes, as a copy that a tensor may own."""
        start, self._start = self._start, self._start + count
        if self._start > len(self._data):
            raise ValueError("it has fewer bytes than its header says")
        return bytearray(self._data[start : self._start])


def _bytes_of(tensor: Tensor) -> Any:
    """The bytes of a tensor, in place."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
