"""Inspection of one image file: whether it can be read, how it is stored, and the hashes by which copies are found.

A file is read as in training, with the same limits and error messages. Only JPEGs are decoded at reduced size, which
still reads the whole stream and so detects truncation.
"""

from __future__ import annotations

import hashlib
import io
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

import imagehash
import numpy as np
from PIL import Image

from vitreous.data.images.content import Content
from vitreous.data.images.decoding import TOO_LARGE, FileFacts, iter_row_bytes
from vitreous.data.images.headers import UnreadableError
from vitreous.data.images.reading import decode_with_limits, open_image_file, read_image, read_reduced
from vitreous.data.sources.scan import content_hash
from vitreous.errors import DataError

__all__ = ["SHOWN", "THUMB", "Inspection", "fingerprint", "look", "pixels_digest", "small_jpeg", "spread_of", "to_jpeg"]

THUMB = 32
"""Side in pixels of the grey thumbnail from which copies are found; pHash reduces images to the same size."""

SHOWN = 128
"""Longer side in pixels of a thumbnail on the audit page."""

_DRAFT = (64, 64)  # minimum size to which a JPEG is reduced while decoding, by 2, 4 or 8


@dataclass(frozen=True, slots=True)
class Inspection(FileFacts):
    """The result of inspecting one image."""

    digest: str = ""  # BLAKE2b of the file's bytes; empty if it cannot be opened
    length: int = 0  # file size in bytes
    thumb: bytes = b""  # THUMB x THUMB grey levels, upright; empty if the file cannot be decoded
    hashes: tuple[int, int] = (0, 0)  # 64-bit pHash of the image and of its mirror image
    spread: int = 255  # levels from the darkest to the brightest of 32 x 32 cells, in the channel where that is largest


def look(path: str | bytes) -> Inspection:
    """Inspect a file, or the bytes of one. Problems are reported in the result, never raised."""
    try:
        with nullcontext(Content(path)) if isinstance(path, bytes) else open_image_file(path) as content:
            digest, length = content_hash(content.data), len(content)
            header, image = decode_with_limits(content, _DRAFT)
    except UnreadableError as error:
        return Inspection(str(error))
    except MemoryError:
        return Inspection(TOO_LARGE)
    facts = Inspection(**asdict(header), digest=digest, length=length)
    if image is None:
        return facts
    thumb, hashes = fingerprint(image)
    return replace(facts, thumb=thumb, hashes=hashes, spread=spread_of(image))


def fingerprint(image: Image.Image) -> tuple[bytes, tuple[int, int]]:
    """Return the grey thumbnail of an upright image, and the pHashes of it and of its mirror image."""
    grey = image.convert("L").resize((THUMB, THUMB), Image.Resampling.LANCZOS)
    mirrored = grey.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return grey.tobytes(), (_phash(grey), _phash(mirrored))


def spread_of(image: Image.Image) -> int:
    """Return `spread` of :class:`Inspection`: 0 for one colour. The means of cells ignore single pixels."""
    side = (min(image.width, THUMB), min(image.height, THUMB))
    cells = np.asarray(image.convert("RGB").resize(side, Image.Resampling.BOX)).reshape(-1, 3)
    return int(np.ptp(cells, axis=0).max())


def pixels_digest(path: str | bytes) -> str:
    """Return the BLAKE2b of an image's size and of its pixels as used in training; empty if it cannot be read."""
    try:
        image = read_image(path)
    except DataError:
        return ""
    digest = hashlib.blake2b(b"%d %d " % image.size, digest_size=16)
    for rows in iter_row_bytes(image):
        digest.update(rows)
    return digest.hexdigest()


def small_jpeg(path: str | bytes) -> bytes:
    """Return a thumbnail of an image file as JPEG; empty if the file cannot be read."""
    try:
        return to_jpeg(read_reduced(path, SHOWN)[0])
    except DataError:
        return b""


def to_jpeg(image: Image.Image) -> bytes:
    """Encode a thumbnail of an RGB image as JPEG. Images of few pixels are enlarged without smoothing."""
    image = image.copy()
    image.thumbnail((SHOWN, SHOWN), Image.Resampling.LANCZOS)
    if max(image.size) < SHOWN // 2:
        scale = SHOWN // max(image.size)
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=75)
    return buffer.getvalue()


def _phash(grey: Image.Image) -> int:
    """Return 64 bits that tell which of the lowest DCT coefficients are above their median."""
    return int.from_bytes(np.packbits(imagehash.phash(grey).hash).tobytes(), "big")
