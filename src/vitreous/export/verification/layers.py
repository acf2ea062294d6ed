"""Finds the first layer of a written file whose values differ from PyTorch's, once its outputs do.

Tensors inside the file have the names of layers (`graph/core.py`), so the file itself is asked for their values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.errors import first_line
from vitreous.export.graph.core import PIXELS, tap_names
from vitreous.export.verification.bounds import NATIVE_LEVELS, NATIVE_PIXELS
from vitreous.export.verification.reference import Reference

__all__ = ["cause", "first_difference", "pixel_difference", "relative_difference", "relative_differences"]

Array = npt.NDArray[Any]

_AFTER = {"features": "the features", "logits": "the head", "probabilities": "temperature and softmax"}
"""What computes an output from the layers before it, in order."""


def first_difference(
    open_file: Callable[..., Any],
    file: Path,
    reference: Reference,
    *,
    images: npt.NDArray[np.uint8],
    bound: float,
    resize: str,
) -> str:
    """Return a sentence's end that names the first layer that differs by more than the bound, for images (B, h, w, C).

    If the resize is right, PyTorch computes the layers from the file's own pixels.
    """
    names = [PIXELS, *tap_names(reference.model), *_AFTER]
    try:
        runner = open_file(file, names)
        found = dict(zip(runner.outputs, runner(images), strict=True))
    except Exception as error:  # runtimes raise anything
        return f"its layers cannot be read ({first_line(error)})"
    pixels = found.get(PIXELS)
    if pixels is None:
        return "its layers have lost their names"
    if problem := pixel_difference(pixels, reference.pixels(images), resize):
        return f"the first layer that differs is the resize: {problem}"
    expected = reference.layers(pixels)
    for name in names[1:]:
        if name in found and name in expected:
            difference = relative_difference(found[name], expected[name])
            if not difference <= bound:
                layer = _AFTER.get(name, name)
                return f"the first layer that differs is {layer}, by {difference:.1e} of its largest value"
    return "no layer differs by itself; the outputs after the last do"


def pixel_difference(pixels: Array, expected: Array, resize: str) -> str:
    """Return how resized pixels (B, C, H, W) differ from Pillow's, or an empty string if they agree.

    A `resize` that is not `exact` may change some by a level or two.
    """
    if pixels.shape != expected.shape:
        return f"it gives {pixels.shape}, expected {expected.shape}"
    difference = abs(pixels.astype(np.float64) - expected)
    share = float((difference > 0).mean())
    if share == 0 or (resize != "exact" and difference.max() <= NATIVE_LEVELS and share <= NATIVE_PIXELS):
        return ""
    return f"{share:.1%} of the pixels differ, by up to {difference.max():.0f} of 255"


def relative_difference(value: Array, expected: Array) -> float:
    """Return the largest difference in any image, as :func:`relative_differences`; infinity if shapes differ."""
    if value.shape != expected.shape or not len(value):
        return float("inf")
    return float(relative_differences(value, expected).max())


def relative_differences(value: Array, expected: Array) -> npt.NDArray[np.float64]:
    """Return the largest difference in each image, relative to its largest value, (B,).

    Values are (B, ...), of one shape. A NaN where none is expected counts as infinite.
    """
    value, expected = (each.reshape(len(each), -1).astype(np.float64) for each in (value, expected))
    scale = np.maximum(abs(expected).max(axis=1), 1e-6)
    differences: npt.NDArray[np.float64] = abs(value - expected).max(axis=1) / scale
    return np.where(np.isfinite(differences), differences, np.inf)


def cause(output: str) -> str:
    """Return what computes an output from the last layer."""
    return _AFTER.get(output, {"unsure": "the threshold", "sets": "the prediction sets"}.get(output, output))
