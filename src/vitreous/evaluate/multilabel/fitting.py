"""Fits the calibration and the thresholds of labels on images that the model was not trained on. N images, K labels.

The calibration is none, one temperature (Guo et al. 2017, arXiv 1706.04599), or a slope and an offset for each label
(Platt 1999, with his smoothed targets): the simplest, unless another is better on halves that did not fit it. A slope
and an offset undo the shift of the asymmetric loss, which makes every label more probable than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from vitreous.evaluate.multilabel.metrics import check_label_sets
from vitreous.evaluate.multilabel.rule import UNFITTED, LabelRule

__all__ = ["best_thresholds", "cross_fitted", "fit_rule", "fit_slopes", "fit_temperature"]

LOWEST, HIGHEST = 0.05, 20.0
"""Bounds of a slope: beyond them every probability is practically 0, 1 or the share of the label."""

_FEWEST = 4  # images; with fewer, half of them say nothing
_STEPS = 100  # of Newton's method, which takes about ten
_CLOSE = 1e-9  # gradient at which it ends, and spread of equal logits

_Linear = tuple[Tensor, Tensor]
"""Slopes and offsets, float64 (K,) each."""


def fit_rule(logits: Tensor, labels: Tensor) -> LabelRule:
    """Fit calibration and thresholds on logits and labels, (N, K) each."""
    logits, labels = check_label_sets(logits, labels)
    fit = _choose(logits, labels)
    slopes, offsets = fit(logits, labels)
    thresholds = best_thresholds((logits * slopes + offsets).sigmoid(), labels)
    return LabelRule(tuple(thresholds.tolist()), tuple(slopes.tolist()), tuple(offsets.tolist()))


def cross_fitted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return calibrated logits and the labels given, (N, K) each: every half by the rule that the other half fits.

    Scores of these are those of new images, while thresholds fitted on the images themselves would flatter them.
    """
    logits, labels = check_label_sets(logits, labels)
    if len(logits) < _FEWEST:
        return logits, logits >= 0
    calibrated, present = torch.empty_like(logits), torch.empty_like(labels)
    for fitted, judged in _halves(len(logits)):
        rule = fit_rule(logits[fitted], labels[fitted])
        calibrated[judged], present[judged] = rule.calibrated(logits[judged]), rule.present(logits[judged])
    return calibrated, present


def _none(logits: Tensor, labels: Tensor) -> _Linear:
    return torch.ones(logits.shape[1], dtype=torch.float64), torch.zeros(logits.shape[1], dtype=torch.float64)


def _shared(logits: Tensor, labels: Tensor) -> _Linear:
    slopes, offsets = _none(logits, labels)
    return slopes / fit_temperature(logits, labels), offsets


def _choose(logits: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], _Linear]:
    """Return the simplest fit, unless another has a lower log loss on the halves that did not fit it.

    Lower means by more than the standard error of the difference over images.
    """
    if len(logits) < _FEWEST:
        return _none
    chosen, losses = _none, _judged(_none, logits, labels)
    for fit in (_shared, fit_slopes):
        found = _judged(fit, logits, labels)
        gain = losses - found
        if float(gain.mean()) > float(gain.std()) / math.sqrt(len(gain)):
            chosen, losses = fit, found
    return chosen


def _judged(fit: Callable[[Tensor, Tensor], _Linear], logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log loss of each image, (N,), by what the other half of the images fits."""
    losses = torch.empty(len(logits), dtype=torch.float64)
    for fitted, judged in _halves(len(logits)):
        slopes, offsets = fit(logits[fitted], labels[fitted])
        calibrated, target = logits[judged] * slopes + offsets, labels[judged].double()
        losses[judged] = F.binary_cross_entropy_with_logits(calibrated, target, reduction="none").mean(1)
    return losses


def _halves(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both ways of fitting on every second image and judging on the others."""
    index = torch.arange(count)
    for first in (0, 1):
        yield index[index % 2 == first], index[index % 2 != first]


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature of all labels that minimises the log loss of logits and labels, (N, K) each."""
    target = labels.double()

    def loss(log_temperature: float) -> float:
        return float(F.binary_cross_entropy_with_logits(logits * math.exp(-log_temperature), target))

    found = minimize_scalar(loss, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded")
    return math.exp(float(found.x))


def fit_slopes(logits: Tensor, labels: Tensor) -> _Linear:
    """Return a slope and an offset for each label by logistic regression on its own logit, for (N, K) each.

    The targets are (N1 + 1) / (N1 + 2) and 1 / (N0 + 2) for N1 images with the label and N0 without, so that a solution
    exists (Platt 1999, section 2.2). A slope that would leave its bounds is kept at the bound.
    """
    with_label, without = labels.sum(0), (~labels).sum(0)
    target = torch.where(labels, (with_label + 1) / (with_label + 2), 1 / (without + 2)).double()  # N K
    slopes, offsets = _newton(logits, target, None)
    bounded = slopes.clamp(LOWEST, HIGHEST)
    if (bounded != slopes).any():
        _, moved = _newton(logits * bounded, target, torch.ones_like(bounded))
        offsets = torch.where(bounded != slopes, moved, offsets)
    return bounded, offsets


def _newton(x: Tensor, target: Tensor, fixed: Tensor | None) -> _Linear:
    """Minimise the log loss of ``sigmoid(a x + b)`` for each column by damped Newton steps; ``fixed`` slopes stay."""
    mean, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > _CLOSE * (1 + mean.abs()), scale, 1.0)  # a constant column has no slope
    z = (x - mean) / scale  # standardised columns make the two parameters nearly independent
    a, b = torch.zeros_like(mean) if fixed is None else fixed * scale, target.mean(0).logit()

    def losses(a: Tensor, b: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(a * z + b, target, reduction="none").mean(0)

    now = losses(a, b)
    for _ in range(_STEPS):
        p = (a * z + b).sigmoid()
        residual, weight = p - target, (p * (1 - p)).clamp_min(1e-12)
        gb, hbb = residual.mean(0), weight.mean(0)
        if fixed is None:
            ga, haa, hab = (residual * z).mean(0), (weight * z * z).mean(0), (weight * z).mean(0)
            determinant = (haa * hbb - hab * hab).clamp_min(1e-12)
            da, db = (hbb * ga - hab * gb) / determinant, (haa * gb - hab * ga) / determinant
        else:
            ga, da, db = torch.zeros_like(gb), torch.zeros_like(gb), gb / hbb
        if float(torch.maximum(ga.abs(), gb.abs()).max()) < _CLOSE:
            break
        step = torch.ones_like(gb)
        for _ in range(30):  # halve the steps of the columns whose loss would rise
            worse = losses(a - step * da, b - step * db) > now + 1e-15
            if not worse.any():
                break
            step = torch.where(worse, step / 2, step)
        a, b = a - step * da, b - step * db
        now = losses(a, b)
    return a / scale, b - a * mean / scale


def best_thresholds(probabilities: Tensor, labels: Tensor) -> npt.NDArray[np.float64]:
    """Return the threshold of each label with the highest F1 on probabilities and labels, (N, K) each.

    It lies half way between two probabilities; of equal F1 the highest threshold is taken. A label without images keeps
    0.5.
    """
    values, has = probabilities.double().numpy(), labels.numpy()
    n, k = values.shape
    thresholds = np.full(k, UNFITTED)
    for label in np.flatnonzero(has.any(axis=0)).tolist():
        order = np.argsort(-values[:, label], kind="stable")
        falling, hits = values[order, label], np.cumsum(has[order, label])
        f1 = 2 * hits / (np.arange(1, n + 1) + hits[-1])
        ends = np.flatnonzero(np.append(falling[1:] < falling[:-1], True))  # equal probabilities go together
        best = int(ends[np.argmax(f1[ends])])
        below = falling[best + 1] if best + 1 < n else 0.0
        thresholds[label] = (falling[best] + below) / 2
    return thresholds
