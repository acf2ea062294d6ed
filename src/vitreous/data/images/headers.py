"""What a file's header claims, read in bounded time: whether its decoding is cheap for certain, or has to be watched.

Nothing is decoded here. What is refused here is out of proportion for any decoder. What is merely odd is left to one in
a process with limits (:mod:`vitreous.data.images.watched`): nobody can foresee all that a decoder makes of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from vitreous.data.images.exif import directory_bytes
from vitreous.data.images.formats import FORMATS, MAX_SIDE, recognise, refused

__all__ = ["Claim", "UnreadableError", "check_size", "claim_of", "frames_of"]

REMEDY = "save it as PNG or JPEG"
_SMALLER = "save it smaller"

_JPEG_HEADER = 2 << 20  # bytes before the first scan; a colour profile takes up to about 1 MB
_JPEG_SEGMENTS = 200  # before the first scan; cameras write up to about 60, with a profile in pieces
_JPEG_FEW_PASSES = 1_000_000_000  # pixels times scans that take well under a second
_JPEG_MOST_PASSES = 5_000_000_000  # encoders make 10 scans or so, which this allows for any image
_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JPEG_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xDA), 0xFF})  # markers without a length
_PROGRESSIVE_HERE = 30_000_000  # pixels; all coefficients of a progressive image are held
_PNG_CHUNKS = 20_000  # of a PNG that is decoded here; encoders write 8 kB or more into each
_PNG_PACKED = 64  # compressed chunks beside the pixels, 1 MB each at most
_PNG_RAW = 160 << 20  # bytes of rows
_GIF_BLOCKS = 2_000  # before the first frame
_RLE_PIXELS = 2_000_000  # Pillow's decoder of such a BMP is written in Python
_DIRECTORY = 4 << 20  # bytes that the entries of a TIFF's or EXIF's directory hold
_STRIPS = 100_000
_OTHER_PIXELS = 64_000_000  # of an image that the caller opened in another format
_EXTENTS = 1000  # of items in an ISO media file, such as tiles and thumbnails
_FRAMES = 10_000  # that are counted
_STEPS = 200_000  # blocks that are passed to count them

_TIFF_COMPRESSIONS = {
    **{1: "none", 2: "CCITT", 3: "CCITT group 3", 4: "CCITT group 4", 5: "LZW", 7: "JPEG", 8: "deflate"},
    **{32773: "PackBits", 32946: "deflate"},
}
_TIFF_HERE = (1, 5, 8, 32773, 32946)
_POINTERS = (34665, 34853, 40965)  # EXIF, GPS and interoperability directories, which Pillow reads too


class UnreadableError(Exception):
    """Why an image cannot be read, without its name."""


class Claim(NamedTuple):
    """What a header says.

    Attributes:
        form: Name of the format, as in :data:`vitreous.data.images.formats.FORMATS`.
        pixels: As the header says; 0 where that was not found out.
        here: Whether it is certain to be decoded within the limits.
        held: Bytes of memory that decoding takes beside the image itself.
    """

    form: str
    pixels: int
    here: bool
    held: int = 0


def claim_of(content: bytes) -> Claim:
    """Read the header of a file's bytes.

    Raises:
        UnreadableError: If it is no image, of a format that is not read, or asks for too much.
    """
    if not content:
        raise UnreadableError("empty, 0 bytes")
    start = content[:64]
    form = recognise(start)
    if not form:
        other = refused(start)
        raise UnreadableError(f"{other} images are not read: {REMEDY}" if other else "not a picture")
    try:
        width, height, plain, *held = _READERS[form](content)
    except (struct.error, IndexError):  # it ends within its header, or points beyond its end
        return Claim(form, 0, False)
    row = FORMATS[form]
    pixels = width * height
    if pixels > row.max_pixels or width > MAX_SIDE or height > MAX_SIDE:
        check_size(form, width, height)
    return Claim(form, pixels, plain and 0 < pixels <= row.here_pixels and len(content) <= row.here_bytes, *held)


def check_size(form: str, width: int, height: int) -> None:
    """Refuse an image of too many pixels, or of too long a side.

    Raises:
        UnreadableError: If it is too large.
    """
    limit = FORMATS[form].max_pixels if form in FORMATS else _OTHER_PIXELS
    if width * height > limit:
        raise UnreadableError(f"{width * height:,} pixels, the limit for {form or 'an image'} is {limit:,}: {_SMALLER}")
    if max(width, height) > MAX_SIDE:
        raise UnreadableError(f"{width:,} x {height:,} pixels, the limit for a side is {MAX_SIDE:,}: cut it")


def _jpeg(content: bytes) -> tuple[int, int, bool, int]:
    """Walk the segments up to the first scan; also gives the bytes that a progressive image's coefficients take."""
    at, plain, progressive = 2, True, False
    width = height = components = exif = 0
    for _ in range(_JPEG_SEGMENTS):
        if content[at] != 0xFF or at > _JPEG_HEADER:  # junk between segments, which Pillow passes byte by byte
            return width, height, False, 0
        marker = content[at + 1]
        if marker == 0xDA:
            break
        length = content[at + 2] << 8 | content[at + 3]
        if marker in _JPEG_FRAMES:
            plain = plain and not width and marker <= 0xC2  # others: arithmetic, lossless, hierarchical
            progressive = marker == 0xC2
            height, width = content[at + 5] << 8 | content[at + 6], content[at + 7] << 8 | content[at + 8]
            components = content[at + 9]
        elif marker == 0xE1 and content.startswith(b"Exif\0\0", at + 4):
            exif += 1
            plain = plain and exif == 1 and _cheap_exif(content[at + 10 : at + 2 + length])
        elif marker in _JPEG_ALONE:
            return width, height, False, 0
        at += 2 + length
    else:
        return width, height, False, 0
    pixels = width * height
    if plain and not progressive and content[at + 4] == components:  # one scan has it all, and no other is read
        return width, height, True, 0
    passes = content.count(b"\xff\xda", at)  # each begins with this marker
    if passes * pixels > _JPEG_MOST_PASSES:
        asked = f"{passes:,} passes over {width} x {height} pixels"
        raise UnreadableError(f"asks for {asked}, the limit is {_JPEG_MOST_PASSES // pixels:,}: {REMEDY} again")
    if progressive and (pixels > _PROGRESSIVE_HERE or len(content) > 24 << 20):
        plain = False
    plain = plain and passes <= 100 and passes * pixels <= _JPEG_FEW_PASSES
    return width, height, plain, 6 * pixels if progressive else 0


def _cheap_exif(block: bytes) -> bool:
    """Whether Pillow's reader of EXIF, which a JPEG without a resolution of its own meets, copies little."""
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None:
        return True  # it is refused at once
    try:
        (offset,) = struct.unpack_from(f"{order}I", block, 4)
        return directory_bytes(block, order, offset)[0] <= max(2 * len(block), 4096)
    except struct.error:
        return True  # it is given up where the block ends


def _png(content: bytes) -> tuple[int, int, bool]:
    """Walk the chunks."""
    length, tag, width, height, depth, colour, _, _, interlaced = struct.unpack_from(">I4sIIBBBBB", content, 8)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 4)
    plain = tag == b"IHDR" and length == 13
    at, chunks, packed = 8, 0, 0
    while at + 12 <= len(content) and plain:
        length, tag = struct.unpack_from(">I4s", content, at)
        packed += tag in (b"zTXt", b"iTXt", b"iCCP")
        chunks += 1
        at += 12 + length
        plain = chunks <= _PNG_CHUNKS and packed <= _PNG_PACKED
    raw = (width * depth * channels // 8 + 1) * height * (2 if interlaced else 1)
    return width, height, plain and raw <= _PNG_RAW


def _gif(content: bytes) -> tuple[int, int, bool]:
    """Walk the blocks up to the first frame, which may be larger than the canvas."""
    width, height, flags = struct.unpack_from("<HHB", content, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    for _ in range(_GIF_BLOCKS):
        if content[at] == 0x2C:
            left, top, wide, tall = struct.unpack_from("<HHHH", content, at + 1)
            return max(width, left + wide), max(height, top + tall), True
        if content[at] != 0x21:
            return width, height, False
        at += 2
        while content[at]:
            at += 1 + content[at]
            if at > 1 << 20:  # Pillow joins comments piece by piece
                return width, height, False
        at += 1
    return width, height, False


def _webp(content: bytes) -> tuple[int, int, bool]:
    """The canvas, from the first chunk."""
    chunk = content[12:16]
    if chunk == b"VP8 " and content[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF, True
    if chunk == b"VP8L" and content[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", content, 21)
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1, True
    if chunk == b"VP8X":
        sides = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (24, 27))
        return next(sides), next(sides), len(content) >= 30
    return 0, 0, False


def _bmp(content: bytes) -> tuple[int, int, bool]:
    """The information header."""
    (size,) = struct.unpack_from("<I", content, 14)
    if size == 12:
        width, height = struct.unpack_from("<HH", content, 18)
        return width, height, True
    width, height, _, bits, compression = struct.unpack_from("<iiHHI", content, 18)
    width, height = abs(width), abs(height)
    if compression in (1, 2):
        if width * height > _RLE_PIXELS:
            pixels = f"{width * height:,} pixels"
            raise UnreadableError(f"{pixels}, the limit for run lengths in BMP is {_RLE_PIXELS:,}: {REMEDY}")
        return width, height, False
    if compression not in (0, 3, 6):
        raise UnreadableError(f"compression {compression} in BMP is not read: {REMEDY}")
    return width, height, bits in (1, 2, 4, 8, 16, 24, 32)


def _tiff(content: bytes) -> tuple[int, int, bool]:
    """The first directory."""
    order, big = "<" if content[:2] == b"II" else ">", content[2:4] in (b"+\0", b"\0+")
    (offset,) = struct.unpack_from(f"{order}Q" if big else f"{order}I", content, 8 if big else 4)
    total, entries = directory_bytes(content, order, offset, big)

    def value(tag: int, default: int) -> int:
        if tag not in entries:
            return default
        kind, at = entries[tag]
        form = {1: "B", 3: "H", 4: "I", 16: "Q"}.get(kind)
        return int(struct.unpack_from(order + form, content, at + (12 if big else 8))[0]) if form else default

    compression = value(259, 1)
    if compression not in _TIFF_COMPRESSIONS:
        raise UnreadableError(f"compression {compression} in TIFF is not read: {REMEDY}")
    for pointer in _POINTERS:
        if pointer in entries:
            total += directory_bytes(content, order, value(pointer, 0), big)[0]
    width, height = value(256, 0), value(257, 0)
    strips = -(-height // max(1, value(278, height))) if 322 not in entries else 0
    tile = (value(322, 1), value(323, 1))
    tiles = -(-width // max(1, tile[0])) * -(-height // max(1, tile[1])) if 322 in entries else 0
    small = max(strips, tiles) <= _STRIPS and tile[0] * tile[1] <= 1 << 24
    samples = value(277, 1)
    plain = small and total <= _DIRECTORY and len(entries) < 1000 and samples <= 4 and compression in _TIFF_HERE
    return width, height, plain


def _iso(content: bytes) -> tuple[int, int, bool]:
    """AVIF and HEIC: the largest extent that is given; all else is the decoder's business, in a watched process."""
    largest, at = (0, 0), 0
    for _ in range(_EXTENTS):
        at = content.find(b"ispe", at, 1 << 20)
        if at < 0:
            break
        width, height = struct.unpack_from(">II", content, at + 8)
        largest = max(largest, (width, height), key=lambda sides: sides[0] * sides[1])
        at += 4
    return *largest, False


_READERS: dict[str, Callable[[bytes], tuple[int, int, bool] | tuple[int, int, bool, int]]] = {
    **{"JPEG": _jpeg, "PNG": _png, "GIF": _gif, "WEBP": _webp, "BMP": _bmp, "TIFF": _tiff, "AVIF": _iso, "HEIF": _iso},
}


def frames_of(content: bytes, form: str) -> int:
    """Frames of a GIF's animation, or pages of a TIFF, up to 10,000; 1 where they cannot be counted."""
    try:
        return max(1, {"GIF": _gif_frames, "TIFF": _tiff_pages}[form](content))
    except (struct.error, IndexError):
        return 1


def _gif_frames(content: bytes) -> int:
    at, found, left = 13 + (3 << (content[10] & 7) + 1 if content[10] & 0x80 else 0), 0, _STEPS
    while left > 0 and found < _FRAMES and content[at] in (0x21, 0x2C):
        if content[at] == 0x2C:
            found += 1
            flags = content[at + 9]
            at += 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
        else:
            at += 2
        while left > 0 and content[at : at + 1] not in (b"", b"\0"):
            at += 1 + content[at]
            left -= 1
        at += 1
        left -= 1
        if at >= len(content):
            break
    return found


def _tiff_pages(content: bytes) -> int:
    order, big = "<" if content[:2] == b"II" else ">", content[2:4] in (b"+\0", b"\0+")
    step, head, width = (f"{order}Q", f"{order}Q", 20) if big else (f"{order}I", f"{order}H", 12)
    (at,) = struct.unpack_from(step, content, 8 if big else 4)
    known: set[int] = set()
    while at and at not in known and len(known) < _FRAMES:
        (count,) = struct.unpack_from(head, content, at)
        known.add(at)
        (at,) = struct.unpack_from(step, content, at + struct.calcsize(head) + width * count)
    return len(known)
