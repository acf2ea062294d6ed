"""Arrays as colours, and images as PNG, JPEG and data URIs.

Magnitudes have the colours of viridis, whose lightness grows evenly, so that the order of values survives greyscale and
colour blindness (https://bids.github.io/colormap/). Shapes: (h, w) patches, H x W pixels.
"""

from __future__ import annotations

import base64
import functools
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["data_uri", "jpeg", "magnitude_colours", "overlaid", "png", "reduced", "scaled", "viridis"]

Bytes = npt.NDArray[np.uint8]

_OPACITY = 0.6  # of a map over its image in PNG files
_MAX_JPEG = 36_000  # bytes of an image in a page, which has each image several times


@functools.cache
def viridis() -> Bytes:
    """Return the colours, (256, 3)."""
    import matplotlib as mpl  # slow, and creates a folder for its settings: only where something is drawn

    return (mpl.colormaps["viridis"](np.arange(256))[:, :3] * 255).round().astype(np.uint8)


def scaled(values: npt.NDArray[Any], low: float | None = None, high: float | None = None) -> npt.NDArray[np.float64]:
    """Scale values to [0, 1] from low to high, by default the smallest and largest finite value; a constant becomes 0.

    Values beyond the limits are clipped; NaN stays.
    """
    values = np.asarray(values, np.float64)
    low = float(np.nanmin(values)) if low is None else low
    high = float(np.nanmax(values)) if high is None else high
    return np.clip((values - low) / (high - low), 0, 1) if high > low else np.zeros_like(values) * values


def magnitude_colours(values: npt.NDArray[Any], low: float | None = None, high: float | None = None) -> Bytes:
    """Return the colours (..., 3) of values as :func:`scaled`; NaN has that of the lowest value."""
    return viridis()[np.nan_to_num(255 * scaled(values, low, high)).round().astype(np.uint8)]


def overlaid(image: Image.Image, values: npt.NDArray[np.float32]) -> Image.Image:
    """Return an image under a map in its pixels, (H, W); where the map is NaN, the image is darkened."""
    pixels = np.asarray(image.convert("RGB"), np.float32)
    mixed = (1 - _OPACITY) * pixels + _OPACITY * magnitude_colours(values)
    return Image.fromarray(np.where(np.isnan(values)[..., None], 0.35 * pixels, mixed).round().astype(np.uint8))


def reduced(image: Image.Image, side: int) -> Image.Image:
    """Return an image in RGB with at most so many pixels along its longer side."""
    image = image.convert("RGB")  # a copy, which thumbnail changes
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return image


def png(pixels: Bytes | Image.Image) -> bytes:
    """Encode an array (H, W, 3) or an image as PNG."""
    memory = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(memory, "PNG", optimize=True)
    return memory.getvalue()


def jpeg(image: Image.Image, max_bytes: int = _MAX_JPEG) -> bytes:
    """Encode an image as JPEG of at most so many bytes: one that is too large, such as noise, is reduced again."""
    memory = io.BytesIO()
    image.convert("RGB").save(memory, "JPEG", quality=82, optimize=True)
    if memory.tell() <= max_bytes or max(image.size) <= 64:
        return memory.getvalue()
    return jpeg(reduced(image, max(image.size) * 3 // 4), max_bytes)


def data_uri(encoded: bytes) -> str:
    """Return a PNG or JPEG file as a data URI."""
    kind = "png" if encoded.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode('ascii')}"
