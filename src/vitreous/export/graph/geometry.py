"""Where an image's pixels lie in the model's input, in arithmetic that a graph can do: integers and no branches.

:func:`vitreous.data.placement.place` is the reference, in Python. Here height and width of the image may be numbers,
tensors, or nodes of a graph that is being built. All values are at least 0 and integer, so that a division that drops
the fraction is a floor. Sizes are (height, width).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.config import PreprocessConfig
from vitreous.data.placement import cover_size

__all__ = ["Arithmetic", "Geometry", "first_pass", "geometry", "rows_first"]

_LONGEST = 16  # an image longer than this many times the target is cut before it is resized, as in data/placement.py


@dataclass(frozen=True)
class Arithmetic:
    """What the numbers of a graph can do besides ``+``, ``-`` and ``*``."""

    div: Callable[[Any, Any], Any]  # of numbers that are at least 0, without the fraction
    smaller: Callable[[Any, Any], Any]
    larger: Callable[[Any, Any], Any]


PYTHON = Arithmetic(lambda a, b: a // b, min, max)


@dataclass(frozen=True)
class Geometry:
    """How an image becomes the model's input: cut, resized, then cropped or padded.

    Attributes:
        cut_top: First row of the image that is used.
        cut_left: First column that is used.
        cut: Height and width of the part of the image that is used.
        resized: Height and width of that part after resizing.
        crop_top: Rows of the resized part above the input.
        crop_left: Columns of the resized part left of the input.
        pad_top: Rows of the input above the resized part.
        pad_left: Columns of the input left of the resized part.
    """

    cut_top: Any
    cut_left: Any
    cut: tuple[Any, Any]
    resized: tuple[Any, Any]
    crop_top: Any = 0
    crop_left: Any = 0
    pad_top: Any = 0
    pad_left: Any = 0


def geometry(
    height: Any, width: Any, size: tuple[int, int], config: PreprocessConfig, do: Arithmetic = PYTHON
) -> Geometry:
    """Return the geometry of an image of this height and width in an input of the given size."""
    return {"crop": _crop, "squash": _squash, "pad": _pad}[config.fit](height, width, size, config, do)


def _crop(h: Any, w: Any, size: tuple[int, int], config: PreprocessConfig, do: Arithmetic) -> Geometry:
    """Cover the size divided by `crop_ratio`, then cut the centre."""
    cover_h, cover_w = cover_size(size, config)
    # A wide image is never cut in height, nor a tall one in width: then the limit is above its side.
    cut_h = do.smaller(do.larger(do.div(w * (_LONGEST * cover_h), cover_w), 1), h)
    cut_w = do.smaller(do.larger(do.div(h * (_LONGEST * cover_w), cover_h), 1), w)
    # The side that just covers has the smaller of the two possible lengths on the other side.
    resized_h = do.larger(do.div(cut_h * cover_w, cut_w), cover_h)
    resized_w = do.larger(do.div(cut_w * cover_h, cut_h), cover_w)
    return Geometry(
        do.div(h - cut_h, 2),
        do.div(w - cut_w, 2),
        (cut_h, cut_w),
        (resized_h, resized_w),
        crop_top=_half(resized_h - size[0], do),
        crop_left=_half(resized_w - size[1], do),
    )


def _squash(h: Any, w: Any, size: tuple[int, int], config: PreprocessConfig, do: Arithmetic) -> Geometry:
    """Fill the size, whatever the aspect ratio."""
    return Geometry(0, 0, (h, w), size)


def _pad(h: Any, w: Any, size: tuple[int, int], config: PreprocessConfig, do: Arithmetic) -> Geometry:
    """Fit into the size, in its centre."""
    height, width = size
    resized_h = do.smaller(do.larger(do.div(h * width, w), 1), height)
    resized_w = do.smaller(do.larger(do.div(w * height, h), 1), width)
    return Geometry(
        0,
        0,
        (h, w),
        (resized_h, resized_w),
        pad_top=do.div(height - resized_h, 2),
        pad_left=do.div(width - resized_w, 2),
    )


def _half(n: Any, do: Arithmetic) -> Any:
    """Return n / 2, where a fraction of one half is rounded to the even neighbour as by Python's ``round``."""
    k = do.div(n, 2)
    odd_k = k - do.div(k, 2) * 2
    return k + (n - k * 2) * odd_k


def first_pass(at: Geometry, do: Arithmetic = PYTHON) -> tuple[Any, Any]:
    """Return the height and width after the first of Pillow's two passes, which round to uint8 each.

    Pillow up to 12 resizes rows first, then columns. Pillow 13 resizes columns first where that removes more than twice
    as many lines: found by comparing all orders of the passes on 1,476 random sizes.
    """
    (h, w), (height, width) = at.cut, at.resized
    if rows_first():
        return h, width
    fewer = do.smaller(do.larger(h - height, 0), 1)  # 1 if lines are removed at all
    more = do.smaller(do.larger(h - height - (w - width) * 2, 0), 1)
    columns = fewer * more  # 1 if columns are resized first, else 0
    return h + (height - h) * columns, w * columns + (1 - columns) * width


@cache
def rows_first() -> bool:
    """Return whether this Pillow always resizes rows first: found out by an image where the order shows."""
    image = Image.fromarray(np.arange(9 * 40, dtype=np.uint8).reshape(40, 9) * np.uint8(37))
    both, rows = (8, 5), (8, 40)
    bicubic = Image.Resampling.BICUBIC
    return image.resize(both, bicubic).tobytes() == image.resize(rows, bicubic).resize(both, bicubic).tobytes()
