"""A contact sheet: numbered thumbnails in rows, as one PNG."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Resampling

from vitreous.report.drawing import reduced
from vitreous.report.style import LIGHT

__all__ = ["MOST_SHOWN", "save_contact_sheet"]

MOST_SHOWN = 1_000
"""Most images of a sheet."""

_COLUMNS = 10
_SIDE, _GAP, _CAPTION = 128, 8, 18  # pixels


def save_contact_sheet(path: Path, images: Iterable[Image.Image | None], count: int) -> None:
    """Write a PNG of so many images, numbered from 1; None, for one that cannot be read, leaves its place empty."""
    columns = min(_COLUMNS, max(count, 1))
    rows = math.ceil(count / columns)
    size = (columns * (_SIDE + _GAP) + _GAP, rows * (_SIDE + _CAPTION + _GAP) + _GAP)
    sheet = Image.new("RGB", size, LIGHT.background)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for n, image in zip(range(count), images, strict=False):
        x, y = (_GAP + n % columns * (_SIDE + _GAP), _GAP + n // columns * (_SIDE + _CAPTION + _GAP))
        draw.text((x, y), str(n + 1), fill=LIGHT.text, font=font)
        place = (x, y + _CAPTION, x + _SIDE - 1, y + _CAPTION + _SIDE - 1)
        draw.rectangle(place, fill=LIGHT.empty)
        if image is not None:
            small = _fitted(image)
            sheet.paste(small, (x + (_SIDE - small.width) // 2, y + _CAPTION + (_SIDE - small.height) // 2))
    sheet.save(path, format="PNG")


def _fitted(image: Image.Image) -> Image.Image:
    """Reduce an image to a thumbnail, or enlarge a small one by a whole factor, so that it can be seen."""
    factor = _SIDE // max(image.size)
    if factor < 2:
        return reduced(image, _SIDE)
    return image.resize((image.width * factor, image.height * factor), Resampling.NEAREST)
