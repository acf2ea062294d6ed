"""Filters and interpolation that several corruptions share. Each computes an image alike in every batch.

B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import correlate1d

from vitreous.data.corruptions.levels import Floats, Images

__all__ = ["bilinear", "gaussian_weights", "interpolate", "line_blur", "separable", "zoom_coordinates"]


def gaussian_weights(sigma: float, radius: int) -> npt.NDArray[np.float64]:
    """Return the weights (2 radius + 1,) of a Gaussian at whole pixels, with sum 1."""
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-(offsets**2) / (2 * sigma**2)) if sigma > 0 else (offsets == 0).astype(np.float64)
    return weights / weights.sum()


def separable(images: npt.NDArray[Any], weights: npt.NDArray[np.float64], border: str) -> npt.NDArray[np.float32]:
    """Filter images (..., H, W) along both axes. ``border`` is a mode of scipy.ndimage."""
    values = np.asarray(images, dtype=np.float32)
    if len(weights) == 1:
        return values
    return correlate1d(correlate1d(values, weights, axis=-2, mode=border), weights, axis=-1, mode=border)


def line_blur(image: Floats, radius: int, sigma: float, angle: float) -> npt.NDArray[np.float32]:
    """Blur one image (C, H, W) along a line, as ImageMagick's ``-motion-blur radius x sigma + angle``.

    Args:
        image: The image; its edge is repeated outside.
        radius: The line has 2 radius + 1 taps, one pixel apart, that start at the pixel and go to one side only.
        sigma: Standard deviation in pixels of the half Gaussian that weights the taps.
        angle: Direction of the line from the x axis, in degrees, clockwise.
    """
    width = 2 * radius + 1
    height, length = image.shape[-2:]
    weights = np.exp(-(np.arange(width) ** 2) / (2 * sigma**2))
    weights = (weights / weights.sum()).astype(np.float32)
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    padded = np.pad(image.astype(np.float32), ((0, 0), (width, width), (width, width)), mode="edge")
    blurred = np.zeros(image.shape, dtype=np.float32)
    for tap, weight in enumerate(weights):
        top = width + math.ceil(tap * sine - 0.5)  # the nearest pixel on the line
        left = width + math.ceil(tap * cosine - 0.5)
        blurred += weight * padded[:, top : top + height, left : left + length]
    return blurred


def zoom_coordinates(side: int, factor: float) -> npt.NDArray[np.float64]:
    """Return the positions (side,) in an axis that a zoom by ``factor`` >= 1 about its centre reads.

    The authors crop ``ceil(side / factor)`` pixels, enlarge the crop to the nearest whole size with the first and last
    pixel kept in place, and cut the centre.
    """
    crop = math.ceil(side / factor)
    enlarged = round(crop * factor)
    positions = (side - crop) // 2 + np.arange(enlarged, dtype=np.float64) * ((crop - 1) / (enlarged - 1))
    cut = (enlarged - side) // 2
    return positions[cut : cut + side]


def interpolate(images: Floats, rows: Floats, columns: Floats) -> npt.NDArray[np.float32]:
    """Interpolate images (..., H, W) linearly at the grid of ``rows`` (h,) and ``columns`` (w,), within the image."""
    values = np.asarray(images, dtype=np.float32)
    for axis, positions in ((-2, rows), (-1, columns)):
        low = np.clip(np.floor(positions), 0, values.shape[axis] - 2).astype(np.intp)
        weight = (positions - low).astype(np.float32)
        weight = weight[:, None] if axis == -2 else weight
        first, second = np.take(values, low, axis=axis), np.take(values, low + 1, axis=axis)
        second -= first
        second *= weight
        first += second
        values = first
    return values


def bilinear(images: Images, y: Floats, x: Floats) -> npt.NDArray[np.float32]:
    """Sample images (B, C, H, W) at positions ``y`` and ``x`` (B, H, W), in pixels. Outside, the image is mirrored."""
    _, channels, height, width = images.shape
    sampled = np.empty(images.shape, dtype=np.float32)
    for b, image in enumerate(images):
        row, down = _folded(y[b], height)
        column, right = _folded(x[b], width)
        corner = (row * width + column).ravel()
        right, down = right.ravel(), down.ravel()
        flat = image.reshape(channels, height * width).astype(np.float32)
        above = flat.take(corner, axis=1) * (1 - right) + flat.take(corner + 1, axis=1) * right
        below = flat.take(corner + width, axis=1) * (1 - right) + flat.take(corner + width + 1, axis=1) * right
        sampled[b] = (above * (1 - down) + below * down).reshape(image.shape)
    return sampled


def _folded(positions: Floats, side: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Mirror positions about the first and the last pixel; return the pixel below each and the weight of the next."""
    period = 2 * (side - 1)
    folded = np.abs(positions)
    if folded.max() > side - 1:
        folded = np.mod(folded, period)
        folded = np.minimum(folded, period - folded)
    low = np.minimum(folded.astype(np.intp), side - 2)
    return low, (folded - low).astype(np.float32)
