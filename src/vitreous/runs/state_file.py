"""The file format of checkpoints: plain values and tensors under a checksum. Reading one executes no code.

Layout: the line ``vitreous state 1``; the header's length in 8 bytes, little-endian; the header, JSON in which
``{"tensor": dtype, "shape": [...]}`` stands for a tensor; the bytes of the tensors, in the order of the header; the
SHA-256 of everything before it, 32 bytes.
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
from vitreous.files.writing import atomic_write
from vitreous.machine.free_memory import total_memory

__all__ = ["read_state", "write_state"]

_MAGIC = b"vitreous state 1\n"
_DIGEST = 32  # bytes
_CHUNK = 1 << 26  # bytes hashed and written at a time


def write_state(path: Path, content: Any, keep: Path | None = None) -> None:
    """Write a state atomically, and move the file that was at `path` to `keep`; it is on disk when this returns.

    `content` holds dictionaries with string keys, lists, numbers, strings, None, and tensors on the CPU.
    """
    tensors: list[Tensor] = []

    def describe(tensor: Tensor) -> dict[str, Any]:
        tensors.append(tensor)
        return {"tensor": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}

    header = json.dumps(content, default=describe).encode()
    digest = hashlib.sha256()
    with atomic_write(path, keep, follow=False) as temporary, temporary.open("wb", buffering=0) as file:
        for piece in (_MAGIC, len(header).to_bytes(8, "little"), header, *map(_bytes_of, tensors)):
            for start in range(0, len(piece), _CHUNK):
                part = memoryview(piece)[start : start + _CHUNK]
                digest.update(part)
                while len(part):  # an unbuffered write may be partial
                    part = part[file.write(part) :]
        file.write(digest.digest())


def read_state(path: Path) -> Any:
    """Read what :func:`write_state` wrote, after verifying its checksum."""
    try:
        with open_regular(path, total_memory() or 1 << 40) as file:  # no run can save more
            data = memoryview(_verified(path, file))
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise CheckpointError(f"'{path}' cannot be read: it is larger than the free memory") from error
    body = data[len(_MAGIC) : -_DIGEST]
    length = int.from_bytes(body[:8], "little")
    tensors = body[8 + length :]

    def restore(value: dict[str, Any]) -> Any:
        nonlocal tensors
        if value.keys() != {"tensor", "shape"}:
            return value
        dtype, shape = getattr(torch, value["tensor"]), value["shape"]
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        if not 0 < size <= len(tensors):
            raise ValueError("it has fewer bytes than its header describes")
        content, tensors = bytearray(tensors[:size]), tensors[size:]  # a copy, which the tensor owns
        return torch.frombuffer(content, dtype=dtype).reshape(shape)

    try:
        return json.loads(bytes(body[8 : 8 + length]), object_hook=restore)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        # An untrusted file can have a right checksum. RuntimeError includes RecursionError, of a deeply nested header.
        raise CheckpointError(f"'{path}' is not the state of a run: {' '.join(str(error).split())}") from error


def _verified(path: Path, file: IO[bytes]) -> bytes:
    """Return the content of a file after verifying its checksum, before which no memory is allocated for all of it."""
    size, digest, done = os.fstat(file.fileno()).st_size, hashlib.sha256(), 0
    if (begin := file.read(len(_MAGIC))) != _MAGIC[: len(begin)]:
        raise CheckpointError(f"'{path}' is not the state of a run")
    file.seek(0)
    while piece := file.read(max(0, min(_CHUNK, size - _DIGEST - done))):
        digest.update(piece)
        done += len(piece)
    if digest.digest() != file.read(_DIGEST):
        raise CheckpointError(f"'{path}' is damaged or truncated: its {size:,} bytes do not match its checksum")
    file.seek(0)
    return file.read(size)


def _bytes_of(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
