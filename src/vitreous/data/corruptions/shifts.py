"""Shifts along one parameter, for curves of accuracy over it. The value that changes nothing is stated for each.

B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from vitreous.data.corruptions.levels import Draw, Images, to_bytes
from vitreous.data.corruptions.sampling import bilinear, gaussian_weights, separable
from vitreous.errors import UsageError

__all__ = ["GRID", "brightness", "patch_shuffle", "patch_shuffle_fraction", "rotation", "scale"]

GRID = 8
"""Patches per side of :func:`patch_shuffle_fraction`."""


def scale(images: Images, draw: Draw, value: float) -> Images:
    """Enlarge the content by a factor of 0.25 to 4 about the centre; 1 changes nothing.

    Below 1 the image is blurred first against aliasing, and the space around it is filled with its mirror image.
    """
    _check("scale", value, 0.25, 4, "a factor")
    if value < 1:
        sigma = 0.5 * math.sqrt(1 / value**2 - 1)  # from the half pixel of a sensor to that of the coarser grid
        images = np.rint(separable(images, gaussian_weights(sigma, math.ceil(4 * sigma)), "mirror")).astype(np.uint8)
    return _linear_map(images, np.eye(2) / value)


def rotation(images: Images, draw: Draw, value: float) -> Images:
    """Turn anticlockwise by -180 to 180 degrees about the centre; 0 changes nothing. Outside, the image is mirrored."""
    _check("rotation", value, -180, 180, "an angle in degrees")
    cosine, sine = math.cos(math.radians(value)), math.sin(math.radians(value))
    return _linear_map(images, np.array([[cosine, sine], [-sine, cosine]]))


def brightness(images: Images, draw: Draw, value: float) -> Images:
    """Multiply all values by a factor of 0 to 4; 1 changes nothing."""
    _check("brightness", value, 0, 4, "a factor")
    return to_bytes(np.rint(images * np.float32(value)))


def patch_shuffle(images: Images, draw: Draw, value: float) -> Images:
    """Permute all square patches; the value is their side in pixels, a whole number from 1 to the shorter side.

    A patch of the size of a square image changes nothing. Rows and columns that fill no patch stay in place.
    """
    side = min(images.shape[-2:])
    _check("patch_shuffle", value, 1, side, "the side of a patch in pixels")
    if value != int(value):
        raise UsageError(f"The value of the shift 'patch_shuffle' is {value:g}, it must be a whole number of pixels.")
    return _permuted(images, draw, int(value), int(value), fraction=1)


def patch_shuffle_fraction(images: Images, draw: Draw, value: float) -> Images:
    """Permute a fraction from 0 to 1 of the patches of an 8 x 8 grid; 0 changes nothing.

    The patches of a smaller fraction are among those of a larger one.
    """
    _check("patch_shuffle_fraction", value, 0, 1, "a fraction of the patches")
    height, width = images.shape[-2:]
    return _permuted(images, draw, height // GRID, width // GRID, fraction=value)


def _check(name: str, value: float, lowest: float, highest: float, meaning: str) -> None:
    if not lowest <= value <= highest:
        raise UsageError(f"The value of the shift '{name}' is {value:g}, {meaning}: it must be {lowest} to {highest}.")


def _linear_map(images: Images, inverse: npt.NDArray[np.float64]) -> Images:
    """Sample at ``inverse`` @ (y, x), relative to the centre, and round."""
    count, _, height, width = images.shape
    y = np.arange(height)[:, None] - (height - 1) / 2
    x = np.arange(width)[None, :] - (width - 1) / 2
    source_y = inverse[0, 0] * y + inverse[0, 1] * x + (height - 1) / 2
    source_x = inverse[1, 0] * y + inverse[1, 1] * x + (width - 1) / 2
    same = (count, height, width)
    return to_bytes(np.rint(bilinear(images, np.broadcast_to(source_y, same), np.broadcast_to(source_x, same))))


def _permuted(images: Images, draw: Draw, tall: int, wide: int, fraction: float) -> Images:
    """Permute a fraction of the patches of ``tall`` x ``wide`` pixels, chosen at random in each image."""
    _, channels, height, width = images.shape
    rows, columns = height // tall, width // wide
    chosen = round(fraction * rows * columns)
    result = images.copy()
    for b, image in enumerate(images):
        generator = draw(b)
        members = generator.permutation(rows * columns)[:chosen]
        order = np.arange(rows * columns)
        order[members] = members[generator.permutation(chosen)]
        grid = image[:, : rows * tall, : columns * wide].reshape(channels, rows, tall, columns, wide)
        patches = grid.transpose(1, 3, 0, 2, 4).reshape(rows * columns, channels, tall, wide)[order]
        shuffled = patches.reshape(rows, columns, channels, tall, wide).transpose(2, 0, 3, 1, 4)
        result[b, :, : rows * tall, : columns * wide] = shuffled.reshape(channels, rows * tall, columns * wide)
    return result
