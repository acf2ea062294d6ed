"""Closed-form intervals of the macro averages of the area under the ROC curve and of average precision.

N images, K classes, m positive images (of the class), S distinct scores. Resampling would sort N scores of K classes
a thousand times. Instead, the infinitesimal jackknife gives each image's influence on the score, and the variance is
the sum over the classes of the variance of the influences within the class. For an area under a ROC curve and two
classes this is DeLong's variance (1988), whose structural components are these influences.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, logit, ndtri
from torch import Tensor

from vitreous.evaluate.scoring.intervals import Interval, check_share
from vitreous.evaluate.scoring.metrics import check_predictions

__all__ = ["area_intervals"]

Floats = npt.NDArray[np.float64]


def area_intervals(logits: Tensor, labels: Tensor, level: float = 0.95) -> dict[str, Interval]:
    """Return `macro_auc` and `macro_average_precision` of logits (N, K) with intervals at a confidence level.

    The intervals are normal on the logit scale, so they stay within [0, 1]. A score that no class defines is left out.
    The interval of a score of exactly 0 or 1, or without any variance, has no width.
    """
    check_share("level", level)
    logits, labels = check_predictions(logits, labels)
    ranked, true = torch.log_softmax(logits, dim=1).numpy(), labels.numpy()
    n, classes = ranked.shape
    sums = {"macro_auc": np.zeros(n), "macro_average_precision": np.zeros(n)}
    values: dict[str, list[float]] = {name: [] for name in sums}
    for k in range(classes):
        positive = true == k
        if not positive.any() or positive.all():
            if positive.any():
                values["macro_average_precision"].append(1.0)
            continue
        for name, (value, influence) in zip(sums, _influences(ranked[:, k], positive), strict=True):
            values[name].append(value)
            sums[name] += influence
    return {
        name: _interval(float(np.mean(values[name])), influence / len(values[name]), true, level)
        for name, influence in sums.items()
        if values[name]
    }


def _influences(score: Floats, positive: npt.NDArray[np.bool_]) -> tuple[tuple[float, Floats], tuple[float, Floats]]:
    """Return the area under the ROC curve and average precision, each with the influence of the images (N,).

    An influence is the derivative of the score with respect to the image's weight, at a fixed total weight of the
    positive and of the other images, up to a constant within each of the two groups.
    """
    m, others = int(positive.sum()), int((~positive).sum())
    _, level = np.unique(-score, return_inverse=True)  # falling scores, S levels
    hits = np.bincount(level, positive)  # (S,)
    misses = np.bincount(level) - hits  # (S,)
    hits_to, misses_to = hits.cumsum(), misses.cumsum()
    beaten = (others - misses_to + misses / 2) / others  # (S,) share of the other images that a positive one beats
    losing = (hits_to - hits / 2) / m  # (S,) share of the positive images that beat another one
    auc = float((hits * beaten).sum() / m)
    of_auc = np.where(positive, beaten[level] / m, losing[level] / others)

    precision = hits_to / (hits_to + misses_to)
    total = (hits_to + misses_to) ** 2
    # Precision at a level rises with the weight of every positive image at or above it, and falls with the others'.
    from_hits = (hits * misses_to / total)[::-1].cumsum()[::-1] / m  # (S,) summed over the level and those below
    from_misses = (hits * hits_to / total)[::-1].cumsum()[::-1] / m
    of_ap = np.where(positive, precision[level] / m + from_hits[level], -from_misses[level])
    return (auc, of_auc), (float((hits * precision).sum() / m), of_ap)


def _interval(value: float, influence: Floats, labels: npt.NDArray[np.int64], level: float) -> Interval:
    """Return the interval from influences (N,), which are summed over the classes that are averaged."""
    counts = np.bincount(labels)
    held = counts > 1
    means = np.bincount(labels, influence) / np.maximum(counts, 1)
    squares = np.bincount(labels, (influence - means[labels]) ** 2)
    # n times the variance within a class, which has n - 1 degrees of freedom.
    variance = float((squares[held] * counts[held] / (counts[held] - 1)).sum())
    if variance == 0 or not 0 < value < 1:
        return Interval(value, value, value)
    half = float(ndtri((1 + level) / 2)) * math.sqrt(variance) / (value * (1 - value))
    return Interval(value, float(expit(logit(value) - half)), float(expit(logit(value) + half)))
