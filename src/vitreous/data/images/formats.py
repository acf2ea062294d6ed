"""The supported image formats with their limits, and common formats that are not supported.

The format is detected from a file's first bytes, never from its extension. The limits keep one file within 2 s of
processor time and 512 MB of memory (docs/explanation/reliability.md); ``benchmarks/fuzzing/images.py`` checks them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "FORMATS",
    "MAX_BYTES",
    "MAX_SIDE",
    "UNSUPPORTED_EXTENSIONS",
    "Format",
    "detect_format",
    "detect_unsupported",
    "image_extensions",
]

MAX_BYTES = 152 << 20
"""Largest file that is opened; an uncompressed 48-megapixel TIFF has 144 MB."""

MAX_SIDE = 65_535
"""Longest side in pixels, as in JPEG: the memory that resizing needs grows with the side."""


@dataclass(frozen=True, slots=True)
class Format:
    """A supported format and its limits."""

    extensions: tuple[str, ...]  # lower case, with the dot
    max_pixels: int  # larger images are not decoded
    full_size_pixels: int  # larger images are decoded at half their width and height, or less
    in_process_pixels: int  # larger images are decoded in a watched process; 0: all of them
    in_process_bytes: int  # larger files are decoded in a watched process
    bytes_per_pixel: int  # memory that decoding and conversion take


FORMATS = {
    "JPEG": Format((".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"), 210_000_000, 40_000_000, 64_000_000, 48 << 20, 8),
    "PNG": Format((".png", ".apng"), 50_000_000, 32_000_000, 26_000_000, 24 << 20, 8),
    "WEBP": Format((".webp",), 25_000_000, 16_000_000, 8_000_000, 16 << 20, 18),
    "GIF": Format((".gif",), 50_000_000, 32_000_000, 26_000_000, 24 << 20, 8),
    "BMP": Format((".bmp",), 50_000_000, 32_000_000, 26_000_000, 96 << 20, 8),
    "TIFF": Format((".tif", ".tiff"), 50_000_000, 32_000_000, 26_000_000, 96 << 20, 8),
    "AVIF": Format((".avif",), 50_000_000, 24_000_000, 0, 0, 10),
    "HEIF": Format((".heic", ".heif", ".hif"), 26_000_000, 26_000_000, 0, 0, 8),  # HEIC photos from phones
}
"""Supported formats, by Pillow's names."""

_UNSUPPORTED = {
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
UNSUPPORTED_EXTENSIONS = {extension: name for name, group in _UNSUPPORTED.items() for extension in group}
"""Unsupported formats by extension. Such files are reported as unreadable, not ignored."""

_SIGNATURES = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
_UNSUPPORTED_SIGNATURES = {
    "PNM": tuple(b"P%d%c" % (kind, space) for kind in range(1, 8) for space in b"\n "),
    "JPEG 2000": (b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"),
    "QOI": (b"qoif",),
    "ICO": (b"\0\0\1\0", b"\0\0\2\0"),
    "JPEG XL": (b"\0\0\0\x0cJXL \r\n\x87\n",),
    "Photoshop": (b"8BPS\0",),
    "EPS": (b"%!PS-Adobe",),
}
_BMP_HEADER_BYTES = (12, 16, 40, 52, 56, 64, 108, 124)  # checked because "BM" alone begins many other files
_AVIF_BRANDS = (b"avif", b"avis")
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def image_extensions() -> tuple[str, ...]:
    """Return the extensions of all known image formats, supported or not."""
    return (*(one for row in FORMATS.values() for one in row.extensions), *UNSUPPORTED_EXTENSIONS)


def detect_format(start: bytes) -> str:
    """Return the name of the supported format that a file's first 64 bytes belong to; empty if none."""
    for name, signatures in _SIGNATURES.items():
        if start.startswith(signatures):
            return name
    if start[:2] == b"BM" and int.from_bytes(start[14:18], "little") in _BMP_HEADER_BYTES:
        return "BMP"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WEBP"
    if start[4:8] == b"ftyp":  # ISO base media file: major brand, version, compatible brands
        brands = [start[8:12], *(start[at : at + 4] for at in range(16, min(len(start), start[3]), 4))]
        if brands[0] in _AVIF_BRANDS or (brands[0] in (b"mif1", b"msf1") and any(b in _AVIF_BRANDS for b in brands)):
            return "AVIF"
        if brands[0] in _HEIC_BRANDS:
            return "HEIF"
    return ""


def detect_unsupported(start: bytes) -> str:
    """Return the name of the unsupported format that a file's first bytes belong to; empty if none."""
    return next((name for name, group in _UNSUPPORTED_SIGNATURES.items() if start.startswith(group)), "")
