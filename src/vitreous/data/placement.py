"""Where an image's pixels lie in the model's input: the geometry of the evaluation pipeline, without the pixels.

Shapes and sizes are (height, width) as in ``EvalPipeline.size``; boxes are (left, top, right, bottom) as in Pillow.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.data.config import PreprocessConfig

__all__ = ["Placement", "cover_size", "place"]

_LONGEST = 16  # an image longer than this many times the target is cut before it is resized


@dataclass(frozen=True)
class Placement:
    """How an image becomes the model's input: cut, resized, then shifted.

    Attributes:
        cut: The part of the image that is used, a box in its pixels.
        resized: Height and width of that part after resizing.
        left: Column of the input where the resized part begins; negative where it is cropped.
        top: Row, likewise.
    """

    cut: tuple[int, int, int, int]
    resized: tuple[int, int]
    left: int
    top: int

    def to_input(self, row: float, column: float) -> tuple[float, float]:
        """Return the place in the input, (row, column), of a place in the image; pixel i covers i to i + 1."""
        x0, y0, x1, y1 = self.cut
        height, width = self.resized
        return (row - y0) * height / (y1 - y0) + self.top, (column - x0) * width / (x1 - x0) + self.left


def place(image: tuple[int, int], size: tuple[int, int], config: PreprocessConfig) -> Placement:
    """Return the placement of an image (H, W) in an input of the given size."""
    fit = {"crop": _crop, "squash": _squash, "pad": _pad}[config.fit]
    return fit(image, size, config)


def cover_size(size: tuple[int, int], config: PreprocessConfig) -> tuple[int, int]:
    """Return the size that `crop` resizes an image to cover, before it cuts the centre."""
    height, width = size
    return int(height / config.crop_ratio), int(width / config.crop_ratio)  # as in timm: 224 at 0.875 is 256


def _crop(image: tuple[int, int], size: tuple[int, int], config: PreprocessConfig) -> Placement:
    """Cover the size divided by `crop_ratio`, then cut the centre."""
    (h, w), (height, width) = image, size
    cover_h, cover_w = cover_size(size, config)  # the longer side is rounded down as in torchvision's Resize
    wide = w * cover_h > h * cover_w
    # Resizing a strip of 1 x 50,000 pixels would exhaust the memory.
    cut = (
        _centre(image, h, _LONGEST * cover_w * h // cover_h)
        if wide
        else _centre(image, _LONGEST * cover_h * w // cover_w, w)
    )
    x0, y0, x1, y1 = cut
    resized = (cover_h, (x1 - x0) * cover_h // (y1 - y0)) if wide else ((y1 - y0) * cover_w // (x1 - x0), cover_w)
    return Placement(cut, resized, -round((resized[1] - width) / 2), -round((resized[0] - height) / 2))


def _squash(image: tuple[int, int], size: tuple[int, int], config: PreprocessConfig) -> Placement:
    """Fill the size, whatever the aspect ratio."""
    return Placement((0, 0, image[1], image[0]), size, 0, 0)


def _pad(image: tuple[int, int], size: tuple[int, int], config: PreprocessConfig) -> Placement:
    """Fit into the size, in its centre."""
    (h, w), (height, width) = image, size
    resized = (max(1, h * width // w), width) if w * height > h * width else (height, max(1, w * height // h))
    return Placement((0, 0, w, h), resized, (width - resized[1]) // 2, (height - resized[0]) // 2)


def _centre(image: tuple[int, int], height: int, width: int) -> tuple[int, int, int, int]:
    """Return the box of the centre of an image, at most height x width and at least one pixel."""
    h, w = image
    height, width = min(max(1, height), h), min(max(1, width), w)
    left, top = (w - width) // 2, (h - height) // 2
    return left, top, left + width, top + height
