"""Confidence intervals of the scores of several labels, by resampling images. N images, K labels, R resamples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vitreous.evaluate.multilabel.metrics import (
    MultiLabelScores,
    check_label_sets,
    evaluate_labels,
    mean_average_precision,
)
from vitreous.evaluate.scoring.intervals import Interval

__all__ = ["LabelDifference", "compare_labels", "label_calibration_error", "label_intervals", "mean_ap_interval"]

_RESAMPLES = 200
_FEWEST, _WORK = 40, 4e8  # resamples of large data, and the products of resamples, images and labels that are too many
_PAIRED = 400  # resamples of a comparison
_EQUAL = 1e-12  # sums of the same numbers in another order
_TAILS = (2.5, 97.5)  # percentiles of a 95 % interval

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LabelDifference:
    """The difference of one score of two models, A minus B."""

    difference: Interval
    p_value: float  # two-sided: twice the smaller share of resamples on either side of no difference, in (0, 1]


def label_intervals(scores: MultiLabelScores, logits: Tensor, labels: Tensor, present: Tensor) -> dict[str, Interval]:
    """Return the scores of calibrated logits, labels and labels given, (N, K) each, with 95 % percentile intervals."""
    drawn = _resampled(logits, labels, present, _RESAMPLES)
    bounds = {name: np.percentile(each, _TAILS).tolist() for name, each in drawn.items()}
    return {name: _around(getattr(scores, name), low, high) for name, (low, high) in bounds.items()}


def mean_ap_interval(values: Tensor, labels: Tensor) -> Interval:
    """Return the mAP of values and labels, (N, K) each, with its 95 % percentile interval."""
    given, true = check_label_sets(values, labels)
    has = true.numpy().astype(np.float64)
    resamples = max(_FEWEST, min(_RESAMPLES, int(_WORK / has.size)))
    low, high = np.percentile(_mean_ap(given.numpy(), has, _draws(len(has), resamples)), _TAILS).tolist()
    return _around(mean_average_precision(given.numpy(), true.numpy()), low, high)


def compare_labels(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], labels: Tensor, resamples: int = _PAIRED
) -> dict[str, LabelDifference]:
    """Compare two models by a paired bootstrap: both are scored on the same resamples of the images.

    ``a`` and ``b`` are calibrated logits and labels given, (N, K) each. The interval has the percentiles of the
    differences, at 95 %. A difference of exactly 0 counts half to either side.
    """
    scores = [evaluate_labels(pair[0], labels, pair[1]) for pair in (a, b)]
    drawn = [_resampled(pair[0], labels, pair[1], resamples) for pair in (a, b)]
    found = {}
    for name, values in drawn[0].items():
        gaps = values - drawn[1][name]
        gaps[np.abs(gaps) < _EQUAL] = 0
        low, high = np.percentile(gaps, _TAILS).tolist()
        sides = [float((each > 0).sum() + (each == 0).sum() / 2) for each in (gaps, -gaps)]
        p_value = min(1.0, (2 * min(sides) + 1) / (resamples + 1))
        observed = float(getattr(scores[0], name) - getattr(scores[1], name))
        found[name] = LabelDifference(Interval(observed, low, high), p_value)
    return found


def _resampled(logits: Tensor, labels: Tensor, present: Tensor, resamples: int) -> dict[str, Floats]:
    """Return the scores of each resample, (R,); equal numbers of images and resamples give equal resamples."""
    values, true = check_label_sets(logits, labels)
    has, given = true.numpy().astype(np.float64), present.cpu().numpy().astype(np.float64)
    weights = _draws(len(has), resamples)
    hits, support, predicted = (weights @ each for each in (has * given, has, given))  # R K
    return {
        "mean_ap": _mean_ap(values.numpy(), has, weights),
        "macro_f1": _f1(hits, support, predicted).mean(axis=1),
        "micro_f1": _f1(*(each.sum(axis=1) for each in (hits, support, predicted))),
        "subset_accuracy": weights @ (has == given).all(axis=1) / len(has),
    }


def _around(value: float, low: float, high: float) -> Interval:
    """Return an interval with bounds that are widened to hold its value, which few images may put outside."""
    return Interval(value, min(low, value), max(high, value))


def _draws(n: int, resamples: int) -> Floats:
    """Return how often each of n images is in each resample, (R, N)."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)


def _f1(hits: Floats, support: Floats, predicted: Floats) -> Floats:
    return 2 * hits / np.maximum(predicted + support, 1)


def _mean_ap(values: Floats, has: Floats, weights: Floats) -> Floats:
    """Return the mAP of each resample, (R,); images of equal values share the rank of the last of them."""
    total, counted = np.zeros(len(weights)), np.zeros(len(weights))
    for k in np.flatnonzero(has.any(axis=0)).tolist():
        order = np.argsort(-values[:, k], kind="stable")
        falling = -values[order, k]
        last = np.searchsorted(falling, falling, side="right") - 1  # of the images with the same value
        drawn = weights[:, order]  # R N
        positive = drawn * has[order, k]
        hits = positive.cumsum(axis=1)
        precision = (hits / np.maximum(drawn.cumsum(axis=1), 1))[:, last]
        found = hits[:, -1]
        total += (positive * precision).sum(axis=1) / np.maximum(found, 1)
        counted += found > 0
    return total / np.maximum(counted, 1)


def label_calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the calibration error of the probability of each label, with bins of equal width, mean over labels."""
    calibrated, true = check_label_sets(logits, labels)
    probabilities, k = calibrated.sigmoid().numpy(), calibrated.shape[1]
    index = np.minimum((probabilities * bins).astype(np.int64), bins - 1) + np.arange(k) * bins
    gaps = np.bincount(index.ravel(), (probabilities - true.numpy()).ravel(), bins * k)
    return float(np.abs(gaps).sum() / probabilities.size)
