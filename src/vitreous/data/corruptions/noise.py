"""Noise: Gaussian, shot and impulse.

B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

import numpy as np

from vitreous.data.corruptions.levels import Draw, Images, Levels, to_bytes

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise"]

_SIGMA = Levels(small=(0.04, 0.06, 0.08, 0.09, 0.10), large=(0.08, 0.12, 0.18, 0.26, 0.38))
"""Standard deviation of Gaussian noise, as a fraction of the range of a pixel."""

_PHOTONS = Levels(small=(500, 250, 100, 75, 50), large=(60, 25, 12, 5, 3))
"""Expected count of photons at a white pixel. Fewer photons are more noise."""

_REPLACED = Levels(small=(0.01, 0.02, 0.03, 0.05, 0.07), large=(0.03, 0.06, 0.09, 0.17, 0.27))
"""Fraction of the values that impulse noise replaces, half by black and half by white."""


def gaussian_noise(images: Images, draw: Draw, severity: float) -> Images:
    """Add independent normal noise to each value: low light and the electronics of a sensor."""
    sigma = np.float32(255 * _SIGMA.at(severity, images))
    noise = np.stack([draw(b).standard_normal(images.shape[1:], dtype=np.float32) for b in range(len(images))])
    return to_bytes(images + sigma * noise)  # (B, C, H, W)


def shot_noise(images: Images, draw: Draw, severity: float) -> Images:
    """Replace each value by a Poisson count with a proportional mean: the discrete nature of light."""
    photons = _PHOTONS.at(severity, images)
    rates = images * (photons / 255)  # (B, C, H, W)
    counts = np.stack([draw(b).poisson(rate) for b, rate in enumerate(rates)])
    return to_bytes(counts * (255 / photons))


def impulse_noise(images: Images, draw: Draw, severity: float) -> Images:
    """Set random values to black or white, independently in each channel: salt and pepper, errors of bits."""
    replaced = _REPLACED.at(severity, images)
    uniform = np.stack([draw(b).random(images.shape[1:], dtype=np.float32) for b in range(len(images))])
    black, white = uniform < replaced / 2, uniform >= 1 - replaced / 2
    return np.where(black, np.uint8(0), np.where(white, np.uint8(255), images))
