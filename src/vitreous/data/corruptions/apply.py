"""Apply a corruption or a shift to a batch of images, reproducibly.

A corruption is a function of this signature, listed in :data:`vitreous.data.corruptions.CORRUPTIONS`::

    corruption(images, draw, severity) -> images

    images: uint8 (B, C, H, W), not modified; the result has the same shape and dtype.
    draw: draw(b) returns the random generator of the image at position b; to be called once per image.
    severity: 1 to 5.

A shift has a parameter in place of the severity and raises UsageError if the parameter is out of range.

The result depends on the image, its index, the seed, the name and the severity only, not on the batch. The functions
therefore use numpy operations that compute each image alike in every batch: elementwise arithmetic, interpolation and
one-dimensional filters. Convolutions and matrix products of torch may round differently for other batch sizes. The
bytes can change with the versions of numpy, which does not promise a fixed stream for each distribution, and Pillow.

B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

import math
import operator
import pkgutil
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vitreous.data import rng
from vitreous.data.corruptions import CORRUPTIONS, SHIFTS
from vitreous.data.corruptions.levels import SEVERITIES, Draw, Images
from vitreous.errors import DataError, UsageError, did_you_mean

__all__ = ["MIN_SIDE", "corrupt", "shift"]

MIN_SIDE = 32
"""Smallest height and width of an image, in pixels: the size of CIFAR-10-C, for which the small table was made."""

_PART = 2**19
"""Values of the images that are corrupted at a time: 2 MiB in float32, which fits the cache of a core."""


def corrupt(images: Tensor, name: str, severity: int, *, indices: Sequence[int] | Tensor, seed: int = 0) -> Tensor:
    """Return corrupted copies of images.

    Args:
        images: uint8 (B, C, H, W) with C = 1 (greyscale) or 3 (RGB), H and W at least 32.
        name: A key of :data:`vitreous.data.corruptions.CORRUPTIONS`.
        severity: 1 (weak) to 5 (strong).
        indices: B whole numbers of at least 0, the position of each image in its dataset. An image with the same
            index, seed, name and severity gets the same random numbers in every batch.
        seed: Seed of the random numbers.

    Returns:
        uint8 (B, C, H, W), on the device of ``images``; computed on the CPU.

    Raises:
        UsageError: The name is unknown, or the severity is not 1, 2, 3, 4 or 5.
        DataError: The images or the indices do not fit.
    """
    path = _path(name, CORRUPTIONS, "corruption")
    if isinstance(severity, bool) or not isinstance(severity, int) or severity not in SEVERITIES:
        raise UsageError(f"The severity of a corruption is {severity!r:.60}, it must be 1, 2, 3, 4 or 5.")
    numbers = _checked(images, indices)

    def draw(b: int) -> np.random.Generator:
        return rng.generator(seed, numbers[b], severity, stream=f"corruption/{name}")

    return _apply(pkgutil.resolve_name(path), images, draw, severity)


def shift(images: Tensor, name: str, value: float, *, indices: Sequence[int] | Tensor, seed: int = 0) -> Tensor:
    """Return copies of images that are shifted by a parameter, as one point of a curve.

    Every value of the parameter uses the same random numbers, so that the points of a curve differ in the value only.

    Args:
        images: As in :func:`corrupt`.
        name: A key of :data:`vitreous.data.corruptions.SHIFTS`.
        value: The parameter. Its unit and range are in the docstring of the function, in shifts.py.
        indices: As in :func:`corrupt`.
        seed: Seed of the random numbers.

    Returns:
        uint8 (B, C, H, W), on the device of ``images``; computed on the CPU.

    Raises:
        UsageError: The name is unknown, or the value is out of range.
        DataError: The images or the indices do not fit.
    """
    path = _path(name, SHIFTS, "shift")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"The value of the shift '{name}' is {value!r:.60}, it must be a finite number.")
    numbers = _checked(images, indices)

    def draw(b: int) -> np.random.Generator:
        return rng.generator(seed, numbers[b], stream=f"shift/{name}")

    return _apply(pkgutil.resolve_name(path), images, draw, value)


def _apply(function: Callable[[Images, Draw, float], Images], images: Tensor, draw: Draw, value: float) -> Tensor:
    """Apply a function to parts of the batch, so that what it allocates stays small, whatever the batch size."""
    pixels = np.ascontiguousarray(images.detach().cpu().numpy())  # (B, C, H, W)
    result = np.empty_like(pixels)
    size = max(1, _PART // pixels[:1].size) if len(pixels) else 1
    for start in range(0, len(pixels), size):
        part = slice(start, start + size)
        result[part] = function(pixels[part], _shifted(draw, start), value)
    return torch.from_numpy(result).to(images.device)


def _shifted(draw: Draw, start: int) -> Draw:
    return lambda b: draw(start + b)


def _path(name: str, table: dict[str, str], kind: str) -> str:
    if name not in table:
        hint = did_you_mean(str(name), table)
        raise UsageError(f"There is no {kind} '{name}'.{hint} The {kind}s are {', '.join(table)}.")
    return table[name]


def _checked(images: Tensor, indices: Sequence[int] | Tensor) -> list[int]:
    """Return the indices as a list, or raise DataError if they or the images do not fit."""
    if images.dtype != torch.uint8:
        raise DataError(f"The images are {images.dtype}, they must be torch.uint8 with values from 0 to 255.")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        shape = tuple(images.shape)
        raise DataError(f"The images have shape {shape}, it must be (B, C, H, W) with C = 1 (greyscale) or 3 (RGB).")
    if min(images.shape[2:]) < MIN_SIDE:
        size = "{} x {}".format(*images.shape[2:])
        raise DataError(f"The images are {size} pixels, corruptions need {MIN_SIDE} x {MIN_SIDE} or more; resize them.")
    try:
        numbers = [operator.index(number) for number in indices]
    except TypeError:
        raise DataError("The indices of the images must be whole numbers, their positions in the dataset.") from None
    if len(numbers) != len(images):
        raise DataError(f"There are {len(numbers)} indices for {len(images)} images; pass one for each image.")
    if min(numbers, default=0) < 0:
        raise DataError(f"The smallest index of an image is {min(numbers)}, it must be at least 0.")
    return numbers
