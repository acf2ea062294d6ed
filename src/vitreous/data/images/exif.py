"""The orientation tag in EXIF or XMP metadata, read in bounded time and memory.

Pillow's own reader copies what every entry points to: 64 kB of EXIF can make it allocate 300 MB.
"""

from __future__ import annotations

import re
import struct

from PIL import Image

__all__ = ["TRANSPOSES", "read_orientation", "scan_directory"]

TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transposition that makes stored pixels upright, by EXIF orientation; 1 needs none."""

_ORIENTATION = 0x0112
_MAX_ENTRIES = 4096  # of a directory that are searched; cameras write about 30
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_XMP = re.compile(rb'tiff:Orientation(="|>)([0-9])')
_MAX_XMP_BYTES = 1 << 20


def read_orientation(image: Image.Image) -> int:
    """Return the orientation, 1 to 8, from EXIF, else from XMP; 1 (upright) if it is absent or damaged."""
    block = image.info.get("exif")
    if block is None and (profile := image.info.get("Raw profile type exif")):
        try:
            block = bytes.fromhex("".join(str(profile)[:200_000].split("\n")[3:]))
        except ValueError:
            block = None
    orientation = _exif_orientation(block) if isinstance(block, bytes) else None
    if orientation is None:
        xmp = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp") or b""
        start = xmp[:_MAX_XMP_BYTES]
        match = _XMP.search(start.encode("utf-8", "replace") if isinstance(start, str) else bytes(start))
        orientation = int(match[2]) if match else 1
    return orientation if orientation in TRANSPOSES else 1


def _exif_orientation(block: bytes) -> int | None:
    """Return the orientation tag of the first directory; None if it is absent or damaged."""
    start = 6 if block.startswith(b"Exif\0\0") else 0
    order = {b"II": "<", b"MM": ">"}.get(block[start : start + 2])
    if order is None:
        return None
    try:
        (offset,) = struct.unpack_from(f"{order}I", block, start + 4)
        (count,) = struct.unpack_from(f"{order}H", block, start + offset)
        for n in range(min(count, _MAX_ENTRIES)):
            tag, kind, values, value = struct.unpack_from(f"{order}HHIH", block, start + offset + 2 + 12 * n)
            if tag == _ORIENTATION:
                return int(value) if kind == 3 and values == 1 else None
    except struct.error:  # truncated
        pass
    return None


def scan_directory(block: bytes, order: str, offset: int, big: bool = False) -> tuple[int, dict[int, tuple[int, int]]]:
    """Measure the TIFF directory at ``offset`` without reading its values; ``big`` is for a BigTIFF.

    ``block`` is EXIF from its byte order mark on, or a whole TIFF file. Return the bytes of all values that are stored
    outside the directory, and the type and position of each entry by its tag. A truncated block is a ``struct.error``.
    """
    head, form, width, inline = ("Q", "HHQ", 20, 8) if big else ("H", "HHI", 12, 4)
    (count,) = struct.unpack_from(order + head, block, offset)
    first = offset + struct.calcsize(order + head)
    total, entries = 0, {}
    for n in range(min(count, 65_536)):
        tag, kind, values = struct.unpack_from(order + form, block, first + width * n)
        size = values * _TYPE_BYTES.get(kind, 0)
        total += size if size > inline else 0
        entries[tag] = (kind, first + width * n)
    return total, entries
