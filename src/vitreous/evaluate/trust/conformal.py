"""Conformal prediction: sets of classes that hold the true one with a chosen chance, on images like the calibration's.

N images, K classes, n calibration images (of one class), r the rank of a class by probability, from 1. A
nonconformity score is high where a class fits an image badly; a set holds the classes whose score is at most a
threshold. Methods: LAC (Sadinle et al. 2019, arXiv 1609.00451) and RAPS (Angelopoulos et al. 2021, arXiv 2009.14193).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.trust.calibration import check_probabilities
from vitreous.evaluate.trust.stored import Stored

__all__ = ["PENALTIES", "ConformalSets", "fit_lac", "fit_raps"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)
"""Values of lambda that are tried, as in the authors' code."""

_TUNING_SHARE = 0.2  # of the calibration images choose lambda and k_reg of RAPS, and then do not calibrate
_FEWEST_TUNING = 50


@dataclass(frozen=True)
class ConformalSets(Stored):
    """A rule from probabilities to sets of classes.

    Attributes:
        method: `lac`: the score is 1 - q of a class of probability q. `raps`: the sum of the probabilities down to
            the class, plus penalty * max(0, r - free_ranks).
        coverage: Share of images whose set should hold the true class, in (0, 1).
        thresholds: Highest score in a set: one number, or one for each class if class-conditional.
        classes: Number of classes K.
        penalty: Lambda of RAPS, at least 0; 0 for LAC.
        free_ranks: k_reg of RAPS, the number of ranks without a penalty, from 0 to K; 0 for LAC.
        randomised: Whether RAPS subtracts a random share of the class's own probability. It makes coverage exact and
            sets smaller, but the set of an image then depends on a draw.
        include_top: Whether a set always holds the most probable class, so that no set is empty. Thresholds are
            fitted to such sets, so that coverage stays exact; where top-1 accuracy alone is higher, it is that.
        fallback: Classes with too few images for a threshold of their own, which use that of all images.
    """

    method: Literal["lac", "raps"]
    coverage: float
    thresholds: tuple[float, ...]
    classes: int
    penalty: float = 0.0
    free_ranks: int = 0
    randomised: bool = False
    include_top: bool = False
    fallback: tuple[int, ...] = ()

    def problems(self) -> Iterator[str]:
        """Yield one sentence for each value out of range."""
        if not 0 < self.coverage < 1:
            yield f"coverage is {self.coverage}, it must be above 0 and below 1"
        if self.classes < 1:
            yield f"classes is {self.classes}, it must be at least 1"
        if len(self.thresholds) not in (1, self.classes):
            yield f"there are {len(self.thresholds)} thresholds, there must be 1 or {self.classes}"
        if self.penalty < 0:
            yield f"penalty is {self.penalty}, it must be at least 0"
        if not 0 <= self.free_ranks <= self.classes:
            yield f"free_ranks is {self.free_ranks}, it must be from 0 to {self.classes}"
        if self.method == "lac" and (self.penalty or self.free_ranks or self.randomised):
            yield "penalty, free_ranks and randomised are options of raps: they must be 0 and false for lac"
        if list(self.fallback) != sorted({k for k in self.fallback if 0 <= k < self.classes}):
            yield f"fallback must list classes from 0 to {self.classes - 1}, each once and rising"

    def sets(self, probabilities: Tensor, seed: int = 0) -> npt.NDArray[np.bool_]:
        """Return which classes (N, K) the set of each image holds, from probabilities (N, K).

        `seed` matters only if the rule is randomised.

        Raises:
            DataError: If the probabilities are not (N, K) with this K, negative, or do not sum to 1.
            NonFiniteError: If a probability is NaN or infinite.
        """
        if probabilities.ndim != 2 or probabilities.shape[1] != self.classes:
            raise DataError(f"probabilities are {tuple(probabilities.shape)}, they must be (N, {self.classes})")
        probs = check_probabilities(probabilities, torch.zeros(len(probabilities), dtype=torch.int64))[0].numpy()
        return self.scores(probs, seed) <= np.array(self.thresholds)

    def scores(self, probs: Floats, seed: int = 0) -> Floats:
        """Return the nonconformity scores (N, K) of checked probabilities (N, K), -1 for a class always held."""
        scores = 1 - probs if self.method == "lac" else self._summed(probs, seed)
        if self.include_top:
            scores[np.arange(len(probs)), probs.argmax(axis=1)] = -1  # all other scores are at least 0
        return scores

    def _summed(self, probs: Floats, seed: int) -> Floats:
        """Return the scores (N, K) of RAPS."""
        order = np.argsort(-probs, axis=1, kind="stable")  # of equal probabilities the first class comes first
        falling = np.take_along_axis(probs, order, axis=1)
        ranks = np.arange(1, self.classes + 1)
        down_to = falling.cumsum(axis=1) + self.penalty * np.maximum(0, ranks - self.free_ranks)
        if self.randomised:
            down_to -= falling * np.random.default_rng(seed).random((len(probs), 1))
        scores = np.empty_like(probs)
        np.put_along_axis(scores, order, down_to, axis=1)
        return scores


def fit_lac(
    probabilities: Tensor,
    labels: Tensor,
    coverage: float = 0.9,
    *,
    class_conditional: bool = False,
    fewest: int = 20,
    include_top: bool = False,
) -> ConformalSets:
    """Fit LAC on probabilities (N, K) and labels (N,) of calibration images that were not trained on.

    LAC gives the smallest sets on average, which may be empty where the model is unsure. If `class_conditional`, each
    class with at least `fewest` images has its own threshold, so that its images are covered too; `fallback` names the
    others.

    Raises:
        ConfigError: If `coverage` is not in (0, 1).
        DataError: If there are too few images, or probabilities and labels do not pass
            :func:`~vitreous.evaluate.trust.calibration.check_probabilities`.
    """
    probs, true = _checked(probabilities, labels, coverage)
    rule = ConformalSets("lac", coverage, (0.0,), probs.shape[1], include_top=include_top)
    return _calibrated(rule, probs, true, fewest if class_conditional else None, 0)


def fit_raps(
    probabilities: Tensor,
    labels: Tensor,
    coverage: float = 0.9,
    *,
    penalty: float | None = None,
    free_ranks: int | None = None,
    randomised: bool = False,
    class_conditional: bool = False,
    fewest: int = 20,
    include_top: bool = False,
    seed: int = 0,
) -> ConformalSets:
    """Fit RAPS, whose sets grow with the difficulty of the image; arguments and errors as in :func:`fit_lac`.

    A fifth of the images chooses what is None and does not calibrate: `free_ranks` is the `coverage` quantile of the
    rank of the true class, and `penalty` is the value of `PENALTIES` with the smallest sets. With fewer than 250 images
    they are 5 and 0.01, or K if that is less, and all images calibrate. `seed` draws the fifth and the random shares.
    """
    probs, true = _checked(probabilities, labels, coverage)
    classes = probs.shape[1]
    rule = ConformalSets("raps", coverage, (0.0,), classes, include_top=include_top)
    if penalty is None or free_ranks is None:
        tuning, probs, true = _split(probs, true, seed)
        if free_ranks is None:
            free_ranks = _true_rank(*tuning, coverage) if tuning else min(5, classes)
        if penalty is None:
            penalty = _best_penalty(*tuning, replace(rule, free_ranks=free_ranks)) if tuning else 0.01
    rule = replace(rule, penalty=penalty, free_ranks=free_ranks, randomised=randomised)
    return _calibrated(rule, probs, true, fewest if class_conditional else None, seed)


def _checked(probabilities: Tensor, labels: Tensor, coverage: float) -> tuple[Floats, Ints]:
    if not 0 < coverage < 1:
        raise ConfigError(f"coverage is {coverage}, it must be above 0 and below 1")
    probs, true = check_probabilities(probabilities, labels)
    return probs.numpy(), true.numpy()


def _calibrated(rule: ConformalSets, probs: Floats, true: Ints, fewest: int | None, seed: int) -> ConformalSets:
    """Return the rule with thresholds; a class has its own if it has `fewest` images or more."""
    scores = rule.scores(probs, seed)[np.arange(len(true)), true]
    overall = _quantile(scores, rule.coverage)
    if overall is None:
        needed = math.ceil(rule.coverage / (1 - rule.coverage) - 1e-9)
        raise DataError(
            f"{len(true):,} calibration images are too few for a coverage of {rule.coverage:g}: give at least "
            f"{needed:,}, or lower the coverage"
        )
    if fewest is None:
        return replace(rule, thresholds=(overall,))
    thresholds, fallback = [], []
    for k in range(rule.classes):
        own = scores[true == k]
        threshold = _quantile(own, rule.coverage) if len(own) >= max(fewest, 1) else None
        if threshold is None:
            fallback.append(k)
        thresholds.append(overall if threshold is None else threshold)
    return replace(rule, thresholds=tuple(thresholds), fallback=tuple(fallback))


def _quantile(scores: Floats, coverage: float) -> float | None:
    """Return the ceil((n + 1) * coverage)-th smallest of n scores, or None if n is too small for that."""
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)  # 0.9 * 10 is 9, not the next float above it
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else None


def _split(probs: Floats, true: Ints, seed: int) -> tuple[tuple[Floats, Ints] | None, Floats, Ints]:
    """Split off a random fifth, whatever the order of the images; nothing if it would be too small."""
    tune = int(len(true) * _TUNING_SHARE)
    if tune < _FEWEST_TUNING:
        return None, probs, true
    canonical = np.lexsort((*probs.T, true))
    order = canonical[np.random.default_rng(seed).permutation(len(true))]
    first, rest = order[:tune], order[tune:]
    return (probs[first], true[first]), probs[rest], true[rest]


def _true_rank(probs: Floats, true: Ints, coverage: float) -> int:
    """Return the `coverage` quantile of the rank of the true class."""
    ranks = (probs > probs[np.arange(len(true)), true][:, None]).sum(axis=1) + 1
    found = _quantile(ranks.astype(np.float64), coverage)
    return probs.shape[1] if found is None else int(found)


def _best_penalty(probs: Floats, true: Ints, rule: ConformalSets) -> float:
    """Return the lambda whose sets are smallest on the images that also calibrate it; the first of equals."""

    def size(penalty: float) -> float:
        scores = replace(rule, penalty=penalty).scores(probs)
        threshold = _quantile(scores[np.arange(len(true)), true], rule.coverage)
        return math.inf if threshold is None else float((scores <= threshold).sum(axis=1).mean())

    return min(PENALTIES, key=size)
