"""Scores of parts of a set of images, by columns of the manifest beyond image and label.

N images, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import DataError
from vitreous.evaluate.scoring.intervals import Interval, wilson
from vitreous.evaluate.scoring.metrics import check_predictions, evaluate

__all__ = ["FEWEST", "MISSING", "Slice", "parts_of", "score_slices"]

MISSING = "(missing)"
"""The value of images whose cell is None, empty or blank."""

FEWEST = 30
"""Images below which the scores of a slice say little."""


@dataclass(frozen=True)
class Slice:
    """Scores of the images with one value in one column."""

    column: str
    value: str
    n: int  # number of images
    accuracy: Interval  # Wilson's interval
    macro_recall: float  # mean recall over the classes that occur in the slice
    log_loss: float  # mean cross-entropy, in nats
    small: bool  # fewer images than the minimum: the scores say little


def score_slices(
    logits: Tensor,
    labels: Tensor,
    columns: Mapping[str, Sequence[str | None]],
    *,
    minimum: int = FEWEST,
    level: float = 0.95,
) -> list[Slice]:
    """Score the images of each value of each column, from logits (N, K) and labels (N,).

    `columns` maps the name of a column to its N values, in the order of the images. Slices are in the order of the
    columns, and within a column the least accurate is first. A slice of fewer than `minimum` images is marked `small`.

    Raises:
        DataError: If a column does not have N values, or `minimum` is below 1.
    """
    logits, labels = check_predictions(logits, labels)
    if minimum < 1:
        raise DataError(f"minimum is {minimum}, it must be at least 1 image")
    found = []
    for column, cells in columns.items():
        slices = []
        for value, held in parts_of(column, cells, len(labels)):
            scores, n = evaluate(logits[held], labels[held]), len(held)
            recalls = [each.recall for each in scores.per_class if each.support]
            accuracy = wilson(int((logits[held].argmax(dim=1) == labels[held]).sum()), n, level)
            mean = float(np.mean(recalls))
            slices.append(Slice(column, value, n, accuracy, mean, scores.log_loss, n < minimum))
        found += sorted(slices, key=lambda each: (each.accuracy.value, each.value))
    return found


def parts_of(column: str, cells: Sequence[str | None], images: int) -> Iterator[tuple[str, Tensor]]:
    """Yield each value of a column, in order, and the positions (n,) of its images.

    Raises:
        DataError: If the column does not have a value for each of the images.
    """
    if len(cells) != images:
        raise DataError(f"column '{column}' has {len(cells):,} values for {images:,} images: give one per image")
    values = np.array([MISSING if cell is None or not cell.strip() else cell for cell in cells])
    for value in np.unique(values):
        yield str(value), torch.from_numpy(np.flatnonzero(values == value))
