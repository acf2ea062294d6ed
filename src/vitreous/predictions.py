"""What the predictor returns for an image: a prediction, an embedding, or the reason of a failure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.errors import DataError
from vitreous.files.html import html_bars

__all__ = ["Embedding", "Failure", "Prediction", "input_name", "raise_failures"]

_MAX_NAMED = 5  # unreadable images that an error names


@dataclass(frozen=True)
class Prediction:
    """The classes predicted for an image.

    Args:
        label: The most probable class.
        probability: Its probability in [0, 1], calibrated if the model has a temperature.
        top: The most probable classes with their probabilities, in descending order.
        name: The image's path, or its position such as ``#0`` if it has none.
        unsure: Whether the prediction is below the model's threshold, so that it has not the promised precision. None
            if the model has no threshold (``vitreous calibrate --precision``).
        set: Classes, the most probable first, that hold the true one with the chance ``set_coverage``. None if the
            model has no sets (``vitreous calibrate --coverage``).
        set_coverage: In (0, 1), or None.
        labels: The labels that the image has, the most probable first: those whose probability is at least their
            threshold. None if the model gives each image one class. With labels, the probabilities do not sum to 1, and
            ``label`` is the most probable one even if it is below its threshold.
    """

    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    name: str
    unsure: bool | None = None
    set: tuple[str, ...] | None = None
    set_coverage: float | None = None
    labels: tuple[str, ...] | None = None

    def _repr_html_(self) -> str:
        return html_bars(f"{self.name}: unsure" if self.unsure else self.name, self.top)


@dataclass(frozen=True)
class Embedding:
    """An image's features (F,), float32, and its name as in :class:`Prediction`."""

    vector: npt.NDArray[np.float32]
    name: str


@dataclass(frozen=True)
class Failure:
    """An image that cannot be read: its name as in :class:`Prediction`, and the reason."""

    name: str
    reason: str


def input_name(item: Any, position: int) -> str:
    """Return an image's path, or its position such as ``#0`` if it has none."""
    if isinstance(item, str | os.PathLike):
        return os.fspath(item) or f"#{position}"
    name = getattr(item, "filename", None) or (getattr(item, "name", None) if hasattr(item, "read") else None)
    return name if isinstance(name, str) else f"#{position}"


def raise_failures(results: Sequence[Any], is_single: bool = False) -> None:
    """Raise one DataError for all results that are a :class:`Failure`."""
    failures = [each for each in results if isinstance(each, Failure)]
    if failures:
        count = "" if is_single else f"{len(failures)} of {len(results)} images cannot be read: "
        named = "; ".join(f"{each.name}: {each.reason}" for each in failures[:_MAX_NAMED])
        rest = f"; and {len(failures) - _MAX_NAMED} more" if len(failures) > _MAX_NAMED else ""
        raise DataError(f"{count}{named}{rest}")
