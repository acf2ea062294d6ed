"""Zip archives of strangers: the same directory decides what is checked and what is read, and no size is believed.

Strict: the archive is the whole file, entries do not overlap, have names of their own, and are stored or deflated. The
standard library's zipfile looks for a directory anywhere in a file, as other readers do in other places.
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
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

_LARGEST_DIRECTORY = 1 << 22  # bytes: some 60,000 entries, a model has a few hundred
_LARGEST_COMMENT = 0xFFFF
_RATIO, _SLACK = 32, 1 << 24  # random weights compress to 0.92, a bomb by a thousand; small files may compress well
_STEADY, _ROOM = 4, 1 << 28  # what a large file may claim besides
_PIECE = 1 << 20  # bytes that are unpacked at once
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8


@dataclass(frozen=True)
class Entry:
    """A file in an archive.

    Args:
        start: Of its local header, in bytes from the archive's start.
        packed: Bytes that it takes there.
        size: Bytes that it has unpacked.
        crc: Checksum of these.
        method: 0 stored, 8 deflated.
    """

    start: int
    packed: int
    size: int
    crc: int
    method: int


class Archive:
    """The entries of an archive, by name, in the order of its directory.

    Args:
        stream: An open file, which stays the caller's.
        file: Its path, for messages.
        kind: What it should be, for messages.

    Raises:
        CheckpointError: If it is no whole archive, is encrypted, has two entries of one name, or would unpack to far
            more than it has.
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
        if claimed > min(_RATIO * self._size + _SLACK, _STEADY * self._size + _ROOM):
            raise CheckpointError(
                f"'{file}' has {self._size:,} bytes and would unpack to {claimed:,}: weights never compress that much, "
                "refused"
            )

    def read(self, name: str) -> Tensor:
        """Return an entry's bytes (n,), uint8, in memory that is the tensor's own.

        Raises:
            CheckpointError: If they do not fit their checksum, or what the directory says of them.
        """
        entry = self.entries[name]
        self._stream.seek(self._data(name, entry))
        content = torch.empty(entry.size, dtype=torch.uint8)
        view = content.numpy().data
        if entry.method == _STORED:
            count = self._stream.readinto(view) if entry.size else 0  # type: ignore[attr-defined]
        else:
            count = self._inflate(name, entry, view)
        if count != entry.size:
            raise self._damaged(f"'{name}' ends too early")
        if zlib.crc32(view) != entry.crc:
            raise CheckpointError(f"'{self._file}' is damaged: the checksum of '{name}' does not fit")
        return content

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"'{self._file}' is no whole {self._kind}, it was cut off or damaged: {why}")

    def _directory(self) -> tuple[int, int, int]:
        """Return where the directory lies, its length, and how many entries it has."""
        tail_start = max(0, self._size - _END.size - _LARGEST_COMMENT)
        self._stream.seek(tail_start)
        tail = self._stream.read(self._size - tail_start)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0:
            raise self._damaged("it has no directory at its end")
        _, disk, _, here, count, length, start, comment = _END.unpack_from(tail, at)
        if at + _END.size + comment != len(tail):
            raise self._damaged("bytes follow its directory")
        end = tail_start + at
        locator = end - _LOCATOR.size
        if locator >= 0:
            self._stream.seek(locator)
            signature, _, at64, _ = _LOCATOR.unpack(self._stream.read(_LOCATOR.size))
            if signature == b"PK\x06\x07":
                self._stream.seek(min(at64, self._size))
                signature, own, _, _, disk, _, here, count, length, start = _END64.unpack(
                    self._stream.read(_END64.size)
                )
                if signature != b"PK\x06\x06" or at64 + 12 + own != locator:
                    raise self._damaged("its directory's end is unreadable")
                end = at64
        if disk or here != count:
            raise self._damaged("it is one part of several")
        if start + length != end:
            raise self._damaged("bytes lie before it or behind its directory")
        if length > _LARGEST_DIRECTORY:
            raise CheckpointError(f"'{self._file}' has a directory of {length:,} bytes: no model has, refused")
        return start, length, count

    def _entries(self, start: int, length: int, count: int) -> dict[str, Entry]:
        """Read the directory."""
        self._stream.seek(start)
        directory = self._stream.read(length)
        entries: dict[str, Entry] = {}
        at = 0
        while at < length:
            fields = _CENTRAL.unpack_from(directory, at)
            signature, flags, method = fields[0], fields[3], fields[4]
            lengths = fields[10:13]  # of the name, of what is extra, of the comment
            ends = at + _CENTRAL.size + sum(lengths)
            if signature != b"PK\x01\x02" or ends > length:
                raise self._damaged("its directory is unreadable")
            text = directory[at + _CENTRAL.size : at + _CENTRAL.size + lengths[0]]
            extra = directory[at + _CENTRAL.size + lengths[0] : ends - lengths[2]]
            name = text.decode("utf-8" if flags & 0x800 else "cp437", "backslashreplace")
            if flags & 0x2041:
                raise CheckpointError(f"'{self._file}' is encrypted ('{name}'): unpack it first")
            if method not in (_STORED, _DEFLATED):
                raise CheckpointError(f"'{self._file}' packs '{name}' in a way that no model file does ({method})")
            if name in entries:
                raise CheckpointError(f"'{self._file}' is damaged: it has two entries of one name ('{name}')")
            packed, size, place = _sizes(fields[8], fields[9], fields[16], extra)
            if method == _STORED and packed != size:
                raise self._damaged(f"'{name}' has two sizes")
            entries[name] = Entry(place, packed, size, fields[7], method)
            at = ends
        if len(entries) != count:
            raise self._damaged(f"it claims {count:,} entries and has {len(entries):,}")
        ranges = sorted((entry.start, entry.start + _LOCAL.size + entry.packed) for entry in entries.values())
        if any(end > after for (_, end), (after, _) in zip(ranges, [*ranges[1:], (start, start)], strict=True)):
            raise self._damaged("its entries overlap")
        return entries

    def _data(self, name: str, entry: Entry) -> int:
        """Return where an entry's bytes begin, behind its local header."""
        self._stream.seek(entry.start)
        fields = _LOCAL.unpack(self._stream.read(_LOCAL.size).ljust(_LOCAL.size, b"\0"))
        if fields[0] != b"PK\x03\x04" or fields[3] != entry.method or fields[2] & 0x2041:
            raise self._damaged(f"'{name}' does not begin where the directory says")
        return entry.start + _LOCAL.size + int(fields[9]) + int(fields[10])

    def _inflate(self, name: str, entry: Entry, view: memoryview) -> int:
        """Unpack into memory that is there already; return how many bytes there were."""
        unpacker = zlib.decompressobj(-15)
        left, filled, rest = entry.packed, 0, b""
        try:
            while not unpacker.eof and (left or rest):
                piece = rest or self._stream.read(min(left, _PIECE))
                if not rest:
                    left -= len(piece)
                    if not piece:
                        break
                made = unpacker.decompress(piece, _PIECE)
                if filled + len(made) > entry.size:
                    raise self._damaged(f"'{name}' is larger than the directory says")
                view[filled : filled + len(made)] = made
                filled += len(made)
                rest = unpacker.unconsumed_tail
        except zlib.error as error:
            raise self._damaged(f"'{name}' cannot be unpacked") from error
        return filled


def _sizes(packed: int, size: int, start: int, extra: bytes) -> tuple[int, int, int]:
    """Return packed size, size and place, from the field of large archives where a number is all ones."""
    at, wide = 0, b""
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + length]
        at += 4 + length
    numbers = [size, packed, start]  # in the order of that field
    for n, number in enumerate(numbers):
        if number == 0xFFFFFFFF:
            (numbers[n],) = struct.unpack_from("<Q", wide)
            wide = wide[8:]
    return numbers[1], numbers[0], numbers[2]
