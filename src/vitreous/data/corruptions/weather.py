"""Weather: snow, frost, fog and brightness.

B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from vitreous.data.corruptions.crystals import NUM_TEXTURES, frost_texture
from vitreous.data.corruptions.levels import Draw, Floats, Images, Levels, is_small, to_bytes
from vitreous.data.corruptions.sampling import interpolate, line_blur, zoom_coordinates

__all__ = ["brightness", "fog", "frost", "snow"]

_SNOW = Levels(
    small=(
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    ),
    large=(
        (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
    ),
)
"""Mean and standard deviation of the noise that becomes flakes, its zoom, the threshold of a flake, radius and standard
deviation of the motion blur in pixels, weight of the image against its whitened version."""

_FROST = Levels(
    small=((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    large=((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
)
"""Weight of the image and of the frost."""

_FOG = Levels(
    small=((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
    large=((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
)
"""Weight of the fog, and the factor by which its roughness falls at each halving of the scale."""

_BRIGHTNESS = Levels(small=(0.05, 0.1, 0.15, 0.2, 0.3), large=(0.1, 0.2, 0.3, 0.4, 0.5))
"""Added to the value of HSV, which is in [0, 1]."""

_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)[:, None, None]  # ITU-R BT.601


def snow(images: Images, draw: Draw, severity: float) -> Images:
    """Whiten the image and add flakes, which fall at a random angle between 45 and 135 degrees."""
    mean, std, zoom, threshold, radius, sigma, kept = _SNOW.at(severity, images)
    _, _, height, width = images.shape
    rows, columns = zoom_coordinates(height, zoom), zoom_coordinates(width, zoom)
    flakes = np.empty((len(images), 1, height, width), dtype=np.float32)
    for b in range(len(images)):
        generator = draw(b)
        noise = mean + std * generator.standard_normal((1, height, width), dtype=np.float32)
        noise = interpolate(noise, rows, columns)
        noise = np.where(noise < threshold, np.float32(0), np.minimum(noise, 1))
        flakes[b] = line_blur(255 * noise, radius, sigma, generator.uniform(-135, -45))
    white = np.maximum(images, 1.5 * _grey(images) + np.float32(127.5))
    whitened = np.float32(kept) * images + np.float32(1 - kept) * white
    return to_bytes(whitened + flakes + flakes[..., ::-1, ::-1])  # the flakes and their copy turned by 180 degrees


def _grey(images: Images) -> npt.NDArray[np.float32]:
    """Return the luma (B, 1, H, W) of images, in grey levels."""
    if images.shape[1] == 1:
        return images.astype(np.float32)
    red, green, blue = (images[:, c : c + 1] * _LUMA[c] for c in range(3))
    return red + green + blue


def frost(images: Images, draw: Draw, severity: float) -> Images:
    """Blend with a random part of one of five textures of ice; see crystals.py for how they differ from the paper's."""
    image_weight, frost_weight = (np.float32(weight) for weight in _FROST.at(severity, images))
    _, channels, height, width = images.shape
    reduction = 5 if is_small(images) else 1  # as the authors reduce their photographs for CIFAR-10-C
    side = max(128 if is_small(images) else 512, 2 ** math.ceil(math.log2(max(height, width) + 1)))
    ice = np.empty(images.shape, dtype=np.float32)
    for b in range(len(images)):
        generator = draw(b)
        texture = frost_texture(int(generator.integers(NUM_TEXTURES)), side, reduction)
        top, left = generator.integers(0, side - height), generator.integers(0, side - width)
        part = texture[:, top : top + height, left : left + width]
        ice[b] = part if channels == 3 else _grey(part[None])[0]
    return to_bytes(image_weight * images + frost_weight * ice)


def fog(images: Images, draw: Draw, severity: float) -> Images:
    """Add a plasma fractal, and scale the sum so that the brightest value of the image is kept."""
    weight, decay = _FOG.at(severity, images)
    _, _, height, width = images.shape
    side = 2 ** math.ceil(math.log2(max(height, width)))
    plasma = _plasma([draw(b) for b in range(len(images))], side, decay)[:, None, :height, :width].astype(np.float32)
    brightest = images.max(axis=(1, 2, 3), keepdims=True).astype(np.float32)
    added = np.float32(255 * weight)
    return to_bytes((images + added * plasma) * (brightest / np.maximum(brightest + added, 1)))


def _plasma(generators: list[np.random.Generator], side: int, decay: float) -> npt.NDArray[np.float64]:
    """Return heights (B, side, side) in [0, 1] by the diamond-square algorithm on a torus; ``side`` is a power of two.

    The first point is 0. Each step fills the centres of squares, then of diamonds, with the mean of four neighbours and
    uniform noise. The amplitude of the noise is divided by ``decay`` squared from step to step: the authors multiply a
    uniform number in [-wibble, wibble] by wibble, and divide wibble by ``decay``.
    """
    heights = np.zeros((len(generators), side, side))
    noise = np.stack([generator.uniform(-1, 1, size=side * side - 1) for generator in generators])  # B x all points
    amplitude, used, step = 100.0**2, 0, side
    while step >= 2:
        half = step // 2
        shape = (len(generators), side // step, side // step)
        count = shape[1] * shape[2]
        parts = noise[:, used : used + 3 * count].reshape(len(generators), 3, *shape[1:])
        corners = heights[:, ::step, ::step]
        rows = corners + np.roll(corners, -1, axis=1)
        centres = (rows + np.roll(rows, -1, axis=2)) / 4 + amplitude * parts[:, 0]
        heights[:, half::step, half::step] = centres
        across = centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=2)
        heights[:, ::step, half::step] = across / 4 + amplitude * parts[:, 1]
        down = centres + np.roll(centres, 1, axis=2) + corners + np.roll(corners, -1, axis=1)
        heights[:, half::step, ::step] = down / 4 + amplitude * parts[:, 2]
        amplitude, used, step = amplitude / decay**2, used + 3 * count, half
    return _unit_range(heights)


def _unit_range(heights: Floats) -> npt.NDArray[np.float64]:
    lowest = heights.min(axis=(1, 2), keepdims=True)
    return (heights - lowest) / (heights.max(axis=(1, 2), keepdims=True) - lowest)


def brightness(images: Images, draw: Draw, severity: float) -> Images:
    """Raise the value of HSV, which is the largest channel, at constant hue and saturation.

    This scales all channels of a pixel alike, and turns black into grey.
    """
    added = np.float32(255 * _BRIGHTNESS.at(severity, images))
    value = images.max(axis=1, keepdims=True)  # (B, 1, H, W)
    raised = np.minimum(value + added, np.float32(255))
    scale = raised / np.maximum(value, 1)
    return to_bytes(np.where(value == 0, raised, images * scale))
