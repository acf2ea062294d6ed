"""The sheet of a run's worst mistakes: each image with its class, what the model said, and which file it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageOps

from vitreous.data.sources.listing import many
from vitreous.files.text import visible
from vitreous.report.figures import GREY, RED, STYLE, as_png
from vitreous.report.lettering import Lettering

__all__ = ["Mistake", "draw_mistakes"]

_NAME_COLUMNS = 38  # that fit under an image in small letters


@dataclass(frozen=True)
class Mistake:
    """One wrongly classified image.

    Attributes:
        picture: PIL image, or uint8 array (H, W), (H, W, 1) or (H, W, 3); None where it cannot be read any more.
        true: Name of the true class.
        predicted: Name of the class that the model chose.
        probability: The model's probability for its choice, in [0, 1].
        name: Of the image, such as its path; None where it has none.
    """

    picture: Image.Image | npt.NDArray[np.uint8] | None
    true: str
    predicted: str
    probability: float
    name: str | None = None


def draw_mistakes(mistakes: Sequence[Mistake], wrong: int, total: int, split: str = "validation") -> bytes:
    """Draw a contact sheet of mistakes, five in a row, each with its true class, what the model said, and its name.

    Args:
        mistakes: What to show, the worst first; may be empty, and the sheet then says that there are none.
        wrong: Number of mistakes in all.
        total: Number of images in all.
        split: Name of these images, for the title.
    """
    names = _file_names([m.name for m in mistakes])
    lettering = Lettering([*names, *(name for m in mistakes for name in (m.true, m.predicted))])
    columns, rows = 5, max(1, math.ceil(len(mistakes) / 5))
    aspect = _common_aspect(mistakes)
    with mpl.rc_context(lettering.style(**STYLE)):
        each = 2.4 / aspect + (0.75 if any(names) else 0.55)  # inches: an image with two or three lines of text
        figure = Figure(figsize=(12.5, each * rows + 0.5 if mistakes else 1.6), layout="constrained")
        if mistakes:
            title = f"The {len(mistakes)} worst of {wrong:,} mistakes on {many(total, f'{split} image')}"
            if len(mistakes) == wrong:
                all_of_them = "The only mistake" if wrong == 1 else f"All {wrong} mistakes"
                title = f"{all_of_them} on {many(total, f'{split} image')}"
            cells = figure.subplots(rows, columns, squeeze=False).ravel()
            for axes, mistake, name in zip(cells, mistakes, names, strict=False):
                _mistake(axes, mistake, name, aspect, lettering)
            for axes in cells[len(mistakes) :]:
                axes.set_axis_off()
        else:
            title = f"No mistakes on {many(total, f'{split} image')}"
            figure.text(0.012, 0.35, "Every one was classified right, so there is nothing to show here.", color=GREY)
        return as_png(figure, title, "\n".join(filter(None, names)))


def _file_names(names: Sequence[str | None]) -> list[str]:
    """The ends of paths, of all as many folders as it takes to tell them apart; the class is named beside them."""
    parts = [visible(name).split("/") if name else [""] for name in names]
    most = max(map(len, parts), default=1)
    for kept in range(1, most + 1):
        ends = ["/".join(part[-kept:]) for part in parts]
        named = [end for end in ends if end]
        if len(set(named)) == len(named):
            break
    return ends if parts else []


def _common_aspect(mistakes: Sequence[Mistake]) -> float:
    """Return the width over the height that suits most pictures, within the bounds of a readable sheet."""
    sizes = [_image(m.picture).size for m in mistakes if m.picture is not None]
    return float(np.clip(np.median([w / h for w, h in sizes]), 0.75, 1.5)) if sizes else 1.0


def _image(picture: Image.Image | npt.NDArray[np.uint8]) -> Image.Image:
    return picture if isinstance(picture, Image.Image) else Image.fromarray(np.asarray(picture).squeeze())


def _mistake(axes: Axes, mistake: Mistake, name: str, aspect: float, lettering: Lettering) -> None:
    """Draw one image of the contact sheet, on a cell of the common aspect, with its three lines of text."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    size = (320, round(320 / aspect))  # more than the sheet resolves
    if mistake.picture is None:
        cell = Image.new("RGB", size, "#F2F2F2")
        axes.text(size[0] / 2, size[1] / 2, "cannot be read\nany more", ha="center", va="center", color=GREY)
    else:
        picture = _image(mistake.picture).convert("RGB")
        small = max(picture.size) < 100  # show its pixels, as the model sees them
        method = Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC
        cell = ImageOps.pad(picture, size, method, color="#F2F2F2")
    axes.imshow(np.asarray(cell))
    axes.set_title(f"true: {lettering.label(mistake.true, 24)}", y=-0.02, va="top", loc="center", fontsize=10, pad=0)
    said = f"said: {lettering.label(mistake.predicted, 20)}, {100 * mistake.probability:.0f} %"
    axes.set_xlabel(said, color=RED, fontsize=10, labelpad=15)
    if name:
        axes.annotate(
            lettering.label(name, _NAME_COLUMNS),
            (0.5, 0),
            xycoords=axes.xaxis.label,
            xytext=(0, -3),  # points below
            textcoords="offset points",
            ha="center",
            va="top",
            color=GREY,
            fontsize=7.5,
        )
