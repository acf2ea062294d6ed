"""Rows of images on one Matplotlib axes; an axes for each of 56 images takes four times as long to draw.

Shapes: H x W pixels, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

__all__ = ["draw_image_grid"]

_GAP = 0.06  # between images


def draw_image_grid(
    axes: Axes,
    rows: Sequence[Sequence[npt.NDArray[Any]]],
    captions: Sequence[Sequence[str]] = (),
    *,
    names: Sequence[str] = (),
    heads: Sequence[str] = (),
    space: float = 0.0,
    interpolation: str = "antialiased",
    **text: Any,
) -> None:
    """Draw images in rows; the unit of the axes is the width of an image.

    Args:
        axes: Loses its axis; the figure should have about the shape of the grid.
        rows: Images (H, W, C) of one size, C 1 or 3: uint8, or float in [0, 1].
        captions: A text below each image, by row.
        names: A text to the left of each row.
        heads: A text above each column.
        space: Height for the captions below a row.
        interpolation: As in ``Axes.imshow``.
        text: Options of ``Axes.text`` for the captions.
    """
    height, width = rows[0][0].shape[:2]
    high = height / width
    pitch = high + _GAP + space
    for row, images in enumerate(rows):
        top = row * pitch
        for column, image in enumerate(images):
            left = column * (1 + _GAP)
            shown = image if image.shape[2] == 3 else image[..., 0]
            highest = 255 if image.dtype == np.uint8 else 1
            extent = (left, left + 1, top + high, top)
            axes.imshow(shown, "gray", vmin=0, vmax=highest, extent=extent, interpolation=interpolation)
            if captions:
                axes.text(left + 0.5, top + high + 0.03, captions[row][column], ha="center", va="top", **text)
        if names:
            axes.text(-0.05, top + high / 2, names[row], rotation=90, ha="right", va="center")
    for column, head in enumerate(heads):
        axes.text(column * (1 + _GAP), -0.05, head, ha="left", va="bottom")
    columns = max(len(images) for images in rows)
    axes.set_axis_off()
    axes.set(xlim=(0, columns * (1 + _GAP) - _GAP), ylim=(len(rows) * pitch - _GAP, 0), aspect="equal")
