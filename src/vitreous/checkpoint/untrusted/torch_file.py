"""PyTorch's files, of today's kind (a zip archive) and of before 2020: what they describe, and the numbers of a tensor.

Only the tensors that are asked for are read, straight into their own memory.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vitreous.checkpoint.untrusted.archive import Archive
from vitreous.checkpoint.untrusted.pickle_names import DamagedPickleError, StorageRef, TensorRef, UnsafePickleError
from vitreous.checkpoint.untrusted.pickles import PickleReader
from vitreous.errors import CheckpointError

__all__ = ["READABLE", "PyTorchFile"]

_LARGEST_PICKLE = 1 << 25  # bytes: descriptions alone
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the files of before 2020
_SLACK = 1 << 24  # bytes
READABLE = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
"""Types of numbers that are read."""


@dataclass(frozen=True)
class _Place:
    """Where the numbers of a storage lie, in bytes, in a file of before 2020."""

    start: int
    size: int


class PyTorchFile:
    """A file that torch.save wrote.

    Args:
        stream: The open file, which stays the caller's.
        file: Its path, for messages.

    Attributes:
        value: What was saved, with a :class:`TensorRef` for each tensor.

    Raises:
        CheckpointError: If it is damaged, or names what would be code to run.
    """

    def __init__(self, stream: IO[bytes], file: Path) -> None:
        self._stream, self._file = stream, file
        self._size = os.fstat(stream.fileno()).st_size
        self._read: dict[str, Tensor] = {}
        self._places: dict[str, _Place] = {}
        self._archive: Archive | None = None
        self._swapped = False
        start = stream.read(4)
        try:
            self.value = self._of_archive() if start[:2] == b"PK" else self._of_old_file()
        except UnsafePickleError as error:
            raise CheckpointError(
                f"'{file}' holds more than tensors ({str(error)[:200]}): reading it would run code that it names, so "
                "it is refused. Save the state dict alone, best as .safetensors"
            ) from error
        except DamagedPickleError as error:
            raise self._damaged(str(error)) from error

    def tensors(self, refs: Mapping[str, TensorRef]) -> dict[str, Tensor]:
        """Return the tensors by name; those that share a storage share memory.

        Raises:
            CheckpointError: If their numbers are not there, or of a type that is not read.
        """
        claimed = sum(math.prod(ref.shape) * ref.dtype.itemsize for ref in refs.values())
        held = {ref.storage.key: ref.storage.count * ref.storage.dtype.itemsize for ref in refs.values()}
        for name, ref in refs.items():
            self._check(name, ref)
        if claimed > 2 * sum(held.values()) + _SLACK:
            raise CheckpointError(
                f"'{self._file}' has tensors of {claimed:,} bytes on {sum(held.values()):,}: it would grow when it is "
                "read, refused. Save each tensor by itself (tensor.clone())"
            )
        return {name: self._tensor(ref) for name, ref in refs.items()}

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"'{self._file}' is no whole PyTorch file, it was cut off or damaged: {why}")

    def _of_archive(self) -> Any:
        """Read the descriptions in a zip archive; its folder's name is free."""
        self._archive = archive = Archive(self._stream, self._file, "PyTorch file")
        found = [name for name in archive.entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(found) != 1:
            raise self._damaged(f"an archive of {len(archive.entries):,} files, and {len(found)} of them data.pkl")
        self._folder = found[0].removesuffix("data.pkl")
        if f"{self._folder}constants.pkl" in archive.entries:
            raise UnsafePickleError("a TorchScript program")
        if archive.entries[found[0]].size > _LARGEST_PICKLE:
            raise self._damaged(f"its descriptions take {archive.entries[found[0]].size:,} bytes")
        order = f"{self._folder}byteorder"
        if order in archive.entries and archive.entries[order].size < 16:
            self._swapped = archive.read(order).numpy().tobytes().decode("latin1") not in ("", sys.byteorder)
        return PickleReader(archive.read(found[0]).numpy().tobytes()).load()

    def _of_old_file(self) -> Any:
        """Read the descriptions of a file of before 2020: pickles one after the other, then the storages."""
        self._stream.seek(0)
        reader = PickleReader(self._stream.read(_LARGEST_PICKLE))
        if reader.load() != _MAGIC or reader.load() != _PROTOCOL:
            raise DamagedPickleError("it does not begin as such a file does")
        reader.load()  # of the machine that wrote it
        value, keys = reader.load(), reader.load()
        if not isinstance(keys, list) or not all(isinstance(key, str) and key in reader.storages for key in keys):
            raise DamagedPickleError("its list of storages does not fit")
        at = reader.at
        for key in keys:
            self._stream.seek(at)
            size = int.from_bytes(self._stream.read(8), "little") * reader.storages[key].itemsize
            if key in self._places or at + 8 + size > self._size:
                raise DamagedPickleError(f"storage {key[:40]} is not all there")
            self._places[key] = _Place(at + 8, size)
            at += 8 + size
        if at != self._size:
            raise DamagedPickleError(f"{self._size - at:,} bytes follow its storages")
        return value

    def _check(self, name: str, ref: TensorRef) -> None:
        """See that a tensor's numbers are all in its storage, before anything is read."""
        storage = ref.storage
        if ref.dtype not in READABLE or storage.dtype not in READABLE:
            kind = str(ref.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"'{self._file}' holds {kind} in '{name}': float64, float32, float16, bfloat16 and whole numbers of up "
                "to 64 bits are read. Save it in one of these"
            )
        size = self._size_of(storage)
        if size is None or size != storage.count * storage.dtype.itemsize:
            raise self._damaged(f"the numbers of '{name}' are not all there")
        numbers = (size - storage.offset * storage.dtype.itemsize) // ref.dtype.itemsize
        last = ref.offset + sum((n - 1) * step for n, step in zip(ref.shape, ref.strides, strict=True))
        if math.prod(ref.shape) and (last >= numbers or math.prod(ref.shape) > numbers):
            raise CheckpointError(f"'{self._file}' is damaged: {name} claims shape {list(ref.shape)} on fewer bytes")

    def _size_of(self, storage: StorageRef) -> int | None:
        if self._archive is None:
            place = self._places.get(storage.key)
            return None if place is None else place.size
        entry = self._archive.entries.get(f"{self._folder}data/{storage.key}")
        return None if entry is None else entry.size

    def _tensor(self, ref: TensorRef) -> Tensor:
        if not math.prod(ref.shape):
            return torch.empty(ref.shape, dtype=ref.dtype)
        storage = ref.storage
        raw = self._bytes(storage)[storage.offset * storage.dtype.itemsize :]
        numbers = raw[: len(raw) // ref.dtype.itemsize * ref.dtype.itemsize].view(ref.dtype)
        return numbers.as_strided(ref.shape, ref.strides, numbers.storage_offset() + ref.offset)

    def _bytes(self, storage: StorageRef) -> Tensor:
        """Return a storage's bytes (n,), uint8, read once."""
        if storage.key not in self._read:
            if self._archive is not None:
                raw = self._archive.read(f"{self._folder}data/{storage.key}")
            else:
                place = self._places[storage.key]
                raw = torch.empty(place.size, dtype=torch.uint8)
                self._stream.seek(place.start)
                if self._stream.readinto(raw.numpy().data) != place.size:  # type: ignore[attr-defined]
                    raise self._damaged(f"storage {storage.key} is not all there")
            if self._swapped and storage.dtype.itemsize > 1:
                raw.numpy().view(f"u{storage.dtype.itemsize}").byteswap(inplace=True)
            self._read[storage.key] = raw
        return self._read[storage.key]
