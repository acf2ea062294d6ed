"""Reads files of ``torch.save``: today's zip archives, and the legacy format before PyTorch 1.6.

The pickle gives descriptions of all tensors; only the requested ones are read, directly into their own memory.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vitreous.checkpoint.untrusted.archive import Archive
from vitreous.checkpoint.untrusted.pickle_globals import DamagedPickleError, StorageRef, TensorRef, UnsafePickleError
from vitreous.checkpoint.untrusted.pickle_reader import PickleReader
from vitreous.errors import CheckpointError

__all__ = ["READABLE", "PyTorchFile"]

_MAX_PICKLE = 1 << 25  # bytes; it has no tensor data
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the legacy format
_SLACK = 1 << 24  # bytes
READABLE = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
"""Dtypes that are read."""


class PyTorchFile:
    """A file written by torch.save, in an open stream; `value` is the saved object with a TensorRef for each tensor.

    The caller closes the stream. The path `file` is for messages.
    """

    def __init__(self, stream: IO[bytes], file: Path) -> None:
        self._stream, self._file = stream, file
        self._size = os.fstat(stream.fileno()).st_size
        self._storages: dict[str, Tensor] = {}  # bytes that were read, by key
        self._ranges: dict[str, tuple[int, int]] = {}  # start and size of each storage in a legacy file
        self._archive: Archive | None = None
        self._byte_swapped = False
        start = stream.read(4)
        try:
            self.value = self._load_archive() if start[:2] == b"PK" else self._load_legacy()
        except UnsafePickleError as error:
            raise CheckpointError(
                f"'{file}' has more than tensors ({str(error)[:200]}): loading it would run code that it names, so it "
                "is not read. Save the state dict alone, best as .safetensors"
            ) from error
        except DamagedPickleError as error:
            raise self._damaged(str(error)) from error

    def tensors(self, refs: Mapping[str, TensorRef]) -> dict[str, Tensor]:
        """Read tensors; those that share a storage share memory."""
        claimed = sum(math.prod(ref.shape) * ref.dtype.itemsize for ref in refs.values())
        held = {ref.storage.key: ref.storage.count * ref.storage.dtype.itemsize for ref in refs.values()}
        for name, ref in refs.items():
            self._check(name, ref)
        if claimed > 2 * sum(held.values()) + _SLACK:
            raise CheckpointError(
                f"'{self._file}' has tensors of {claimed:,} bytes that share {sum(held.values()):,} bytes of storage: "
                "it is not read. Save a copy of each tensor (tensor.clone())"
            )
        return {name: self._tensor(ref) for name, ref in refs.items()}

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"'{self._file}' is no complete PyTorch file, it was cut off or damaged: {why}")

    def _load_archive(self) -> Any:
        """Read the pickle in a zip archive, whose single folder may have any name."""
        self._archive = archive = Archive(self._stream, self._file, "PyTorch file")
        found = [name for name in archive.entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(found) != 1:
            raise self._damaged(f"of its {len(archive.entries):,} entries, {len(found)} are data.pkl, expected 1")
        self._folder = found[0].removesuffix("data.pkl")
        if f"{self._folder}constants.pkl" in archive.entries:
            raise UnsafePickleError("a TorchScript program")
        if archive.entries[found[0]].size > _MAX_PICKLE:
            raise self._damaged(f"its data.pkl has {archive.entries[found[0]].size:,} bytes")
        order = f"{self._folder}byteorder"
        if order in archive.entries and archive.entries[order].size < 16:
            self._byte_swapped = archive.read(order).numpy().tobytes().decode("latin1") not in ("", sys.byteorder)
        return PickleReader(archive.read(found[0]).numpy().tobytes()).load()

    def _load_legacy(self) -> Any:
        """Read the pickles of a legacy file, and where the storages are that follow them."""
        self._stream.seek(0)
        reader = PickleReader(self._stream.read(_MAX_PICKLE))
        if reader.load() != _MAGIC or reader.load() != _PROTOCOL:
            raise DamagedPickleError("it does not begin like one")
        reader.load()  # properties of the machine that wrote the file
        value, keys = reader.load(), reader.load()
        if not isinstance(keys, list) or not all(isinstance(key, str) and key in reader.storages for key in keys):
            raise DamagedPickleError("its list of storages is wrong")
        at = reader.position
        for key in keys:
            self._stream.seek(at)
            size = int.from_bytes(self._stream.read(8), "little") * reader.storages[key].itemsize
            if key in self._ranges or at + 8 + size > self._size:
                raise DamagedPickleError(f"storage {key[:40]} is incomplete")
            self._ranges[key] = (at + 8, size)
            at += 8 + size
        if at != self._size:
            raise DamagedPickleError(f"{self._size - at:,} bytes follow its storages")
        return value

    def _check(self, name: str, ref: TensorRef) -> None:
        """Check that a tensor's data lies within its storage, before anything is read."""
        storage = ref.storage
        if ref.dtype not in READABLE or storage.dtype not in READABLE:
            dtype = str(ref.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"'{self._file}' has dtype {dtype} in '{name}': float64, float32, float16, bfloat16, bool, uint8 and "
                "signed integers are read. Save it in one of these"
            )
        size = self._storage_size(storage)
        if size is None or size != storage.count * storage.dtype.itemsize:
            raise self._damaged(f"the data of '{name}' is incomplete")
        numbers = (size - storage.offset * storage.dtype.itemsize) // ref.dtype.itemsize
        last = ref.offset + sum((n - 1) * stride for n, stride in zip(ref.shape, ref.strides, strict=True))
        if math.prod(ref.shape) and (last >= numbers or math.prod(ref.shape) > numbers):
            raise CheckpointError(f"'{self._file}' is damaged: {name} claims shape {list(ref.shape)} on fewer bytes")

    def _storage_size(self, storage: StorageRef) -> int | None:
        """Return a storage's size in bytes, or None if it is missing."""
        if self._archive is None:
            return self._ranges.get(storage.key, (0, None))[1]
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
        """Return a storage's bytes (n,), uint8. Each storage is read once."""
        if storage.key not in self._storages:
            if self._archive is not None:
                raw = self._archive.read(f"{self._folder}data/{storage.key}")
            else:
                start, size = self._ranges[storage.key]
                raw = torch.empty(size, dtype=torch.uint8)
                self._stream.seek(start)
                if self._stream.readinto(raw.numpy().data) != size:  # type: ignore[attr-defined]
                    raise self._damaged(f"storage {storage.key} is incomplete")
            if self._byte_swapped and storage.dtype.itemsize > 1:
                raw.numpy().view(f"u{storage.dtype.itemsize}").byteswap(inplace=True)
            self._storages[storage.key] = raw
        return self._storages[storage.key]
