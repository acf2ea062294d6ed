"""A strict reader of untrusted zip archives.

The archive must be the whole file, and its entries must not overlap, have unique names, and be stored or deflated.
Python's zipfile accepts more, and readers that search for the directory in different places can be shown different
contents; here one directory determines both what is checked and what is read. A claimed size is a limit, never a
promise. Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from vitreous.errors import CheckpointError

__all__ = ["Archive", "Entry"]

_MAX_DIRECTORY = 1 << 22  # bytes, about 60,000 entries; a model has a few hundred
_MAX_COMMENT = 0xFFFF
# Limits of the unpacked size: ratio to the file's size, and bytes in addition. Both pairs must hold; the first lets
# small files compress well, the second bounds large ones. Weights hardly compress, a zip bomb by a factor of 1000.
_SMALL_RATIO, _SMALL_EXTRA = 32, 1 << 24
_LARGE_RATIO, _LARGE_EXTRA = 4, 1 << 28
_CHUNK = 1 << 20  # bytes that are unpacked at once
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8


@dataclass(frozen=True)
class Entry:
    """A file in an archive; sizes in bytes."""

    start: int  # position of its local header
    packed: int  # compressed
    size: int  # uncompressed
    crc: int  # CRC-32 of the uncompressed bytes
    method: int  # stored or deflated


class Archive:
    """An archive in an open stream; `entries` are by name, in the order of its directory.

    The caller closes the stream. The path `file` and the expected `kind` of file are for messages.
    """

    def __init__(self, stream: IO[bytes], file: Path, kind: str) -> None:
        self._stream, self._file, self._kind = stream, file, kind
        self._size = os.fstat(stream.fileno()).st_size
        try:
            start, length, count = self._directory()
            self.entries: Mapping[str, Entry] = self._entries(start, length, count)
        except struct.error as error:
            raise self._damaged("it ends too early") from error
        claimed = sum(entry.size for entry in self.entries.values())
        if claimed > min(_SMALL_RATIO * self._size + _SMALL_EXTRA, _LARGE_RATIO * self._size + _LARGE_EXTRA):
            raise CheckpointError(
                f"'{file}' has {self._size:,} bytes and would unpack to {claimed:,}: weights never compress that much, "
                "the file is not read"
            )

    def read(self, name: str) -> Tensor:
        """Return an entry's uncompressed bytes as a new uint8 tensor (n,)."""
        entry = self.entries[name]
        self._stream.seek(self._data_start(name, entry))
        content = torch.empty(entry.size, dtype=torch.uint8)
        view = content.numpy().data
        if entry.method == _STORED:
            count = self._stream.readinto(view) if entry.size else 0  # type: ignore[attr-defined]
        else:
            count = self._inflate(name, entry, view)
        if count != entry.size:
            raise self._damaged(f"'{name}' ends too early")
        if zlib.crc32(view) != entry.crc:
            raise CheckpointError(f"'{self._file}' is damaged: the checksum of '{name}' is wrong")
        return content

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"'{self._file}' is no complete {self._kind}, it was cut off or damaged: {why}")

    def _directory(self) -> tuple[int, int, int]:
        """Return the directory's position, its length in bytes and its number of entries."""
        tail_start = max(0, self._size - _END.size - _MAX_COMMENT)
        self._stream.seek(tail_start)
        tail = self._stream.read(self._size - tail_start)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0:
            raise self._damaged("it has no directory at its end")
        _, disk, _, disk_count, count, length, start, comment = _END.unpack_from(tail, at)
        if at + _END.size + comment != len(tail):
            raise self._damaged("bytes follow its directory")
        end = tail_start + at
        locator = end - _LOCATOR.size
        if locator >= 0:
            self._stream.seek(locator)
            signature, _, at64, _ = _LOCATOR.unpack(self._stream.read(_LOCATOR.size))
            if signature == b"PK\x06\x07":
                self._stream.seek(min(at64, self._size))
                record = _END64.unpack(self._stream.read(_END64.size))
                signature, record_size, _, _, disk, _, disk_count, count, length, start = record
                if signature != b"PK\x06\x06" or at64 + 12 + record_size != locator:
                    raise self._damaged("the end of its directory is unreadable")
                end = at64
        if disk or disk_count != count:
            raise self._damaged("it is one part of several")
        if start + length != end:
            raise self._damaged("there are bytes before the archive or after its directory")
        if length > _MAX_DIRECTORY:
            raise CheckpointError(
                f"'{self._file}' has a directory of {length:,} bytes, at most {_MAX_DIRECTORY:,} are read"
            )
        return start, length, count

    def _entries(self, start: int, length: int, count: int) -> dict[str, Entry]:
        self._stream.seek(start)
        directory = self._stream.read(length)
        entries: dict[str, Entry] = {}
        at = 0
        while at < length:
            fields = _CENTRAL.unpack_from(directory, at)
            signature, flags, method = fields[0], fields[3], fields[4]
            lengths = fields[10:13]  # of name, extra fields and comment
            following = at + _CENTRAL.size + sum(lengths)
            if signature != b"PK\x01\x02" or following > length:
                raise self._damaged("its directory is unreadable")
            text = directory[at + _CENTRAL.size : at + _CENTRAL.size + lengths[0]]
            extra = directory[at + _CENTRAL.size + lengths[0] : following - lengths[2]]
            name = text.decode("utf-8" if flags & 0x800 else "cp437", "backslashreplace")
            if flags & 0x2041:
                raise CheckpointError(f"'{self._file}' is encrypted ('{name}'): unpack it first")
            if method not in (_STORED, _DEFLATED):
                raise CheckpointError(
                    f"'{self._file}' compresses '{name}' by method {method}, only stored (0) and deflated (8) are read"
                )
            if name in entries:
                raise CheckpointError(f"'{self._file}' is damaged: it has two entries named '{name}'")
            packed, size, entry_start = _sizes(fields[8], fields[9], fields[16], extra)
            if method == _STORED and packed != size:
                raise self._damaged(f"'{name}' has two sizes")
            entries[name] = Entry(entry_start, packed, size, fields[7], method)
            at = following
        if len(entries) != count:
            raise self._damaged(f"it claims {count:,} entries and has {len(entries):,}")
        ranges = sorted((entry.start, entry.start + _LOCAL.size + entry.packed) for entry in entries.values())
        if any(end > begin for (_, end), (begin, _) in zip(ranges, [*ranges[1:], (start, start)], strict=True)):
            raise self._damaged("its entries overlap")
        return entries

    def _data_start(self, name: str, entry: Entry) -> int:
        """Return the position of an entry's data, which follows its local header."""
        self._stream.seek(entry.start)
        fields = _LOCAL.unpack(self._stream.read(_LOCAL.size).ljust(_LOCAL.size, b"\0"))
        if fields[0] != b"PK\x03\x04" or fields[3] != entry.method or fields[2] & 0x2041:
            raise self._damaged(f"'{name}' does not begin where the directory says")
        return entry.start + _LOCAL.size + int(fields[9]) + int(fields[10])

    def _inflate(self, name: str, entry: Entry, view: memoryview) -> int:
        decompressor = zlib.decompressobj(-15)
        remaining, filled, rest = entry.packed, 0, b""
        try:
            while not decompressor.eof and (remaining or rest):
                chunk = rest or self._stream.read(min(remaining, _CHUNK))
                if not rest:
                    remaining -= len(chunk)
                    if not chunk:
                        break
                output = decompressor.decompress(chunk, _CHUNK)
                if filled + len(output) > entry.size:
                    raise self._damaged(f"'{name}' is larger than the directory says")
                view[filled : filled + len(output)] = output
                filled += len(output)
                rest = decompressor.unconsumed_tail
        except zlib.error as error:
            raise self._damaged(f"'{name}' cannot be decompressed") from error
        return filled


def _sizes(packed: int, size: int, start: int, extra: bytes) -> tuple[int, int, int]:
    """Return packed size, size and position; those that are all ones are in the ZIP64 extra field."""
    at, zip64 = 0, b""
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            zip64 = extra[at + 4 : at + 4 + length]
        at += 4 + length
    numbers = [size, packed, start]  # in the order of the ZIP64 field
    for n, number in enumerate(numbers):
        if number == 0xFFFFFFFF:
            (numbers[n],) = struct.unpack_from("<Q", zip64)
            zip64 = zip64[8:]
    return numbers[1], numbers[0], numbers[2]
