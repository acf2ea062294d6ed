"""The file of a run's state: plain values and tensors, a checksum over every byte, nothing that runs when it is read.

Layout: the line ``vitreous state 1``; 8 bytes, the length N of the header, little-endian; N bytes of JSON, in which a
tensor stands as ``{"tensor": dtype, "shape": [...]}``; the bytes of the tensors in the order in which they stand there;
32 bytes, the SHA-256 of everything before.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vitreous.errors import CheckpointError
from vitreous.files.opening import open_regular
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
    with replacing(path, keep, follow=False) as temporary, temporary.open("wb", buffering=0) as file:
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
        with open_regular(path, _memory()) as file:
            data = memoryview(_checked(path, file))
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise CheckpointError(f"'{path}' cannot be read: it is larger than the memory that is free") from error
    body = data[len(_MAGIC) :]
    length = int.from_bytes(body[:8], "little")
    try:
        header = json.loads(bytes(body[8 : 8 + length]))
        return _with_tensors(header, _Taken(body[8 + length : -_DIGEST]))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        # A checksum can be made for any of these. RuntimeError: also of Python, where the header is nested too deep.
        raise CheckpointError(f"'{path}' is no state of a run: {' '.join(str(error).split())}") from error


def _checked(path: Path, file: IO[bytes]) -> bytes:
    """The content of a state's file, whose checksum is compared before anything is allocated for the whole."""
    size, digest, done = os.fstat(file.fileno()).st_size, hashlib.sha256(), 0
    if (begin := file.read(len(_MAGIC))) != _MAGIC[: len(begin)]:
        raise CheckpointError(f"'{path}' is no state of a run")
    file.seek(0)
    while piece := file.read(min(_AT_ONCE, size - _DIGEST - done) if size - _DIGEST > done else 0):
        digest.update(piece)
        done += len(piece)
    if digest.digest() != file.read(_DIGEST):
        raise CheckpointError(f"'{path}' is damaged or cut off: its {size:,} bytes do not give its checksum")
    file.seek(0)
    return file.read(size)


def _memory() -> int:
    """Bytes of memory that this machine has: no state that a run could have written is larger."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows does not say
        return 1 << 40


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
