"""A contact sheet of an augmented batch and its targets: what the model sees during training.

Shapes: B batch, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from torch import Tensor

from vitreous.data.preprocess import EvalPipeline
from vitreous.files.writing import atomic_write
from vitreous.report.fonts import FontSet
from vitreous.report.image_grid import draw_image_grid
from vitreous.report.style import LIGHT

__all__ = ["save_batch_figure"]

_MAX_IMAGES = 40  # more would be too small to judge
_COLUMNS = 8
_CELL = 1.7  # inches
_MIN_SHARE = 0.005  # share of a class below which it is not named
_MAX_LINES = 3  # that have room below an image


def save_batch_figure(
    path: str | os.PathLike[str],
    images: Tensor,
    targets: Tensor,
    classes: Sequence[str],
    pipeline: EvalPipeline,
    *,
    several: bool = False,
) -> None:
    """Write a PNG with the first 40 images of a batch (B, C, H, W), each with the classes of its target.

    Targets are distributions (B, K) or integer labels (B,); with `several` labels of an image each is in [0, 1] by
    itself. The normalisation of `pipeline` is undone.
    """
    lines = _label_lines if several else _target_lines
    count = min(len(images), _MAX_IMAGES)
    height, width = images.shape[2:]
    fonts = FontSet(classes)
    columns = min(_COLUMNS, max(count, 4))
    rows = [slice(first, first + columns) for first in range(0, count, columns)]
    size = (columns * _CELL + 0.3, len(rows) * (_CELL * height / width + 0.42) + 0.5)
    with LIGHT.applied(fonts, **{"font.size": 8}):
        figure = Figure(figsize=size, layout="constrained")
        pixels = _denormalise(images[:count], pipeline)
        texts = ["\n".join(lines(target, classes, fonts)) for target in targets[:count].cpu()]
        sampling = "nearest" if max(height, width) < 100 else "antialiased"
        grid, captions = [[*pixels[row]] for row in rows], [texts[row] for row in rows]
        draw_image_grid(figure.subplots(), grid, captions, space=0.42 / _CELL, interpolation=sampling)
        shown = f"{count} of {len(images)}" if count < len(images) else f"all {count}"
        title = f"A training batch as the model sees it: {shown} images, {width} x {height} pixels"
        figure.suptitle(title, fontsize=11)
        with atomic_write(path) as temporary:
            figure.savefig(temporary, format="png", dpi=110)


def _denormalise(images: Tensor, pipeline: EvalPipeline) -> npt.NDArray[np.float32]:
    """Undo the normalisation: (B, H, W, 3) in [0, 1], to which the noise of random erasing is clamped."""
    pixels = pipeline.denormalise(images.detach().cpu()).clamp(0, 1)
    return pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()


def _target_lines(target: Tensor, classes: Sequence[str], fonts: FontSet) -> list[str]:
    """Return lines such as `daisy 0.7` and `+ tulips 0.3`, without the share that label smoothing gives every class."""
    if target.ndim == 0:
        return [fonts.shorten(classes[int(target)], 20)]
    # The lowest share is that of smoothing, unless there are only two classes, which may both be in a mix.
    floor = float(target.min()) if len(classes) > 2 else 0.0
    shares = ((target.double() - floor) / (1 - floor * len(classes))).tolist()
    order = sorted((k for k, share in enumerate(shares) if share >= _MIN_SHARE), key=lambda k: -shares[k])
    if len(order) == 1:
        return [fonts.shorten(classes[order[0]], 20)]
    return [
        f"{'+ ' if n else ''}{fonts.shorten(classes[k], 16)} {shares[k]:.2g}" for n, k in enumerate(order[:_MAX_LINES])
    ]


def _label_lines(target: Tensor, classes: Sequence[str], fonts: FontSet) -> list[str]:
    """Return the labels of an image, as `daisy` or `daisy 0.7`, without the share that label smoothing gives each."""
    floor = min(float(target.min()), 1 - float(target.max()))
    shares = ((target.double() - floor) / max(1 - 2 * floor, _MIN_SHARE)).tolist()
    found = [(fonts.shorten(classes[k], 16), share) for k, share in enumerate(shares) if share >= _MIN_SHARE]
    return [name if share > 1 - _MIN_SHARE else f"{name} {share:.2g}" for name, share in found] or ["no label"]
