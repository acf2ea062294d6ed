"""By how much a written file may differ from PyTorch in float32."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BOUNDS", "NATIVE_LEVELS", "NATIVE_PIXELS", "ROUNDINGS", "Bounds", "bounds_of"]

NATIVE_LEVELS = 2
"""Largest change of a pixel by a native resize, of 255 levels: each of its two passes may round to another level."""

NATIVE_PIXELS = 0.25
"""Largest share of pixels that a native resize may change: runtimes round filter weights and ties otherwise than
Pillow. In small images of noise ties are frequent, up to 12 % were measured; on photographs 0.1 %. An exact resize
changes none."""

_NATIVE, _NATIVE_VALUES = {"probabilities": 5e-3, "class_map": 1e-1}, 2e-2  # of outputs after such a resize

ROUNDINGS = 4
"""A class map may differ by so many times what float32 can give of it, where that is above its bound.

Both sides are rounded, each by up to 1.2 times :func:`vitreous.inspection.maps.gradient_attention.rounding`, and they
add in another order."""

_CLASS_MAP = 1e-4  # of the largest value


@dataclass(frozen=True)
class Bounds:
    """Largest accepted differences.

    Attributes:
        outputs: Of outputs: absolute for probabilities, for logits and features relative to the largest of the image.
        layer: Of the values after a layer, relative to the largest of the image: a layer that differs by more is named.
    """

    outputs: float
    layer: float


BOUNDS = {
    "float32": Bounds(outputs=3e-5, layer=3e-5),
    "fp16": Bounds(outputs=5e-3, layer=2e-2),
    "bf16": Bounds(outputs=3e-2, layer=1e-1),
    "int8": Bounds(outputs=5e-1, layer=5e-1),
}
"""By the precision of the file. In float32, correct files differ by a few millionths.

In int8 the bound only finds what is broken; accuracy on labelled images decides. Values beyond those of calibration are
cut off, so that the features of a model of digits change by up to 0.3 on photographs, in ONNX Runtime and OpenVINO.
"""


def bounds_of(bounds: Bounds, output: str, is_resized: bool, resize: str) -> float:
    """Return the bound of an output, for images that were resized by the graph or not; `resize` is its kind."""
    bound = max(bounds.outputs, _CLASS_MAP) if output == "class_map" else bounds.outputs
    if resize == "exact" or not is_resized:
        return bound
    return max(bound, _NATIVE.get(output, _NATIVE_VALUES))
