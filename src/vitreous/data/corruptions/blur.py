"""Blur: defocus, frosted glass, motion and zoom.

B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vitreous.data.corruptions.levels import Draw, Images, Levels, to_bytes
from vitreous.data.corruptions.sampling import gaussian_weights, interpolate, line_blur, separable, zoom_coordinates

__all__ = ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur"]

_DISK = Levels(
    small=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    large=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
)
"""Radius of the disk, and standard deviation of the Gaussian that smooths its edge, in pixels."""

_GLASS = Levels(
    small=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    large=((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
"""Standard deviation of the blur in pixels, largest step to a neighbour in pixels, number of passes."""

_MOTION = Levels(
    small=((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
    large=((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0)),
)
"""Radius of the line and standard deviation of its weights, in pixels."""

_ZOOM = Levels(
    small=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    large=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
)
"""Upper limit of the zoom factors, which start at 1, and their step."""

_MAX_SUPPORTED_RADIUS = 8  # the authors smooth larger disks with 5 x 5 pixels instead of 3 x 3


def defocus_blur(images: Images, draw: Draw, severity: float) -> Images:
    """Average over a disk with a smoothed edge: a lens out of focus. The border is mirrored.

    A row of the disk is a difference of two running sums, and sums of bytes are exact. The Gaussian is applied to the
    image after the disk, which equals a convolution with the smoothed disk. The authors smooth disks of 8 and 10
    pixels on a grid that is too small: their weights have a sum of 1.01 and brighten the image by 1 %. Here the sum
    is 1.
    """
    radius, sigma = _DISK.at(severity, images)
    height, width = images.shape[-2:]
    reach = int(radius)
    padding = ((0, 0), (0, 0), (reach, reach), (reach, reach))
    padded = np.pad(images, (*padding[:2], padding[2], (reach + 1, reach)), mode="reflect")
    padded[..., 0] = 0
    sums = np.cumsum(padded, axis=-1, dtype=np.int32)
    total = np.zeros(images.shape, dtype=np.int32)
    count = 0
    for row in range(-reach, reach + 1):
        half = int(math.sqrt(radius**2 - row**2))
        line = sums[..., reach + row : reach + row + height, :]
        total += line[..., reach + half + 1 : reach + half + 1 + width]
        total -= line[..., reach - half : reach - half + width]
        count += 2 * half + 1
    smooth = gaussian_weights(sigma, 1 if radius <= _MAX_SUPPORTED_RADIUS else 2)
    return to_bytes(separable(total / np.float32(count), smooth, "mirror"))


def glass_blur(images: Images, draw: Draw, severity: float) -> Images:
    """Blur, replace each pixel by a random neighbour, and blur again: frosted glass.

    The replacement is sequential, from the last pixel to the first, so a pixel can travel further than one step. The
    authors' code reads like a swap, but its assignment between views of an RGB array leaves the neighbour as it was;
    the published images are made in this way, and a real swap would be far stronger at 32 pixels. Greyscale images are
    treated alike. The sequence runs on positions, once for all channels.
    """
    sigma, step, passes = _GLASS.at(severity, images)
    _, _, height, width = images.shape
    weights = gaussian_weights(sigma, int(4 * sigma + 0.5))
    blurred = to_bytes(separable(images, weights, "nearest"))
    for b in range(len(images)):
        source = _wander(draw(b), height, width, step, passes)
        blurred[b] = blurred[b].reshape(-1, height * width)[:, source].reshape(blurred[b].shape)
    return to_bytes(separable(blurred, weights, "nearest"))


def _wander(generator: np.random.Generator, height: int, width: int, step: int, passes: int) -> list[int]:
    """Return for each pixel (H W,) the flat position that its value comes from."""
    source = list(range(height * width))
    order = _inner_pixels(height, width, step)
    for _ in range(passes):
        offsets = generator.integers(-step, step, size=(2, len(order)))  # dy, dx; the upper limit is excluded
        partners = order + offsets[0] * width + offsets[1]
        for first, second in zip(order.tolist(), partners.tolist(), strict=True):
            source[first] = source[second]
    return source


@lru_cache(maxsize=8)
def _inner_pixels(height: int, width: int, step: int) -> npt.NDArray[np.int64]:
    """Return flat positions of the pixels whose neighbours within a step exist, from the last to the first."""
    rows, columns = np.arange(height - step, step, -1), np.arange(width - step, step, -1)
    return (rows[:, None] * width + columns).ravel()


def motion_blur(images: Images, draw: Draw, severity: float) -> Images:
    """Blur along a line at a random angle between -45 and 45 degrees: a camera in motion."""
    radius, sigma = _MOTION.at(severity, images)
    blurred = [line_blur(image, radius, sigma, draw(b).uniform(-45, 45)) for b, image in enumerate(images)]
    return to_bytes(np.stack(blurred))


def zoom_blur(images: Images, draw: Draw, severity: float) -> Images:
    """Average the image and its enlargements about the centre: a camera that moves towards the object."""
    limit, step = _ZOOM.at(severity, images)
    height, width = images.shape[-2:]
    factors = np.arange(1, limit, step)
    total = images.astype(np.float32)
    values = total.copy()
    for factor in factors:
        total += interpolate(values, zoom_coordinates(height, factor), zoom_coordinates(width, factor))
    return to_bytes(total / np.float32(len(factors) + 1))
