"""How an image is to be turned, from its EXIF or XMP block, in time and memory that a hostile block cannot raise.

Pillow's own reader copies what every entry of a block points to: 64 kB can ask for 300 MB, and a PNG's block for more.
"""

from __future__ import annotations

import re
import struct

from PIL import Image

__all__ = ["UPRIGHT", "directory_bytes", "orientation_of"]

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By EXIF orientation, how to turn the stored pixels so that they stand upright."""

_ORIENTATION = 0x0112
_ENTRIES = 4096  # of a directory that are looked at; cameras write about 30
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # by type
_XMP = re.compile(rb'tiff:Orientation(="|>)([0-9])')
_XMP_BYTES = 1 << 20


def orientation_of(image: Image.Image) -> int:
    """The orientation that an image's EXIF says, else its XMP: 1 to 8; a damaged block counts as none, as upright."""
    block = image.info.get("exif")
    if block is None and (profile := image.info.get("Raw profile type exif")):
        try:
            block = bytes.fromhex("".join(str(profile)[:200_000].split("\n")[3:]))
        except ValueError:
            block = None
    found = _orientation(block) if isinstance(block, bytes) else None
    if found is None:
        xmp = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp") or b""
        text = xmp[:_XMP_BYTES].encode("utf-8", "replace") if isinstance(xmp, str) else bytes(xmp[:_XMP_BYTES])
        match = _XMP.search(text)
        found = int(match[2]) if match else 1
    return found if found in UPRIGHT else 1


def _orientation(block: bytes) -> int | None:
    """What the first directory of an EXIF block says; None where it says nothing, or is damaged."""
    start = 6 if block.startswith(b"Exif\0\0") else 0
    order = {b"II": "<", b"MM": ">"}.get(block[start : start + 2])
    if order is None:
        return None
    try:
        (offset,) = struct.unpack_from(f"{order}I", block, start + 4)
        (count,) = struct.unpack_from(f"{order}H", block, start + offset)
        for n in range(min(count, _ENTRIES)):
            tag, kind, values, value = struct.unpack_from(f"{order}HHIH", block, start + offset + 2 + 12 * n)
            if tag == _ORIENTATION:
                return int(value) if kind == 3 and values == 1 else None
    except struct.error:  # it ends before what it announces
        return None
    return None


def directory_bytes(block: bytes, order: str, offset: int, big: bool = False) -> tuple[int, dict[int, tuple[int, int]]]:
    """How much all entries of a directory hold, and where each of them is.

    Args:
        block: EXIF from its byte order on, or a whole TIFF.
        order: ``<`` or ``>``.
        offset: Of the directory.
        big: Whether it is of BigTIFF.

    Returns:
        Bytes in all, and by tag its type and the position of its entry.

    Raises:
        struct.error: If the block ends before.
    """
    head, form, width, inline = ("Q", "HHQ", 20, 8) if big else ("H", "HHI", 12, 4)
    (count,) = struct.unpack_from(order + head, block, offset)
    first = offset + struct.calcsize(order + head)
    total, entries = 0, {}
    for n in range(min(count, 65_536)):
        tag, kind, values = struct.unpack_from(order + form, block, first + width * n)
        size = values * _BYTES.get(kind, 0)
        total += size if size > inline else 0
        entries[tag] = (kind, first + width * n)
    return total, entries
