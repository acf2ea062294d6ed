"""Digital corruptions: contrast, elastic deformation, pixelation and JPEG compression.

B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import gaussian_filter1d

from vitreous.data.corruptions.levels import Draw, Images, Levels, to_bytes
from vitreous.data.corruptions.sampling import bilinear

__all__ = ["contrast", "elastic_transform", "jpeg_compression", "pixelate"]

_CONTRAST = Levels(small=(0.75, 0.5, 0.4, 0.3, 0.15), large=(0.4, 0.3, 0.2, 0.1, 0.05))
"""Factor of the difference from the mean."""

_OVER = 244 / 224  # the authors write 244 where 224 was meant, and keep it because it is what they published
_ELASTIC = Levels(
    small=((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    large=(
        (2 * _OVER, 0.7 * _OVER, 0.1 * _OVER),
        (2 * _OVER, 0.08 * _OVER, 0.2 * _OVER),
        (0.05 * _OVER, 0.01 * _OVER, 0.02 * _OVER),
        (0.07 * _OVER, 0.01 * _OVER, 0.02 * _OVER),
        (0.12 * _OVER, 0.01 * _OVER, 0.02 * _OVER),
    ),
)
"""Amplitude and smoothness of the displacement, largest shift of the corners of the affine map; of the shorter side."""

_PIXELATE = Levels(small=(0.95, 0.9, 0.85, 0.75, 0.65), large=(0.6, 0.5, 0.4, 0.3, 0.25))
"""Size of the reduced image, as a fraction of the original."""

_QUALITY = Levels(small=(80, 65, 58, 50, 40), large=(25, 18, 15, 10, 7))
"""Quality of the JPEG compression."""


def contrast(images: Images, draw: Draw, severity: float) -> Images:
    """Shrink the difference of each value from the mean of its channel in the image."""
    factor = np.float32(_CONTRAST.at(severity, images))
    pixels = images.shape[2] * images.shape[3]
    means = (images.sum(axis=(2, 3), keepdims=True, dtype=np.int64) / pixels).astype(np.float32)  # (B, C, 1, 1)
    return to_bytes((images - means) * factor + means)


def elastic_transform(images: Images, draw: Draw, severity: float) -> Images:
    """Apply a random affine map, then a smooth random displacement. Outside, the image is mirrored.

    The authors interpolate after each of the two; here both maps are composed and the image is interpolated once.
    """
    amplitude, smoothness, jitter = (part * min(images.shape[-2:]) for part in _ELASTIC.at(severity, images))
    _, _, height, width = images.shape
    y = np.empty((len(images), height, width))
    x = np.empty_like(y)
    for b in range(len(images)):
        generator = draw(b)
        matrix = _inverse_affine(generator, height, width, jitter)  # 3 x 2
        dy, dx = np.arange(height)[:, None], np.arange(width)[None, :]
        if amplitude:
            dy = dy + amplitude * _smooth_noise(generator, height, width, smoothness)
            dx = dx + amplitude * _smooth_noise(generator, height, width, smoothness)
        x[b] = dx * matrix[0, 0] + dy * matrix[1, 0] + matrix[2, 0]
        y[b] = dx * matrix[0, 1] + dy * matrix[1, 1] + matrix[2, 1]
    return to_bytes(bilinear(images, y, x))


def _inverse_affine(generator: np.random.Generator, height: int, width: int, jitter: float) -> npt.NDArray[np.float64]:
    """Return the matrix (3, 2) of output (x, y, 1) to input (x, y), for three points that move by up to ``jitter``."""
    center, reach = np.array([width // 2, height // 2]), min(height, width) // 3
    points = center + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = points + generator.uniform(-jitter, jitter, size=(3, 2))
    return np.linalg.solve(np.column_stack([moved, np.ones(3)]), points)


def _smooth_noise(generator: np.random.Generator, height: int, width: int, sigma: float) -> npt.NDArray[np.float64]:
    """Return uniform noise in [-1, 1] (H, W) after a Gaussian blur with mirrored border.

    The blur is a product with two matrices, because sigma can exceed the image. All factors are multiples of a power of
    two, small enough for float64 to represent every sum exactly, so the order of the sums does not matter.
    """
    noise = _multiple(generator.uniform(-1, 1, size=(height, width)), 12)
    half = _multiple(_blur_matrix(height, sigma) @ noise, 22)
    return half @ _blur_matrix(width, sigma).T


@lru_cache(maxsize=16)
def _blur_matrix(side: int, sigma: float) -> npt.NDArray[np.float64]:
    return _multiple(gaussian_filter1d(np.eye(side), sigma, axis=0, mode="reflect", truncate=3), 24)


def _multiple(values: npt.NDArray[np.float64], bits: int) -> npt.NDArray[np.float64]:
    """Round to multiples of 2 ** -bits."""
    return np.rint(values * 2.0**bits) / 2.0**bits


def pixelate(images: Images, draw: Draw, severity: float) -> Images:
    """Reduce the image with a box filter and enlarge it again."""
    fraction = _PIXELATE.at(severity, images)
    height, width = images.shape[-2:]
    reduced = (int(width * fraction), int(height * fraction))
    box = Image.Resampling.BOX
    return _each(images, lambda image: image.resize(reduced, box).resize((width, height), box))


def jpeg_compression(images: Images, draw: Draw, severity: float) -> Images:
    """Compress with JPEG and decode, with Pillow's default subsampling of colour."""
    quality = _QUALITY.at(severity, images)

    def compressed(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return _each(images, compressed)


def _each(images: Images, function: Callable[[Image.Image], Image.Image]) -> Images:
    """Apply a function to each of the images (B, C, H, W) as a Pillow image."""
    result = np.empty_like(images)
    for b, pixels in enumerate(images):
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        array = np.asarray(function(image))
        result[b] = array if array.ndim == 2 else array.transpose(2, 0, 1)
    return result
