"""One file, looked at once: can it be read, how is it stored, and what is needed to find its copies.

A look reads a file as training does (:func:`vitreous.data.pictures.read_picture`), except that a JPEG is decoded as
small as its copies can be told by: the whole stream is still read, so that truncation shows.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import imagehash
import numpy as np
from PIL import Image

from vitreous.data.pictures import explain, open_picture, orientation_of, read_picture
from vitreous.data.scan import content_hash
from vitreous.errors import DataError

__all__ = ["THUMB", "Look", "look", "pixels_digest", "seen", "spread_of"]

THUMB = 32
"""Side in pixels of the grey thumbnail that hashes and second looks are made from: what pHash reduces pictures to."""

_DRAFT = 64  # a JPEG is decoded at an eighth, a quarter or a half of its size, but no smaller than this
_DEEP = re.compile(r"(^I|^F|;16[BLNRS]*$)")  # how Pillow names more than 8 bits: in modes, and in PNG's and TIFF's rows


@dataclass(frozen=True, slots=True)
class Look:
    """What one look showed.

    Args:
        reason: Why the file cannot be used; empty where it can.
        digest: BLAKE2b of the file's bytes, as in :mod:`vitreous.data.scan`; empty where it cannot be opened.
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
        if not stat.S_ISREG(os.stat(path).st_mode):
            return Look("no regular file")
        content = Path(path).read_bytes()
    except OSError as error:
        return Look(explain(error))
    known = Look(digest=content_hash(content), length=len(content))
    try:
        image = open_picture(content)
    except DataError as error:
        return replace(known, reason=str(error))
    raw = _stored_rows(image)
    height, width = image.height, image.width
    known = replace(
        known,
        form=image.format or "",
        mode=image.mode,
        size=(height, width),
        alpha=image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info,
        deep=bool(_DEEP.search(image.mode) or (image.format not in ("BMP", "DIB") and _DEEP.search(raw))),
    )
    try:
        image.draft(image.mode, (_DRAFT, _DRAFT))  # of effect on JPEGs alone
        picture = read_picture(image)
        thumb, hashes = seen(picture)
        orientation = orientation_of(image)  # not before: a PNG may have its EXIF at the end, and is decoded to find it
        size = (width, height) if orientation in (5, 6, 7, 8) else (height, width)
        frames = _frames(content)
        known = replace(known, frames=frames, orientation=orientation, size=size, thumb=thumb, hashes=hashes)
        return replace(known, spread=spread_of(picture))
    except DataError as error:
        return replace(known, reason=str(error).partition(": ")[2])
    except MemoryError:
        return replace(known, reason="it needs more memory than there is")


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
    except (DataError, MemoryError):
        return ""
    return content_hash(b"%d %d " % picture.size + picture.tobytes())


def _phash(grey: Image.Image) -> int:
    """64 bits: which of the lowest frequencies of the cosine transform are above their median."""
    bits = np.packbits(imagehash.phash(grey).hash.ravel())
    return int.from_bytes(bits.tobytes(), "big")


def _stored_rows(image: Image.Image) -> str:
    """How Pillow calls the rows that it is going to decode, such as `RGB;16B`; empty where it does not say."""
    tiles = getattr(image, "tile", [])
    said = tiles[0].args if tiles else ""
    return said if isinstance(said, str) else next((part for part in said or () if isinstance(part, str)), "")


def _frames(content: bytes) -> int:
    """Frames of an animation or pages of a document; 1 where they cannot be counted: the first one was just read."""
    image = open_picture(content)  # anew: to count is to move from frame to frame
    if image.format in ("MPO", "ICO"):  # a phone's depth map, an icon's sizes: no further pictures
        return 1
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # a decoder meets damaged bytes with any of a dozen built-in errors
        return 1
