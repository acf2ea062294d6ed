"""Scores of either kind of data, told apart by the labels: (N,) are classes, (N, K) are several labels of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, Union

from torch import Tensor

from vitreous.evaluate.scoring.metrics import Scores, evaluate

if TYPE_CHECKING:
    from vitreous.evaluate.multilabel.metrics import MultiLabelScores

__all__ = ["AnyScores", "scores_of"]

AnyScores: TypeAlias = Union[Scores, "MultiLabelScores"]
"""The scores of images with one class each, or with several labels."""


def scores_of(logits: Tensor, labels: Tensor) -> AnyScores:
    """Score logits (N, K) with classes (N,), or with labels (N, K) of 0 and 1."""
    if labels.ndim == 2:
        from vitreous.evaluate.multilabel.metrics import evaluate_labels  # only where it is used

        return evaluate_labels(logits, labels)
    return evaluate(logits, labels)
