"""Textures of frost on glass, drawn instead of photographed.

The authors blend images with five photographs of frost. Photographs do not belong into a package, so these textures
are our own: ferns of ice, drawn as lines, over a haze. Each has the mean and the standard deviation of one of the five
photographs, so the blend changes an image about as much as the published corruption does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter

from vitreous.data import rng
from vitreous.data.corruptions.levels import Images

__all__ = ["NUM_TEXTURES", "frost_texture"]


@dataclass(frozen=True)
class _Frost:
    """One texture: its statistics, measured on the authors' photograph, and the shape of its ferns.

    Args:
        mean: Mean of red, green and blue, in grey levels.
        std: Standard deviation of each, in grey levels.
        ferns: Number of ferns on 512 x 512 pixels.
        stem: Length of the stem in pixels.
        needle: Length of the longest needle, as a fraction of the stem.
        haze: Weight of the smooth background, where the ferns have 1.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    ferns: int
    stem: float
    needle: float
    haze: float


_TEXTURES = (
    _Frost((78, 149, 166), (27, 16, 15), ferns=1100, stem=55, needle=0.25, haze=0.8),
    _Frost((201, 205, 214), (21, 22, 23), ferns=1000, stem=75, needle=0.15, haze=0.4),
    _Frost((201, 205, 214), (21, 22, 23), ferns=550, stem=100, needle=0.3, haze=0.4),
    _Frost((138, 153, 165), (28, 28, 30), ferns=3200, stem=22, needle=0.4, haze=0.5),
    _Frost((112, 123, 135), (44, 43, 42), ferns=420, stem=85, needle=0.4, haze=0.3),
)

NUM_TEXTURES = len(_TEXTURES)
"""How many textures of ice there are."""

_SUPERSAMPLING = 2
_GRAIN = 0.35  # weight of fine noise between the ferns, where they have 1
_STREAM = "corruption/frost/texture"


@lru_cache(maxsize=2 * NUM_TEXTURES)
def frost_texture(number: int, side: int, reduction: int = 1) -> Images:
    """Return texture ``number`` as uint8 (3, side, side), read-only; always the same.

    ``reduction`` is how many times smaller than in a large image the ferns are.
    """
    frost = _TEXTURES[number]
    generator = rng.generator(0, number, side, reduction, stream=_STREAM)
    drawn = side * reduction
    crystals = _ferns(generator, frost, drawn)
    haze = gaussian_filter(generator.standard_normal((drawn, drawn), dtype=np.float32), drawn / 24, mode="wrap")
    grain = gaussian_filter(generator.standard_normal((drawn, drawn), dtype=np.float32), 0.7, mode="wrap")
    grey = _standardised(crystals) + frost.haze * _standardised(haze) + _GRAIN * _standardised(grain)
    if reduction > 1:
        grey = grey.reshape(side, reduction, side, reduction).mean(axis=(1, 3))
    grey = _standardised(grey)
    mean, std = (np.array(values, dtype=np.float32)[:, None, None] for values in (frost.mean, frost.std))
    texture = np.clip(np.rint(mean + std * grey), 0, 255).astype(np.uint8)
    texture.setflags(write=False)
    return texture


def _standardised(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Shift and scale to mean 0 and standard deviation 1, without the rare extremes."""
    standard = (values - values.mean()) / values.std()
    clipped = np.clip(standard, -3, 3)
    return (clipped - clipped.mean()) / clipped.std()


def _ferns(generator: np.random.Generator, frost: _Frost, side: int) -> npt.NDArray[np.float32]:
    """Draw ferns on black: bent stems with needles at 60 degrees, the angle between the arms of an ice crystal."""
    canvas = Image.new("L", (side * _SUPERSAMPLING, side * _SUPERSAMPLING))
    pen = ImageDraw.Draw(canvas)
    for _ in range(round(frost.ferns * (side / 512) ** 2)):
        x, y = generator.uniform(-0.1, 1.1, size=2) * canvas.width
        angle, bend = generator.uniform(0, 2 * math.pi), generator.normal(0, 0.02)
        length = frost.stem * _SUPERSAMPLING * generator.uniform(0.4, 1.4)
        light = int(generator.uniform(70, 255))
        step = 2.5 * _SUPERSAMPLING
        steps = max(2, int(length / step))
        shades = generator.uniform(0.5, 1, size=(steps, 2))
        for number in range(steps):
            ahead = x + step * math.cos(angle), y + step * math.sin(angle)
            pen.line((x, y, *ahead), fill=light, width=_SUPERSAMPLING)
            reach = frost.needle * length * (1 - number / steps)
            for turn, shade in zip((math.pi / 3, -math.pi / 3), shades[number], strict=True):
                tip = x + reach * shade * math.cos(angle + turn), y + reach * shade * math.sin(angle + turn)
                pen.line((x, y, *tip), fill=int(light * shade), width=1)
            (x, y), angle = ahead, angle + bend
    reduced = canvas.resize((side, side), Image.Resampling.BOX)
    return np.asarray(reduced, dtype=np.float32)
