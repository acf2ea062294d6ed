"""The contact sheet of a run's worst mistakes: each image with its true and predicted class and its file name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageOps

from vitreous.data.sources.listing import pluralize
from vitreous.files.text import visible
from vitreous.report.fonts import FontSet
from vitreous.report.style import DARK, LIGHT, Theme, to_png

__all__ = ["Mistake", "draw_mistakes"]

_COLUMNS = 5
_NAME_WIDTH = 34  # characters that fit under an image in small letters


@dataclass(frozen=True)
class Mistake:
    """One wrongly classified image."""

    image: Image.Image | npt.NDArray[np.uint8] | None  # H W, H W 1 or H W 3; None if it can no longer be read
    true: str
    predicted: str
    probability: float  # probability of the predicted class, in [0, 1]
    name: str | None = None  # name of the image, such as its path


def draw_mistakes(
    mistakes: Sequence[Mistake], wrong: int, total: int, split: str = "validation", *, dark: bool = False
) -> bytes:
    """Draw a contact sheet of the worst of all `wrong` mistakes on `total` images, five in a row, as PNG."""
    theme = DARK if dark else LIGHT
    names = _short_names([m.name for m in mistakes])
    fonts = FontSet([*names, *(name for m in mistakes for name in (m.true, m.predicted))])
    rows = max(1, math.ceil(len(mistakes) / _COLUMNS))
    aspect = _common_aspect(mistakes)
    images = pluralize(total, f"{split} image")
    with theme.applied(fonts):
        row_height = 2.4 / aspect + (0.62 if any(names) else 0.45)  # inches: an image and two or three lines of text
        figure = Figure(figsize=(12.5, row_height * rows + 0.5 if mistakes else 1.6), layout="constrained")
        if mistakes:
            title = f"The {len(mistakes)} worst of {wrong:,} mistakes on {images}"
            if len(mistakes) == wrong:
                title = f"{'The only mistake' if wrong == 1 else f'All {wrong} mistakes'} on {images}"
            cells = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
            for axes, mistake, name in zip(cells, mistakes, names, strict=False):
                _draw_mistake(axes, mistake, name, aspect=aspect, fonts=fonts, theme=theme)
            for axes in cells[len(mistakes) :]:
                axes.set_axis_off()
        else:
            title = f"No mistakes on {images}"
            message = "Every image is classified correctly: there is nothing to show."
            figure.text(0.012, 0.35, message, color=theme.muted)
        return to_png(figure, title, "\n".join(filter(None, names)))


def _short_names(names: Sequence[str | None]) -> list[str]:
    """Return the ends of paths, with as many folders as it takes to tell them all apart."""
    parts = [visible(name).split("/") if name else [""] for name in names]
    ends: list[str] = []
    for depth in range(1, max(map(len, parts), default=0) + 1):
        ends = ["/".join(part[-depth:]) for part in parts]
        named = [end for end in ends if end]
        if len(set(named)) == len(named):
            break
    return ends


def _common_aspect(mistakes: Sequence[Mistake]) -> float:
    """Return the median width / height of the images, within the bounds of a readable sheet."""
    sizes = [_to_pil(m.image).size for m in mistakes if m.image is not None]
    return float(np.clip(np.median([w / h for w, h in sizes]), 0.75, 1.5)) if sizes else 1.0


def _to_pil(image: Image.Image | npt.NDArray[np.uint8]) -> Image.Image:
    return image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image).squeeze())


def _draw_mistake(axes: Axes, mistake: Mistake, name: str, *, aspect: float, fonts: FontSet, theme: Theme) -> None:
    """Draw one image, padded to the common aspect ratio, with two or three lines of text below."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    size = (320, round(320 / aspect))  # more than the sheet resolves
    if mistake.image is None:
        cell = Image.new("RGB", size, theme.empty)
        axes.text(size[0] / 2, size[1] / 2, "can no longer\nbe read", ha="center", va="center", color=theme.muted)
    else:
        image = _to_pil(mistake.image).convert("RGB")
        is_small = max(image.size) < 100  # show its pixels as the model sees them
        method = Image.Resampling.NEAREST if is_small else Image.Resampling.BICUBIC
        cell = ImageOps.pad(image, size, method, color=theme.empty)
    axes.imshow(np.asarray(cell))
    axes.set_title(f"true: {fonts.shorten(mistake.true, 24)}", y=-0.02, va="top", loc="center", fontsize=9, pad=0)
    predicted = f"predicted: {fonts.shorten(mistake.predicted, 14)}, {100 * mistake.probability:.0f} %"
    axes.set_xlabel(predicted, color=theme.red, fontsize=9, labelpad=15)
    if name:
        below: dict[str, Any] = {"xytext": (0, -3), "textcoords": "offset points", "ha": "center", "va": "top"}
        text = fonts.shorten(name, _NAME_WIDTH)
        axes.annotate(text, (0.5, 0), xycoords=axes.xaxis.label, color=theme.muted, fontsize=7.5, **below)
