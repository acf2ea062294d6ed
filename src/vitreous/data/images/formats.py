"""The image formats that are read, one line each with its limits, and those that people have and that are not read.

A format is told by a file's first bytes, never by its extension. The limits hold the promise of
:mod:`vitreous.data.images.watched`: 2 s of processor time and 512 MB for one file. They come from measurements of the slowest
good image of each kind; ``benchmarks/fuzz_pictures.py`` checks them with hostile ones.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMATS", "MAX_BYTES", "MAX_SIDE", "REFUSED_EXTENSIONS", "Format", "extensions", "recognise", "refused"]

MAX_BYTES = 152 << 20
"""Bytes of the largest file that is opened; a 48-megapixel photograph as an uncompressed TIFF has 144 MB."""

MAX_SIDE = 65_535
"""Pixels of the longest side, that of JPEG: what is made of an image to resize it grows with its side."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format that is read.

    Args:
        name: As Pillow calls it.
        extensions: Lower case, with the dot.
        max_pixels: Most pixels of an image, before any is decoded.
        whole_pixels: Most pixels of an image that comes at its own size; a larger one comes at a half of its width and
            height, or less, so that this process does not hold as much as the one that decodes it.
        here_pixels: Most pixels that are decoded in this process; larger ones are decoded in a watched process. 0: all
            of them are.
        here_bytes: Most bytes of a file that is decoded in this process.
        space: Bytes of memory per pixel while it is decoded and converted.
    """

    name: str
    extensions: tuple[str, ...]
    max_pixels: int
    whole_pixels: int
    here_pixels: int
    here_bytes: int
    space: int


FORMATS = {
    row.name: row
    for row in (
        Format("JPEG", (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"), 210_000_000, 40_000_000, 64_000_000, 48 << 20, 8),
        Format("PNG", (".png", ".apng"), 50_000_000, 32_000_000, 26_000_000, 24 << 20, 8),
        Format("WEBP", (".webp",), 25_000_000, 16_000_000, 8_000_000, 16 << 20, 18),
        Format("GIF", (".gif",), 50_000_000, 32_000_000, 26_000_000, 24 << 20, 8),
        Format("BMP", (".bmp",), 50_000_000, 32_000_000, 26_000_000, 96 << 20, 8),
        Format("TIFF", (".tif", ".tiff"), 50_000_000, 32_000_000, 26_000_000, 96 << 20, 8),
        Format("AVIF", (".avif",), 50_000_000, 24_000_000, 0, 0, 10),
        Format("HEIF", (".heic", ".heif", ".hif"), 26_000_000, 26_000_000, 0, 0, 8),
    )
}
"""By name. HEIF is what phones call HEIC: 26 megapixels are what its decoder does in the time that a file may take."""

_REFUSED = {
    "PNM": (".ppm", ".pgm", ".pbm", ".pnm", ".pam", ".pfm"),
    "JPEG 2000": (".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx"),
    "QOI": (".qoi",),
    "ICO": (".ico", ".cur"),
    "DIB": (".dib",),
    "JPEG XL": (".jxl",),
    "Photoshop": (".psd", ".psb"),
    "TGA": (".tga",),
    "PCX": (".pcx",),
    "SVG": (".svg", ".svgz"),
    "EPS": (".eps",),
    "camera raw": (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),
}
REFUSED_EXTENSIONS = {extension: name for name, own in _REFUSED.items() for extension in own}
"""Extension of images that are not read, and what they are: they are named as unusable, never passed over."""

_STARTS = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
)
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)  # bytes; two letters alone are the start of too much else
_REFUSED_STARTS = (
    *((b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"), (b"\xff\x4f\xff\x51", "JPEG 2000")),
    *((b"qoif", "QOI"), (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"), (b"8BPS\0", "Photoshop")),
    *((b"\0\0\1\0", "ICO"), (b"\0\0\2\0", "ICO"), (b"%!PS-Adobe", "EPS")),
    *((b"P" + kind + space, "PNM") for kind in (b"1", b"2", b"3", b"4", b"5", b"6", b"7") for space in (b"\n", b" ")),
)
_AVIF = (b"avif", b"avis")
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def extensions() -> tuple[str, ...]:
    """Extensions of all images, read or not."""
    return (*(one for row in FORMATS.values() for one in row.extensions), *REFUSED_EXTENSIONS)


def recognise(start: bytes) -> str:
    """The name of the format that a file's first bytes are of; empty where it is none that is read.

    Args:
        start: The first 64 bytes, or fewer.
    """
    for sign, name in _STARTS:
        if start.startswith(sign):
            return name
    if start[:2] == b"BM" and int.from_bytes(start[14:18], "little") in _BMP_HEADERS:
        return "BMP"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WEBP"
    if start[4:8] == b"ftyp":  # an ISO media file: the major brand, its version, and what else it is compatible with
        brands = [start[8:12], *(start[at : at + 4] for at in range(16, min(len(start), start[3]), 4))]
        if brands[0] in _AVIF or (brands[0] in (b"mif1", b"msf1") and any(brand in _AVIF for brand in brands)):
            return "AVIF"
        if brands[0] in _HEIC:
            return "HEIF"
    return ""


def refused(start: bytes) -> str:
    """What the first bytes are of, among images that are not read; empty where they are of none."""
    return next((name for sign, name in _REFUSED_STARTS if start.startswith(sign)), "")
