"""Everything that an inspection found, and its JSON form.

Shapes: L blocks, H heads, (h, w) patches down and across.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitreous.evaluate.scoring.intervals import Interval
from vitreous.inspection.explanation import Explanation
from vitreous.inspection.faithfulness.table import Faithfulness
from vitreous.report.inspection.attention import StoredAttention

__all__ = ["Comparison", "ImageResult", "Inspection", "Measure", "Neighbour", "PatchNeighbour"]

Floats = npt.NDArray[np.float32]


class Measure(Protocol):
    """A measure of :mod:`vitreous.inspection`."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""


@dataclass(frozen=True, eq=False)
class Neighbour:
    """One of the most similar labelled images.

    Attributes:
        name: Its name in the data.
        label: Its class; of several labels, those that it has, or `no label`.
        similarity: Cosine similarity of the features, in [-1, 1].
        image: The image, small; None if it can no longer be read.
    """

    name: str
    label: str
    similarity: float
    image: Image.Image | None


@dataclass(frozen=True, eq=False)
class PatchNeighbour:
    """The most similar patch of a labelled image to one patch.

    Attributes:
        patch: The patch of the inspected image, (row, column).
        other: Row and column of the similar patch.
        found: The labelled image, with the similarity of the two patches.
    """

    patch: tuple[int, int]
    other: tuple[int, int]
    found: Neighbour


@dataclass(frozen=True, eq=False)
class ImageResult:
    """What was found about one image.

    Attributes:
        name: Its path, or `#0` if it has none.
        pixels: The image in RGB at its own size.
        top: The most probable classes with their probabilities, in descending order; empty without classes.
        maps: Class maps by the chosen methods, then rollout; without classes, maps that need none.
        heads: How much the tokens that the pooling reads attend to each patch, (L, H, h, w).
        attention_layers: The blocks of `heads`, from 0.
        attention: Attention of every token, for the page.
        colours: Principal components of the patch features as colours, (h, w, 3) in [0, 1]; None if not computed.
        neighbours: Most similar labelled images, the most similar first; empty without data.
        patch_neighbours: Most similar patches of labelled images, for some patches.
        register_maps: Maps of the model, each with that of the same method with a test-time register; empty unless they
            were asked for and outlier tokens moved.
    """

    name: str
    pixels: Image.Image
    top: tuple[tuple[str, float], ...]
    maps: tuple[Explanation, ...]
    heads: Floats
    attention_layers: tuple[int, ...]
    attention: StoredAttention
    colours: npt.NDArray[np.floating[Any]] | None = None
    neighbours: tuple[Neighbour, ...] = ()
    patch_neighbours: tuple[PatchNeighbour, ...] = ()
    register_maps: tuple[tuple[Explanation, Explanation], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return every number of the image."""
        return {
            "path": self.name,
            "image_size": [self.pixels.height, self.pixels.width],
            "probabilities": [{"label": label, "probability": share} for label, share in self.top],
            "maps": [
                {
                    "method": each.method,
                    "options": dict(each.options),
                    "target": each.label or None,
                    "probability": each.probability if each.label else None,
                    "uses_class": each.uses_class,
                    "patches": each.patches.tolist(),
                }
                for each in self.maps
            ],
            "maps_with_register": [
                {"method": after.method, "without": before.patches.tolist(), "with": after.patches.tolist()}
                for before, after in self.register_maps
            ],
            "attention_blocks": list(self.attention_layers),
            "attention_by_block_and_head": self.heads.tolist(),
            "patch_colours": None if self.colours is None else self.colours.tolist(),
            "neighbours": [_neighbour(each) for each in self.neighbours],
            "patch_neighbours": [
                {"patch": list(each.patch), "other": list(each.other), **_neighbour(each.found)}
                for each in self.patch_neighbours
            ],
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """How faithful map methods are, on a sample of images.

    Attributes:
        rows: One for each method, and that of random maps last.
        randomisation: Rank correlation of each method's maps with those of the model whose last half of the blocks is
            drawn again: the mean and its interval.
        source: Where the images are from, for people.
        seconds: How long it took.
        options: Options of each method, by its name.
    """

    rows: tuple[Faithfulness, ...]
    randomisation: Mapping[str, Interval]
    source: str
    seconds: float
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def row(self, method: str) -> Faithfulness | None:
        """Return the row of a method, if it was compared."""
        return next((row for row in self.rows if row.method == method), None)

    def to_dict(self) -> dict[str, Any]:
        """Return every number."""
        return {
            "source": self.source,
            "seconds": self.seconds,
            "methods": [{**asdict(row), "options": dict(self.options.get(row.method, {}))} for row in self.rows],
            "randomisation": {name: asdict(value) for name, value in self.randomisation.items()},
        }


@dataclass(frozen=True, eq=False)
class Inspection:
    """The result of `vitreous inspect`.

    Attributes:
        model: The model, as the user named it.
        description: The model in words.
        classes: Its class names.
        images: One result for each image that could be read.
        measures: Measures of the model, by name.
        comparison: Faithfulness of the map methods; None without enough images.
        failures: Images that could not be read, with the reason.
        notes: Remarks for the reader, such as what was left out and why.
    """

    model: str
    description: str
    classes: tuple[str, ...]
    images: tuple[ImageResult, ...] = ()
    measures: Mapping[str, Measure] = field(default_factory=dict)
    comparison: Comparison | None = None
    failures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return every number as plain JSON values, as `vitreous inspect --json` writes them."""
        return {
            "model": self.model,
            "description": self.description,
            "classes": list(self.classes),
            "images": [each.to_dict() for each in self.images],
            "measures": {name: measure.to_dict() for name, measure in self.measures.items()},
            "faithfulness": None if self.comparison is None else self.comparison.to_dict(),
            "unreadable": [{"path": name, "reason": reason} for name, reason in self.failures],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return f"Inspection({self.model!r}, {len(self.images)} images, measures: {', '.join(self.measures) or 'none'})"


def _neighbour(each: Neighbour) -> dict[str, Any]:
    return {"path": each.name, "label": each.label, "similarity": each.similarity}
