"""Image files built by hand: headers that claim a lot, streams that cost a lot, odd containers.

Each builder takes a seeded random source and returns a file's bytes. Mutations of real files are in image_mutations.py.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

_SIDES = (0, 1, 2, 8, 63, 255, 256, 1000, 4096, 8000, 13_370, 16_383, 30_000, 65_500, 65_535)
_WIDE = (*_SIDES, 65_536, 100_000, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def side(chance: random.Random, sides: tuple[int, ...] = _SIDES) -> int:
    return chance.choice(sides) if chance.random() < 0.8 else chance.randrange(1, 20_000)


_LARGE = ((8000, 6200), (13_370, 3700), (65_535, 380), (380, 65_535), (5000, 5000), (7900, 7900), (6000, 4100))


def sides(chance: random.Random, wide: tuple[int, ...] = _SIDES) -> tuple[int, int]:
    """Draw a width and a height: mostly small, sometimes any size, rarely near a format's limit."""
    if (kind := chance.random()) < 0.01:
        return chance.choice(_LARGE)
    if kind < 0.6:
        return chance.randrange(1, 1500), chance.randrange(1, 1500)
    return side(chance, wide), side(chance, wide)


def bmp_rle(chance: random.Random) -> bytes:
    """RLE4 and RLE8, with runs, moves, ends of lines and literal stretches."""
    four = chance.random() < 0.5
    width, height = sides(chance, _WIDE)
    body = bytearray()
    for _ in range(chance.choice((0, 3, 40, 400))):
        step = chance.random()
        if step < 0.4:
            body += bytes((chance.randrange(256), chance.randrange(256)))
        elif step < 0.6:
            body += b"\0\2" + bytes((chance.randrange(256), chance.randrange(256)))  # move
        elif step < 0.8:
            body += b"\0\0"
        else:
            count = chance.randrange(3, 256)
            body += bytes((0, count)) + chance.randbytes(-(-count // (4 if four else 2)) * 2 if not four else count)
    body += b"\0\1" if chance.random() < 0.7 else b""
    return bmp(width, height, 4 if four else 8, 2 if four else 1, bytes(body), chance)


def bmp(width: int, height: int, bits: int, compression: int, body: bytes, chance: random.Random) -> bytes:
    colours = 1 << bits if bits <= 8 else 0
    palette = chance.randbytes(4 * min(colours, 256))
    at = 14 + 40 + len(palette)
    info = struct.pack("<IiiHHIIiiII", 40, _signed(width), _signed(height), 1, bits, compression, 0, 0, 0, colours, 0)
    return b"BM" + struct.pack("<IHHI", at + len(body), 0, 0, at) + info + palette + body


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def bmp_any(chance: random.Random) -> bytes:
    """Every depth and compression, known and not, with much or little data."""
    bits = chance.choice((0, 1, 2, 4, 8, 15, 16, 24, 32, 64, 65_535))
    compression = chance.choice((0, 0, 0, 3, 1, 2, 4, 5, 6, 11, 2**31))
    width, height = sides(chance, _WIDE)
    if chance.random() < 0.3:
        bits, compression, width, height = chance.choice((1, 4, 8, 24, 32)), 0, width % 300 + 1, height % 300 + 1
    whole = (width * bits + 31) // 32 * 4 * height
    size = whole if whole < 500_000 else chance.choice((0, 100, 5000))
    return bmp(width, height, bits, compression, chance.randbytes(size), chance)


def pnm(chance: random.Random) -> bytes:
    """PBM, PGM, PPM, PAM and PFM, plain and raw, with endless comments."""
    kind = chance.choice(b"1234567fF")
    comment = b"#" + b"x" * chance.choice((0, 10, 100)) + b"\n"
    comments = comment * chance.choice((0, 0, 1, 1000, 20_000))
    head = b"P%c\n%s%d %s%d\n" % (kind, comments, side(chance, _WIDE), comments[:2000], side(chance, _WIDE))
    return (
        head
        + (b"255\n" if kind not in b"14" else b"")
        + chance.choice((b"1 " * 3000, b" " * 50_000, chance.randbytes(3000)))
    )


def qoi(chance: random.Random) -> bytes:
    """Runs, indices and literals, after a size of any kind."""
    head = struct.pack(">4sIIBB", b"qoif", side(chance, _WIDE), side(chance, _WIDE), chance.choice((3, 4, 0, 9)), 0)
    return head + chance.choice((b"\xfd" * 5000, b"\xc0" * 3000, chance.randbytes(4000))) + b"\0" * 7 + b"\1"


def gif(chance: random.Random) -> bytes:
    """Large canvases and frames, many frames, endless comments, blocks of one byte, colour codes of any width."""
    flags = chance.choice((0, 0x80, 0xF7, 0x91))
    wide, tall = sides(chance)
    content = b"GIF89a" + struct.pack("<HHBBB", wide, tall, flags, 0, 0)
    content += chance.randbytes(3 << (flags & 7) + 1) if flags & 0x80 else b""
    if chance.random() < 0.3:
        content += b"!\xfe" + b"\xff" + b"c" * 255 if chance.random() < 0.1 else b""
        content += b"!\xfe" + (b"\1c" * chance.choice((3, 500, 50_000))) + b"\0"
    for _ in range(chance.choice((1, 1, 1, 2, 30, 3000))):
        if chance.random() < 0.3:
            content += b"!\xf9\4" + bytes((chance.randrange(32), 1, 0, chance.randrange(256))) + b"\0"
        frame = (wide, tall) if chance.random() < 0.8 else sides(chance)
        at = (0, 0) if chance.random() < 0.7 else (side(chance), side(chance))
        content += b"," + struct.pack("<HHHHB", *at, *frame, chance.choice((0, 0x40, 0x80)))
        data = chance.choice((b"", chance.randbytes(200), bytes(200)))
        content += bytes((chance.choice((2, 8, 8, 11, 12, 200)),))
        content += (
            b"".join(bytes((len(data[n : n + 255]),)) + data[n : n + 255] for n in range(0, len(data), 255)) + b"\0"
        )
    return content + b";"


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


_TEXT_BOMB = zlib.compress(bytes(1 << 20), 9)
_ROWS_BOMB = {level: zlib.compress(bytes(4 << 20), level) for level in (1, 9)}


def png(chance: random.Random) -> bytes:
    """Every depth and colour, interlaced or not; bombs in rows, texts and profiles; endless chunks; EXIF blocks."""
    width, height = sides(chance, _WIDE)
    depth, colour = chance.choice((1, 2, 4, 8, 8, 16, 3)), chance.choice((0, 2, 2, 3, 4, 6, 1))
    content = b"\x89PNG\r\n\x1a\n" + chunk(
        b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, chance.choice((0, 0, 1)))
    )
    if colour == 3:
        content += chunk(b"PLTE", chance.randbytes(3 * chance.choice((1, 16, 256))))
    extra = chance.choice(("", "", "zTXt", "iTXt", "iCCP", "tEXt", "eXIf", "many", "acTL", "tRNS"))
    if extra in ("zTXt", "iTXt", "iCCP"):
        middle = b"\0\1\0\0\0" if extra == "iTXt" else b"\0\0"
        content += chunk(extra.encode(), b"n" + middle + _TEXT_BOMB) * chance.choice((1, 10, 70))
    elif extra == "tEXt":
        content += chunk(b"tEXt", b"n\0" + bytes(100_000)) * chance.choice((1, 20))
    elif extra == "eXIf":
        content += chunk(b"eXIf", exif(chance))
    elif extra == "many":
        content += chunk(chance.choice((b"IDAT", b"prVt", b"tEXt")), b"") * chance.choice((100, 30_000))
    elif extra == "acTL":
        content += chunk(b"acTL", struct.pack(">II", chance.choice((0, 1, 2**31, 2**32 - 1)), 0))
    elif extra == "tRNS":
        content += chunk(b"tRNS", chance.randbytes(chance.choice((1, 2, 6, 256, 300))))
    data = chance.choice((zlib.compress(b""), _ROWS_BOMB[1], _ROWS_BOMB[9], chance.randbytes(500)))
    return content + chunk(b"IDAT", data) + (chunk(b"IEND", b"") if chance.random() < 0.8 else b"")


def exif(chance: random.Random) -> bytes:
    """A directory whose entries all point to the same bytes, or to itself, or beyond the end."""
    order = chance.choice("<>")
    count = chance.choice((1, 5, 500, 5000))
    size = chance.choice((4, 1000, 60_000, 2**31))
    entries = b"".join(
        struct.pack(
            f"{order}HHII",
            0x112 if n == 7 else n * 11 % 65_536,
            chance.choice((1, 2, 3, 7)),
            size,
            chance.choice((8, 26)),
        )
        for n in range(count)
    )
    start = b"II*\0" if order == "<" else b"MM\0*"
    return start + struct.pack(f"{order}IH", 8, count) + entries + bytes(4) + bytes(chance.choice((0, 60_000)))


def jpeg(chance: random.Random) -> bytes:
    """Endless segments, EXIF blocks, junk between segments, any frame header, scans repeated."""
    content = b"\xff\xd8"
    kind = chance.choice(("apps", "exif", "junk", "icc", "frames", "fill", "plain", "plain"))
    if kind == "apps":
        content += (b"\xff" + bytes((chance.choice((0xE0, 0xE1, 0xED, 0xFE)),)) + b"\0\2") * chance.choice(
            (10, 1000, 100_000)
        )
    elif kind == "exif":
        block = b"Exif\0\0" + exif(chance)[:65_000]
        content += (b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block) * chance.choice((1, 1, 3, 20))
    elif kind == "junk":
        content += bytes(chance.choice((10, 10_000, 500_000)))
    elif kind == "fill":
        content += b"\xff" * chance.choice((10, 10_000, 500_000))
    elif kind == "icc":
        content += (b"\xff\xe2" + struct.pack(">H", 65_000) + b"ICC_PROFILE\0\1\1" + bytes(64_984)) * chance.choice(
            (1, 40)
        )
    content += b"\xff\xdb\0\x43\0" + b"\1" * 64
    for _ in range(2 if kind == "frames" else 1):
        components = chance.choice((1, 1, 3, 3, 4, 2, 0))
        table = b"".join(bytes((n + 1, chance.choice((0x11, 0x22, 0x21, 0x44)), 0)) for n in range(components))
        frame = struct.pack(">BHHB", chance.choice((8, 8, 8, 12, 16)), *sides(chance), components) + table
        marker = chance.choice((0xC0, 0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCB))
        content += b"\xff" + bytes((marker,)) + struct.pack(">H", len(frame) + 2) + frame
    codes = bytes((0, 2, *(0,) * 14))
    content += b"".join(b"\xff\xc4" + struct.pack(">H", 2 + 17 + 2) + bytes((n,)) + codes + b"\0\1" for n in (0, 0x10))
    scan = b"\xff\xda" + struct.pack(">HB", 6 + 2 * max(1, components), max(1, components))
    scan += b"".join(bytes((n + 1, 0)) for n in range(max(1, components))) + b"\0\x3f\0"
    return (
        content
        + (scan + chance.choice((b"", bytes(2000), chance.randbytes(2000)))) * chance.choice((1, 1, 10, 900))
        + b"\xff\xd9"
    )


def webp(chance: random.Random) -> bytes:
    """Canvases and frames of any size, with little or no data, animated or not."""
    width, height = sides(chance)
    lossless = struct.pack("<BI", 0x2F, min(width, 16_383) | min(height, 16_383) << 14) + chance.choice(
        (bytes(500), b"\x88\x88\x08" + bytes(60), chance.randbytes(500))
    )
    lossy = (
        b"\x30\1\0\x9d\1\x2a"
        + struct.pack("<HH", width & 0x3FFF, height & 0x3FFF)
        + chance.choice((bytes(2000), chance.randbytes(2000)))
    )
    image = chance.choice(((b"VP8L", lossless), (b"VP8 ", lossy)))
    parts = [image]
    if chance.random() < 0.6:
        canvas = (
            bytes((chance.randrange(256), 0, 0, 0))
            + (max(width, 1) - 1).to_bytes(3, "little")
            + (max(height, 1) - 1).to_bytes(3, "little")
        )
        parts = [(b"VP8X", canvas)]
        if canvas[0] & 2:
            parts.append((b"ANIM", bytes(6)))
            frame = bytes(6) + canvas[4:] + bytes(4) + _riff(*image)
            parts += [(b"ANMF", frame)] * chance.choice((1, 2, 500))
        else:
            parts.append(image)
        if canvas[0] & 8:
            parts.append((b"EXIF", exif(chance)))
    body = b"WEBP" + b"".join(_riff(*part) for part in parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _riff(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def tiff(chance: random.Random) -> bytes:
    """Any compression, depth, strips, tiles, pages and directories, also of BigTIFF's kind."""
    order = chance.choice("<>")
    width, height = sides(chance, _WIDE)
    samples, bits = chance.choice((1, 1, 3, 3, 4, 5, 200)), chance.choice((1, 8, 8, 8, 16, 32, 64, 7))
    compression = chance.choice((1, 1, 5, 7, 8, 32773, 32946, 2, 3, 4, 6, 34712, 34925, 50000, 50001, 9))
    data = chance.choice((bytes(3000), chance.randbytes(3000), _ROWS_BOMB[9], b"\x81\0" * 3000))
    if chance.random() < 0.3:  # an intact one
        samples, bits, compression, width, height = chance.choice((1, 3)), 8, 1, width % 300 + 1, height % 300 + 1
        data = bytes(samples * width * height)
        if chance.random() < 0.5:
            compression, data = 8, zlib.compress(data)
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, bits), (259, 3, 1, compression), (277, 3, 1, samples)]
    tags += [(262, 3, 1, chance.choice((0, 1, 2, 3, 5, 6, 8, 32845))), (274, 3, 1, chance.randrange(10))]
    if chance.random() < 0.3:
        tags += [
            (322, 4, 1, side(chance, _WIDE)),
            (323, 4, 1, side(chance, _WIDE)),
            (324, 4, 1, 8),
            (325, 4, 1, len(data)),
        ]
    else:
        strips = chance.choice((1, 1, 1, 100, 200_000))
        tags += [
            (273, 4, strips, 8),
            (279, 4, strips, len(data) if strips == 1 else 8),
            (278, 4, 1, chance.choice((height, 1, 0))),
        ]
    if chance.random() < 0.3:
        tags += [
            (chance.randrange(65_536), chance.choice((1, 2, 5, 12)), chance.choice((10, 3000, 2**28)), 8)
            for _ in range(chance.choice((1, 50, 2000)))
        ]
    if chance.random() < 0.2:
        tags += [(chance.choice((34665, 34853, 330)), 4, 1, chance.choice((8, 8 + len(data), 2**31)))]
    if chance.random() < 0.2:
        tags.append((317, 3, 1, chance.choice((2, 3, 9))))
    directory = struct.pack(f"{order}H", len(tags)) + b"".join(
        struct.pack(f"{order}HHI", tag, kind, count)
        + (struct.pack(f"{order}HH", value & 0xFFFF, 0) if kind == 3 else struct.pack(f"{order}I", value & 0xFFFFFFFF))
        for tag, kind, count, value in tags
    )
    at = 8 + len(data)
    following = struct.pack(f"{order}I", chance.choice((0, 0, at)))
    return (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", at) + data + directory + following


BUILT: dict[str, Callable[[random.Random], bytes]] = {
    **{"built rle bmp": bmp_rle, "built bmp": bmp_any, "built pnm": pnm, "built qoi": qoi, "built gif": gif},
    **{"built png": png, "built jpeg": jpeg, "built webp": webp, "built tiff": tiff},
}
