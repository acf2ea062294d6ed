"""An image under its class map, as HTML: overlays of one pixel per patch over the part that the model saw.

The browser enlarges the overlay, so that the image keeps its own aspect ratio and the page stays small. The style sheet
is `shared.css`. Shapes: (h, w) patches down and across.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.inspection.explanation import Explanation
from vitreous.report.drawing import data_uri, magnitude_colours, png, viridis

__all__ = ["Stage", "map_layer", "scale_legend", "where_highest"]


@dataclass(frozen=True)
class Stage:
    """Where the image and the model's input lie in a common frame, as percentages of CSS."""

    ratio: float
    image: str
    input: str

    @staticmethod
    def of(one: Explanation, excess: tuple[float, float] = (1.0, 1.0)) -> Stage:
        """Return the stage of an image; ``excess`` is the size of the drawn cells as a share of the input."""
        (height, width), place = one.image_size, one.placement
        start, step = np.array(place.to_input(0, 0)), np.array(place.to_input(1, 1)) - place.to_input(0, 0)
        first = -start / step  # row and column of the image where the input begins
        last = (np.array(one.input_size) * excess - start) / step
        low, high = np.minimum(first, 0), np.maximum(last, (height, width))
        size = high - low

        def box(begin: npt.NDArray[Any], end: npt.NDArray[Any]) -> str:
            top, left = 100 * (begin - low) / size
            tall, wide = 100 * (end - begin) / size
            return f"left:{left:.3f}%;top:{top:.3f}%;width:{wide:.3f}%;height:{tall:.3f}%"

        return Stage(size[1] / size[0], box(np.zeros(2), np.array([height, width])), box(first, last))

    def draw(self, source: str, *layers: str) -> str:
        """Return the frame with the image; the layers lie above it."""
        return self.frame(f'<img src="{source}" alt="" style="{self.image}">', *layers)

    def frame(self, *layers: str) -> str:
        """Return the frame with nothing but the layers."""
        return f'<div class="stage" style="--ratio:{self.ratio:.5f}">{"".join(layers)}</div>'


def map_layer(one: Explanation, stage: Stage, alt: str) -> str:
    """Return the layer of a map, in colours from its lowest to its highest value; `alt` is HTML."""
    source = data_uri(png(magnitude_colours(one.patches)))
    return f'<img class="map" src="{source}" alt="{alt}" style="{stage.input}">'


def scale_legend(note: str) -> str:
    """Return the legend of all maps of a page; `note` is HTML."""
    stops = ",".join(f"rgb({r},{g},{b})" for r, g, b in viridis()[::17].tolist())
    return (
        f'<div class="scale"><span>lowest</span><i style="background:linear-gradient(90deg,{stops})"></i>'
        f'<span>highest</span><span class="soft">{note}</span></div>\n'
    )


def where_highest(values: npt.NDArray[Any]) -> str:
    """Say where a map is highest, for readers who cannot see it."""
    (h, w), best = values.shape, int(values.argmax())
    return f"highest in row {best // w + 1} of {h}, column {best % w + 1} of {w}"
