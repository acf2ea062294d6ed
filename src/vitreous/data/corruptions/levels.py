"""The parameters of each severity, and the types that all corruptions share.

The authors published two sets of parameters: for images of 32 pixels (CIFAR-10-C, ``make_cifar_c.py``) and of 224
pixels (ImageNet-C, ``make_imagenet_c.py`` and the package ``imagenet_c``). An image uses the set whose size is nearer
to its shorter side in ratio: CIFAR-10-C below 85 pixels, the geometric mean of 32 and 224, ImageNet-C from there on.
Values are not interpolated, so at 32 and 224 pixels they are the published ones. Lengths in pixels stay in pixels;
those that the authors state as a fraction of the side follow the side.

B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["SEVERITIES", "SMALL_BELOW", "Draw", "Floats", "Images", "Levels", "is_small", "to_bytes"]

SEVERITIES = (1, 2, 3, 4, 5)
"""The severities of a corruption, from mild to strong (arXiv 1903.12261)."""

SMALL_BELOW = 85
"""Images whose shorter side has fewer pixels use the parameters of CIFAR-10-C: sqrt(32 * 224) = 84.7."""

Images = npt.NDArray[np.uint8]
"""Pixels in 0 to 255, N x H x W x 3."""
Floats = npt.NDArray[np.floating[Any]]
"""Pixels or fields as floating-point numbers."""
Draw = Callable[[int], np.random.Generator]
"""Takes the place of an image in the dataset; returns its generator of random numbers."""

T = TypeVar("T")


def is_small(images: Images) -> bool:
    """Return whether images (B, C, H, W) use the parameters of CIFAR-10-C."""
    return min(images.shape[-2:]) < SMALL_BELOW


@dataclass(frozen=True)
class Levels(Generic[T]):
    """A parameter of one corruption at severities 1 to 5."""

    small: tuple[T, T, T, T, T]  # CIFAR-10-C
    large: tuple[T, T, T, T, T]  # ImageNet-C

    def at(self, severity: float, images: Images) -> T:
        """Return the parameter for a severity and the size of the images."""
        return (self.small if is_small(images) else self.large)[int(severity) - 1]


def to_bytes(levels: Floats) -> Images:
    """Convert values in grey levels to uint8: clipped to [0, 255] and truncated, as the authors do, not rounded."""
    return np.clip(levels, 0, 255).astype(np.uint8)
