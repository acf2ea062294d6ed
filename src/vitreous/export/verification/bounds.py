"""By how much a written file may differ from PyTorch in float32."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BOUNDS", "PIXEL_SHARE", "PIXEL_STEP", "Bounds", "Precision"]

Precision = str

PIXEL_STEP = 1
"""Largest difference of a resized pixel, of 255 levels: runtimes round filter weights and ties otherwise than Pillow."""

PIXEL_SHARE = 0.25
"""Largest share of pixels that differ by one level. Ties are frequent in small images of noise, where up to 12 % were
measured; on photographs 0.1 %."""


@dataclass(frozen=True)
class Bounds:
    """Largest accepted differences.

    Attributes:
        exact: Of outputs for images that need no resize: absolute for probabilities; for logits and features relative
            to the largest of the image.
        probabilities: Of probabilities for images that are resized, whose pixels may differ as `PIXEL_STEP` says.
        values: The same for logits and features, relative to the largest of the image.
        layer: Of the values after a layer, relative to the largest of the image: a layer that differs by more is named.
    """

    exact: float
    probabilities: float
    values: float
    layer: float


BOUNDS: dict[Precision, Bounds] = {
    "float32": Bounds(exact=3e-5, probabilities=1e-4, values=2e-3, layer=1e-3),
    "fp16": Bounds(exact=5e-3, probabilities=5e-3, values=1e-2, layer=2e-2),
    "bf16": Bounds(exact=3e-2, probabilities=3e-2, values=6e-2, layer=1e-1),
}
"""By the precision of the file. In float32, correct files differ by a few millionths where nothing is resized."""
