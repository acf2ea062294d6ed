"""Damage to real image files: to bytes, to lengths and sizes in headers, and to the apparent file type."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Sequence

from PIL import Image

from fuzzing.model_mutations import cut

KINDS = (
    *("jpeg", "progressive jpeg", "png", "palette png", "webp", "lossless webp", "gif", "tiff", "lzw tiff", "bmp"),
    *("animated webp", "animated gif", "packbits tiff", "deflate tiff", "jpeg tiff", "paged tiff", "avif", "heic"),
    *("ppm", "pgm", "qoi", "ico", "jpeg 2000"),  # formats that are always refused
)

_STARTS = (  # first bytes of other file types
    *(b"PK\x03\x04\x14\0\0\0\x08\0", b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'>", b"%PDF-1.7\n"),
    *(
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"\x1f\x8b\x08\0",
        b"MZ",
        b"#!/bin/sh\n",
        b"RIFF\xff\xff\xff\xffWEBPVP8X",
        b"GIF89a",
    ),
    *(
        b"BM",
        b"II*\0\x08\0\0\0",
        b"MM\0*",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"P6 9999999 9999999 255\n",
        b"qoif",
    ),
    *(b"\0\0\x01\0\xff\xff", b"\0\0\0\x0cjP  \r\n\x87\n", b"\0\0\0\x18ftypavif"),
)
_NUMBERS = (0, 1, 2, 3, 255, 256, 32767, 32768, 50_000, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


_OPTIONS: dict[str, dict[str, object]] = {
    "progressive jpeg": {"progressive": True},
    "lossless webp": {"lossless": True},
    "lzw tiff": {"compression": "tiff_lzw"},
    "packbits tiff": {"compression": "packbits"},
    "deflate tiff": {"compression": "tiff_adobe_deflate"},
    "jpeg tiff": {"compression": "jpeg"},
    "avif": {"speed": 9},
}
_FORMS = {"jpeg 2000": "JPEG2000", "pgm": "PPM"}


def files(images: Sequence[Image.Image], kinds: Sequence[str] = KINDS) -> dict[str, list[bytes]]:
    """Encode images in these formats; return the files by format. HEIC needs pillow-heif."""
    found: dict[str, list[bytes]] = {}
    for kind in kinds:
        form = _FORMS.get(kind, kind.split()[-1].upper())
        options = dict(_OPTIONS.get(kind, {}))
        for image in images:
            target = io.BytesIO()
            stored = image.quantize(32) if kind in ("palette png", "gif", "animated gif") else image
            stored = image.convert("L") if kind == "pgm" else stored
            if kind.startswith(("animated", "paged")):
                options |= {"save_all": True, "append_images": [stored.rotate(n) for n in (5, 10)]}
            if kind == "heic":
                try:
                    import pillow_heif
                except ImportError:
                    continue
                pillow_heif.from_pillow(stored).save(target, quality=60)
            else:
                stored.save(target, form, **options)
            found.setdefault(kind, []).append(target.getvalue())
    return found


def large_png(width: int = 50_000, height: int = 50_000) -> bytes:
    """Return a grey PNG of the given size with correct checksums and hardly any data."""
    body = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = _chunk(b"IHDR", body) + _chunk(b"IDAT", zlib.compress(bytes(100_000))) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def mutated(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Return a damaged file and a description of the damage."""
    what = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        step = chance.choice((flip, flip, cut, number, number, repeat, lengthen, disguise, chunks, chunks))
        if content:
            content = step(content, chance)
            what.append(step.__name__)
    return content, ", ".join(what)


def flip(content: bytes, chance: random.Random) -> bytes:
    """Flip up to 16 bits, half of the time in the header."""
    damaged = bytearray(content)
    span = len(damaged) if chance.random() < 0.5 else min(len(damaged), 200)
    for _ in range(chance.choice((1, 1, 2, 16))):
        damaged[chance.randrange(span)] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def number(content: bytes, chance: random.Random) -> bytes:
    """Write another number of 2 or 4 bytes, of either order, over some of the first: a length, a size, an offset."""
    form = chance.choice(("<H", ">H", "<I", ">I"))
    size = struct.calcsize(form)
    value = chance.choice(_NUMBERS) & (2 ** (8 * size) - 1)
    at = chance.randrange(max(1, min(len(content), 300) - size))
    return content[:at] + struct.pack(form, value) + content[at + size :]


def repeat(content: bytes, chance: random.Random) -> bytes:
    """Repeat a part of the file up to 20 times."""
    a, b = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    return content[:b] + content[a:b] * (chance.randrange(1, 20) if b - a < 5000 else 1) + content[b:]


def lengthen(content: bytes, chance: random.Random) -> bytes:
    """Append zeros, noise, another image's start or the file itself."""
    more = (bytes(5000), chance.randbytes(5000), chance.choice(_STARTS) * 3, content)
    return content + chance.choice(more)


def disguise(content: bytes, chance: random.Random) -> bytes:
    """Put the first bytes of another file type before the content or over it."""
    start = chance.choice(_STARTS)
    return start + (content if chance.random() < 0.5 else content[len(start) :])


def chunks(content: bytes, chance: random.Random) -> bytes:
    """In a PNG: change, double, drop or move whole chunks, with checksums that fit; elsewhere, change a number."""
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        return number(content, chance)
    parts, at = [], 8
    while at + 12 <= len(content):
        length, name = struct.unpack_from(">I4s", content, at)
        if at + 12 + length > len(content):
            break
        parts.append((name, content[at + 8 : at + 8 + length]))
        at += 12 + length
    if not parts:
        return content
    place = chance.randrange(len(parts))
    name, body = parts[place]
    if name == b"IHDR" and chance.random() < 0.7 and len(body) == 13:
        sizes = struct.pack(">II", chance.choice(_NUMBERS), chance.choice(_NUMBERS))
        parts[place] = (name, sizes + body[8:] if chance.random() < 0.5 else body[:8] + chance.randbytes(5))
    else:
        bomb = b"key\0\0" + zlib.compress(bytes(30_000_000))  # a text of 30 MB out of 30 KB
        extra = chance.choice(((name, body), (b"zTXt", bomb), (b"iCCP", bomb), (b"eXIf", chance.randbytes(50))))
        extra = chance.choice((extra, (b"acTL", struct.pack(">II", 2**31 - 1, 0)), (b"tRNS", bytes(300))))
        parts[place : place + chance.randrange(2)] = [extra] * chance.choice((0, 1, 1, 3))
    return content[:8] + b"".join(_chunk(name, body) for name, body in parts) + content[at:]


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
