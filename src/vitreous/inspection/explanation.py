"""What an explanation holds, and its map in the image's own pixels.

Shapes: (h, w) patches down and across, H x W pixels, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.data.placement import Placement

__all__ = ["Explanation"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Which patches speak for a class, by one method.

    Attributes:
        patches: The map, (h, w) float32; the method's docstring states its range.
        method: The method's name.
        target: Number of the class explained; -1 of a model without classes.
        label: Its name, or an empty text.
        probability: Its probability in [0, 1], calibrated if the model has a temperature; 0 without a class.
        logits: Of all classes, (K,) float32, from the same pass as the map.
        name: The image's path, or `#0` if it has none.
        image_size: Height and width of the image in pixels, after its orientation tag.
        input_size: Height and width of the model's input in pixels.
        placement: Where the image lies in the model's input.
        uses_class: Whether the map depends on the class.
        options: Options of the method, by name.
    """

    patches: Floats
    method: str
    target: int
    label: str
    probability: float
    logits: Floats = field(repr=False)
    name: str
    image_size: tuple[int, int]
    input_size: tuple[int, int]
    placement: Placement = field(repr=False)
    uses_class: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across, (h, w)."""
        h, w = self.patches.shape
        return h, w

    def image_map(self, smooth: bool = True) -> Floats:
        """Return the map in the image's own pixels, (H, W) float32.

        Resizing, cropping and padding of the evaluation pipeline are undone. Pixels that the model did not see, outside
        a centre crop, are NaN.

        Args:
            smooth: Interpolate bilinearly between the centres of patches; else each pixel has its patch's value.
        """
        (height, width), place = self.image_size, self.placement
        ends = np.array([place.to_input(0, 0), place.to_input(1, 1)])  # affine: two points give all
        return self._sampled(
            [
                ends[0, axis] + (ends[1, axis] - ends[0, axis]) * (np.arange(n) + 0.5)
                for axis, n in enumerate((height, width))
            ],
            smooth,
        )

    def input_map(self, smooth: bool = True) -> Floats:
        """Return the map in pixels of the model's input, ``input_size``, float32; arguments as :meth:`image_map`."""
        return self._sampled([np.arange(n) + 0.5 for n in self.input_size], smooth)

    def _sampled(self, places: list[npt.NDArray[np.floating[Any]]], smooth: bool) -> Floats:
        """Return the map at rows and columns of the input, in pixels; NaN outside the input."""
        rows, columns = (
            _weights(at, size, patches, smooth)
            for at, size, patches in zip(places, self.input_size, self.grid, strict=True)
        )
        return (rows @ self.patches.astype(np.float64) @ columns.T).astype(np.float32)


def _weights(at: npt.NDArray[np.floating[Any]], size: int, patches: int, smooth: bool) -> npt.NDArray[np.float64]:
    """Return the weight of each patch at places along one side of the input, places x patches; NaN outside it."""
    place = at / size * patches  # in patches; patch i covers i to i + 1
    if smooth:  # between centres; beyond the outermost centre its value holds
        place = np.clip(place - 0.5, 0, patches - 1)
        distance = np.abs(place[:, None] - np.arange(patches))
        weights = np.maximum(0.0, 1.0 - distance)
    else:
        weights = np.eye(patches)[np.clip(np.floor(place).astype(int), 0, patches - 1)]
    weights[(at < 0) | (at > size)] = np.nan
    return weights
