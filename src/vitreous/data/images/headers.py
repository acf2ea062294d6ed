"""What a file's header says, read in bounded time: format, size, and whether decoding is certain to be cheap.

Nothing is decoded here. Files that ask for too much are refused; files that are merely unusual are left to a process
with limits (:mod:`vitreous.data.images.watched`), since a decoder's cost cannot be predicted for all of them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from vitreous.data.images.exif import scan_directory
from vitreous.data.images.formats import FORMATS, MAX_SIDE, detect_format, detect_unsupported

__all__ = ["Header", "UnreadableError", "check_size", "count_frames", "read_header"]

_RESAVE = "save it as PNG or JPEG"

_JPEG_HEADER = 2 << 20  # bytes before the first scan; a colour profile takes up to about 1 MB
_JPEG_SEGMENTS = 200  # before the first scan; cameras write up to about 60, counting the pieces of a profile
_JPEG_FEW_PASSES = 1_000_000_000  # pixels x scans that decode in well under a second
_JPEG_MOST_PASSES = 5_000_000_000  # pixels x scans; encoders write about 10 scans, which passes at any size
_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JPEG_NO_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xDA), 0xFF})  # markers without a length field
_PROGRESSIVE_PIXELS = 30_000_000  # decoded in this process: a progressive JPEG keeps all its coefficients in memory
_PNG_CHUNKS = 20_000  # decoded in this process; encoders write 8 kB or more into each
_PNG_COMPRESSED_CHUNKS = 64  # besides the pixels, of at most 1 MB each
_PNG_RAW_BYTES = 160 << 20  # of uncompressed rows
_GIF_BLOCKS = 2_000  # before the first frame
_RLE_PIXELS = 2_000_000  # Pillow's decoder of run-length encoded BMP is written in Python
_DIRECTORY_BYTES = 4 << 20  # of values in the directories of a TIFF file
_STRIPS = 100_000
_OTHER_PIXELS = 64_000_000  # of a PIL image that the caller opened in another format
_EXTENTS = 1000  # of items in an ISO media file, such as tiles and thumbnails
_MAX_FRAMES = 10_000  # that are counted
_MAX_BLOCKS = 200_000  # that are skipped while counting frames

_TIFF_COMPRESSIONS = {
    **{1: "none", 2: "CCITT", 3: "CCITT group 3", 4: "CCITT group 4", 5: "LZW", 7: "JPEG", 8: "deflate"},
    **{32773: "PackBits", 32946: "deflate"},
}
_TIFF_CHEAP_COMPRESSIONS = (1, 5, 8, 32773, 32946)
_TIFF_POINTERS = (34665, 34853, 40965)  # EXIF, GPS and interoperability directories, which Pillow reads too


class UnreadableError(Exception):
    """The reason why an image cannot be read, without its name."""


class Header(NamedTuple):
    """What a header says."""

    format: str  # a key of FORMATS
    pixels: int  # width x height; 0 if unknown
    in_process: bool  # decoding is certain to stay within the limits of one file, so this process may do it
    extra_bytes: int = 0  # memory that decoding takes besides the image


def read_header(content: bytes) -> Header:
    """Read the header of an image file; raise UnreadableError if it is unsupported or asks for too much."""
    if not content:
        raise UnreadableError("empty, 0 bytes")
    start = content[:64]
    name = detect_format(start)
    if not name:
        other = detect_unsupported(start)
        raise UnreadableError(f"{other} images are not supported: {_RESAVE}" if other else "not an image")
    try:
        width, height, is_cheap, *extra_bytes = _READERS[name](content)
    except (struct.error, IndexError):  # the header is truncated, or points past the end
        return Header(name, 0, False)
    limits, pixels = FORMATS[name], width * height
    check_size(name, width, height)
    in_process = is_cheap and 0 < pixels <= limits.in_process_pixels and len(content) <= limits.in_process_bytes
    return Header(name, pixels, in_process, *extra_bytes)


def check_size(format: str, width: int, height: int) -> None:
    """Raise :class:`UnreadableError` if an image has too many pixels, or too long a side."""
    limit = FORMATS[format].max_pixels if format in FORMATS else _OTHER_PIXELS
    if width * height > limit:
        kind = format or "an image"
        raise UnreadableError(f"{width * height:,} pixels, the limit for {kind} is {limit:,}: save it smaller")
    if max(width, height) > MAX_SIDE:
        raise UnreadableError(f"{width:,} x {height:,} pixels, the limit for a side is {MAX_SIDE:,}: crop it")


def _jpeg(content: bytes) -> tuple[int, int, bool, int]:
    """Walk the segments up to the first scan. The last value is the memory of a progressive image's coefficients."""
    at, is_cheap, progressive = 2, True, False
    width = height = components = exif_blocks = 0
    for _ in range(_JPEG_SEGMENTS):
        if content[at] != 0xFF or at > _JPEG_HEADER:  # junk between segments, which Pillow skips byte by byte
            return width, height, False, 0
        marker = content[at + 1]
        if marker == 0xDA:
            break
        length = content[at + 2] << 8 | content[at + 3]
        if marker in _JPEG_FRAMES:
            is_cheap = is_cheap and not width and marker <= 0xC2  # above: arithmetic, lossless, hierarchical
            progressive = marker == 0xC2
            height, width = content[at + 5] << 8 | content[at + 6], content[at + 7] << 8 | content[at + 8]
            components = content[at + 9]
        elif marker == 0xE1 and content.startswith(b"Exif\0\0", at + 4):
            exif_blocks += 1
            is_cheap = is_cheap and exif_blocks == 1 and _is_cheap_exif(content[at + 10 : at + 2 + length])
        elif marker in _JPEG_NO_LENGTH:
            return width, height, False, 0
        at += 2 + length
    else:
        return width, height, False, 0
    pixels = width * height
    if is_cheap and not progressive and content[at + 4] == components:  # a single scan: later ones are not read
        return width, height, True, 0
    scans = content.count(b"\xff\xda", at)
    if scans * pixels > _JPEG_MOST_PASSES:
        limit = _JPEG_MOST_PASSES // pixels
        raise UnreadableError(f"{scans:,} scans of {width} x {height} pixels, the limit is {limit:,}: {_RESAVE} again")
    is_cheap = is_cheap and scans <= 100 and scans * pixels <= _JPEG_FEW_PASSES
    is_cheap = is_cheap and not (progressive and (pixels > _PROGRESSIVE_PIXELS or len(content) > 24 << 20))
    return width, height, is_cheap, 6 * pixels if progressive else 0


def _is_cheap_exif(block: bytes) -> bool:
    """Return whether Pillow's EXIF reader, which it runs on a JPEG without a resolution, copies little."""
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None:
        return True  # Pillow rejects it at once
    try:
        (offset,) = struct.unpack_from(f"{order}I", block, 4)
        return scan_directory(block, order, offset)[0] <= max(2 * len(block), 4096)
    except struct.error:
        return True  # Pillow stops at the end of the block


def _png(content: bytes) -> tuple[int, int, bool]:
    length, tag, width, height, depth, colour, _, _, interlaced = struct.unpack_from(">I4sIIBBBBB", content, 8)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 4)
    is_cheap = tag == b"IHDR" and length == 13
    at, chunks, compressed = 8, 0, 0
    while at + 12 <= len(content) and is_cheap:
        length, tag = struct.unpack_from(">I4s", content, at)
        compressed += tag in (b"zTXt", b"iTXt", b"iCCP")
        chunks += 1
        at += 12 + length
        is_cheap = chunks <= _PNG_CHUNKS and compressed <= _PNG_COMPRESSED_CHUNKS
    raw_bytes = (width * depth * channels // 8 + 1) * height * (2 if interlaced else 1)
    return width, height, is_cheap and raw_bytes <= _PNG_RAW_BYTES


def _gif(content: bytes) -> tuple[int, int, bool]:
    """Walk the blocks up to the first frame, which may be larger than the canvas."""
    width, height, flags = struct.unpack_from("<HHB", content, 6)
    at = 13 + _palette_bytes(flags)
    for _ in range(_GIF_BLOCKS):
        if content[at] == 0x2C:
            left, top, frame_width, frame_height = struct.unpack_from("<HHHH", content, at + 1)
            return max(width, left + frame_width), max(height, top + frame_height), True
        if content[at] != 0x21:
            return width, height, False
        at += 2
        while content[at]:
            at += 1 + content[at]
            if at > 1 << 20:  # Pillow concatenates comments piece by piece, in quadratic time
                return width, height, False
        at += 1
    return width, height, False


def _palette_bytes(flags: int) -> int:
    """Return the size of a GIF colour table, from the flags of its screen or frame."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp(content: bytes) -> tuple[int, int, bool]:
    chunk = content[12:16]
    if chunk == b"VP8 " and content[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF, True
    if chunk == b"VP8L" and content[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", content, 21)
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1, True
    if chunk == b"VP8X":
        width, height = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height, len(content) >= 30
    return 0, 0, False


def _bmp(content: bytes) -> tuple[int, int, bool]:
    (size,) = struct.unpack_from("<I", content, 14)
    if size == 12:
        width, height = struct.unpack_from("<HH", content, 18)
        return width, height, True
    width, height, _, bits, compression = struct.unpack_from("<iiHHI", content, 18)
    width, height = abs(width), abs(height)
    if compression in (1, 2):
        if width * height > _RLE_PIXELS:
            pixels = f"{width * height:,} pixels"
            raise UnreadableError(f"{pixels}, the limit for run-length encoded BMP is {_RLE_PIXELS:,}: {_RESAVE}")
        return width, height, False
    if compression not in (0, 3, 6):
        raise UnreadableError(f"BMP compression {compression} is not supported: {_RESAVE}")
    return width, height, bits in (1, 2, 4, 8, 16, 24, 32)


def _tiff(content: bytes) -> tuple[int, int, bool]:
    order, big, offset = _tiff_start(content)
    total, entries = scan_directory(content, order, offset, big)

    def value(tag: int, default: int) -> int:
        if tag not in entries:
            return default
        kind, at = entries[tag]
        form = {1: "B", 3: "H", 4: "I", 16: "Q"}.get(kind)
        return int(struct.unpack_from(order + form, content, at + (12 if big else 8))[0]) if form else default

    compression = value(259, 1)
    if compression not in _TIFF_COMPRESSIONS:
        raise UnreadableError(f"TIFF compression {compression} is not supported: {_RESAVE}")
    for pointer in _TIFF_POINTERS:
        if pointer in entries:
            total += scan_directory(content, order, value(pointer, 0), big)[0]
    width, height = value(256, 0), value(257, 0)
    strips = -(-height // max(1, value(278, height))) if 322 not in entries else 0
    tile_width, tile_height = value(322, 1), value(323, 1)
    tiles = -(-width // max(1, tile_width)) * -(-height // max(1, tile_height)) if 322 in entries else 0
    is_cheap = max(strips, tiles) <= _STRIPS and tile_width * tile_height <= 1 << 24
    is_cheap = is_cheap and total <= _DIRECTORY_BYTES and len(entries) < 1000 and value(277, 1) <= 4  # samples
    return width, height, is_cheap and compression in _TIFF_CHEAP_COMPRESSIONS


def _tiff_start(content: bytes) -> tuple[str, bool, int]:
    """Return a TIFF file's byte order, whether it is a BigTIFF, and the offset of its first directory."""
    order, big = "<" if content[:2] == b"II" else ">", content[2:4] in (b"+\0", b"\0+")
    (offset,) = struct.unpack_from(f"{order}Q" if big else f"{order}I", content, 8 if big else 4)
    return order, big, offset


def _iso(content: bytes) -> tuple[int, int, bool]:
    """Return the largest extent that an AVIF or HEIC file declares; a watched process decodes it in any case."""
    largest, at = (0, 0), 0
    for _ in range(_EXTENTS):
        at = content.find(b"ispe", at, 1 << 20)
        if at < 0:
            break
        largest = max(largest, struct.unpack_from(">II", content, at + 8), key=math.prod)
        at += 4
    return *largest, False


_READERS: dict[str, Callable[[bytes], tuple[Any, ...]]] = {
    "JPEG": _jpeg, "PNG": _png, "GIF": _gif, "WEBP": _webp, "BMP": _bmp, "TIFF": _tiff, "AVIF": _iso, "HEIF": _iso
}  # fmt: skip


def count_frames(content: bytes, format: str) -> int:
    """Count the frames of a GIF or the pages of a TIFF, up to 10,000; 1 if they cannot be counted."""
    try:
        return max(1, _gif_frames(content) if format == "GIF" else _tiff_pages(content))
    except (struct.error, IndexError):
        return 1


def _gif_frames(content: bytes) -> int:
    at, frames, blocks = 13 + _palette_bytes(content[10]), 0, 0
    while blocks < _MAX_BLOCKS and frames < _MAX_FRAMES and content[at] in (0x21, 0x2C):
        if content[at] == 0x2C:
            frames += 1
            at += 11 + _palette_bytes(content[at + 9])
        else:
            at += 2
        while blocks < _MAX_BLOCKS and content[at : at + 1] not in (b"", b"\0"):
            at += 1 + content[at]
            blocks += 1
        at += 1
        blocks += 1
        if at >= len(content):
            break
    return frames


def _tiff_pages(content: bytes) -> int:
    order, big, at = _tiff_start(content)
    pointer, count_type, width = (f"{order}Q", f"{order}Q", 20) if big else (f"{order}I", f"{order}H", 12)
    visited: set[int] = set()
    while at and at not in visited and len(visited) < _MAX_FRAMES:
        (count,) = struct.unpack_from(count_type, content, at)
        visited.add(at)
        (at,) = struct.unpack_from(pointer, content, at + struct.calcsize(count_type) + width * count)
    return len(visited)
