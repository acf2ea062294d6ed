"""A picture of an augmented batch with its targets: what the model really sees, before anyone trains on it.

Shapes: B batch, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vitreous.data.preprocess import EvalPipeline
from vitreous.files.writing import replacing
from vitreous.report.lettering import Lettering

__all__ = ["save_batch_picture"]

_MOST = 40  # images on a sheet; more would be too small to judge
_COLUMNS = 8
_CELL = 1.7  # inches
_LEAST = 0.005  # share of a class below which it is not named


def save_batch_picture(
    path: str | os.PathLike[str], images: Tensor, targets: Tensor, classes: Sequence[str], pipeline: EvalPipeline
) -> None:
    """Write a PNG contact sheet of the first 40 images of a batch, each with the classes of its target.

    Args:
        path: File to write; its folder must exist.
        images: float (B, C, H, W), normalised by the pipeline, as :class:`vitreous.data.augment.pipeline.BatchAugment` gives.
        targets: float (B, K) distributions, or int64 (B,) labels.
        classes: K names.
        pipeline: Whose normalisation is undone.

    Raises:
        OutputError: If the file cannot be written.
    """
    count = min(len(images), _MOST)
    pixels = _visible(images[:count], pipeline)
    lettering = Lettering(classes)
    columns = min(_COLUMNS, max(count, 4))
    rows = max(1, math.ceil(count / columns))
    cell_height = _CELL * images.shape[2] / images.shape[3]
    with mpl.rc_context(lettering.style(**{"font.size": 9, "figure.facecolor": "white"})):
        figure = Figure(figsize=(columns * _CELL + 0.3, rows * (cell_height + 0.42) + 0.5), layout="constrained")
        cells = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in cells:
            axes.set_axis_off()
        for axes, image, target in zip(cells, pixels, targets[:count].cpu(), strict=False):
            axes.imshow(image, interpolation="nearest" if max(image.shape[:2]) < 100 else "antialiased")
            names = [lettering.label(text, 26) for text in _named(target, classes)]
            axes.set_title("\n".join(names), y=-0.04, va="top", pad=0)
        H, W = images.shape[2:]
        shown = f"{count} of {len(images)}" if count < len(images) else f"all {count}"
        figure.suptitle(f"A training batch as the model sees it: {shown} images, {W} x {H} pixels", fontsize=11)
        with replacing(path) as written:
            figure.savefig(written, format="png", dpi=110)


def _visible(images: Tensor, pipeline: EvalPipeline) -> npt.NDArray[np.float32]:
    """Undo the normalisation: (B, H, W, 3) in [0, 1]. The noise of random erasing goes beyond and is cut."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (pipeline.config.mean, pipeline.config.std))
    pixels = (images.detach().float().cpu() * std + mean).clamp(0, 1)
    return pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()


def _named(target: Tensor, classes: Sequence[str]) -> list[str]:
    """Lines such as ``daisy 0.7`` and ``+ tulips 0.3``; label smoothing, which all classes share, is left out."""
    if target.ndim == 0:
        return [classes[int(target)]]
    # A mix has at most two classes, so with more, the least share is smoothing's. With two it cannot be told apart.
    floor = float(target.min()) if len(classes) > 2 else 0.0
    shares = ((target.double() - floor) / (1 - floor * len(classes))).tolist()
    order = sorted(range(len(classes)), key=lambda k: -shares[k])
    held = [k for k in order if shares[k] >= _LEAST]
    if len(held) == 1:
        return [classes[held[0]]]
    return [f"{'+ ' if place else ''}{classes[k]} {shares[k]:.2g}" for place, k in enumerate(held)]
