"""One file, looked at once: can it be read, how is it stored, and what is needed to find its copies.

A look reads a file as training does, with the same limits and reasons (:func:`vitreous.data.images.reading.examine`), except
that a JPEG is decoded as small as its copies can be told by: the whole stream is still read, so that truncation shows.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, fields, replace

import imagehash
import numpy as np
from PIL import Image

from vitreous.data.images.decoding import TOO_LARGE, rows_of
from vitreous.data.images.headers import UnreadableError
from vitreous.data.images.reading import examine, opened_file, read_picture, read_reduced
from vitreous.data.sources.scan import content_hash
from vitreous.errors import DataError

__all__ = ["SHOWN", "THUMB", "Look", "as_jpeg", "look", "pixels_digest", "seen", "small_jpeg", "spread_of"]

THUMB = 32
"""Side in pixels of the grey thumbnail that hashes and second looks are made from: what pHash reduces pictures to."""

SHOWN = 128
"""Longer side in pixels of a picture on the audit's page."""

_DRAFT = (64, 64)  # a JPEG is decoded at an eighth, a quarter or a half of its size, but no smaller than this


@dataclass(frozen=True, slots=True)
class Look:
    """What one look showed.

    Args:
        reason: Why the file cannot be used; empty where it can.
        digest: BLAKE2b of the file's bytes, as in :mod:`vitreous.data.sources.scan`; empty where it cannot be opened.
        length: Of the file, in bytes.
        form: Its format by content, such as `JPEG`.
        mode: How Pillow calls the way its pixels are stored, such as `CMYK`.
        size: Height and width in pixels, upright; as its header says it where it cannot be decoded.
        frames: Pictures in the file.
        orientation: EXIF's, 1 to 8; 1 is upright.
        alpha: Whether it has transparency.
        deep: Whether it has more than 8 bits a channel.
        thumb: THUMB x THUMB grey levels, upright; empty where it cannot be decoded.
        hashes: pHash of the picture and of its mirror image, 64 bits each.
        spread: Grey levels between the darkest and the lightest of 32 x 32 parts, in the channel where that is most.
    """

    reason: str = ""
    digest: str = ""
    length: int = 0
    form: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)
    frames: int = 1
    orientation: int = 1
    alpha: bool = False
    deep: bool = False
    thumb: bytes = b""
    hashes: tuple[int, int] = (0, 0)
    spread: int = 255


def look(path: str) -> Look:
    """Look at a file. Whatever is wrong with it is in the result."""
    try:
        with opened_file(path) as content:
            known = Look(digest=content_hash(content.data), length=len(content))
            facts, image = examine(content, _DRAFT)
    except UnreadableError as error:
        return Look(str(error))
    except MemoryError:
        return Look(TOO_LARGE)
    shown = {field.name: getattr(facts, field.name) for field in fields(facts)}
    if image is None:
        return replace(known, **shown)
    thumb, hashes = seen(image)
    return replace(known, **shown, thumb=thumb, hashes=hashes, spread=spread_of(image))


def seen(picture: Image.Image) -> tuple[bytes, tuple[int, int]]:
    """What a look keeps to find copies by: the thumbnail, and the hashes of it and of its mirror image.

    Args:
        picture: Upright.
    """
    grey = picture.convert("L").resize((THUMB, THUMB), Image.Resampling.LANCZOS)
    mirrored = grey.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return grey.tobytes(), (_phash(grey), _phash(mirrored))


def spread_of(picture: Image.Image) -> int:
    """How much there is to see of an image: 0 for one colour; the mean of a part leaves single pixels out."""
    side = (min(picture.width, THUMB), min(picture.height, THUMB))
    parts = np.asarray(picture.convert("RGB").resize(side, Image.Resampling.BOX)).reshape(-1, 3)
    return int(np.ptp(parts, axis=0).max())


def pixels_digest(path: str) -> str:
    """BLAKE2b of a picture's size and pixels as training sees them: RGB, upright. Empty where it cannot be read."""
    try:
        picture = read_picture(path)
    except DataError:
        return ""
    whole = hashlib.blake2b(b"%d %d " % picture.size, digest_size=16)
    for part in rows_of(picture):
        whole.update(part)
    return whole.hexdigest()


def small_jpeg(path: str) -> bytes:
    """A picture at up to 128 pixels, as a JPEG for a page. Empty where it cannot be read."""
    try:
        return as_jpeg(read_reduced(path, SHOWN)[0])
    except DataError:
        return b""


def as_jpeg(image: Image.Image) -> bytes:
    """An RGB image at up to 128 pixels, as a JPEG; one of a few pixels larger, as pixels."""
    image = image.copy()
    image.thumbnail((SHOWN, SHOWN), Image.Resampling.LANCZOS)
    if max(image.size) < SHOWN // 2:
        times = SHOWN // max(image.size)
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=75)
    return buffer.getvalue()


def _phash(grey: Image.Image) -> int:
    """64 bits: which of the lowest frequencies of the cosine transform are above their median."""
    bits = np.packbits(imagehash.phash(grey).hash.ravel())
    return int.from_bytes(bits.tobytes(), "big")
