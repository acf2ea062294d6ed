"""Scores of several labels on parts of a set of images, by further columns of the manifest. N images, K labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from vitreous.evaluate.multilabel.metrics import check_label_sets, evaluate_labels
from vitreous.evaluate.scoring.intervals import Interval, wilson
from vitreous.evaluate.scoring.slices import FEWEST, parts_of

__all__ = ["LabelSlice", "score_label_slices"]


@dataclass(frozen=True)
class LabelSlice:
    """Scores of the images with one value in one column."""

    column: str
    value: str
    n: int  # number of images
    mean_ap: float  # over the labels that an image of the slice has
    micro_f1: float
    subset_accuracy: Interval  # Wilson's interval
    small: bool  # fewer than `FEWEST` images


def score_label_slices(
    logits: Tensor, labels: Tensor, present: Tensor, columns: Mapping[str, Sequence[str | None]]
) -> list[LabelSlice]:
    """Score the images of each value of each column, from calibrated logits, labels and labels given, (N, K) each.

    ``columns`` has the N values of each column. Slices are in the order of the columns, and within a column the one
    with the lowest mAP is first.
    """
    values, true = check_label_sets(logits, labels)
    given, found = present.cpu().bool(), []
    for column, cells in columns.items():
        slices = []
        for value, held in parts_of(column, cells, len(true)):
            scores = evaluate_labels(values[held], true[held], given[held])
            right = wilson(round(scores.subset_accuracy * scores.n), scores.n)
            small = scores.n < FEWEST
            slices.append(LabelSlice(column, value, scores.n, scores.mean_ap, scores.micro_f1, right, small))
        found += sorted(slices, key=lambda each: (each.mean_ap, each.value))
    return found
