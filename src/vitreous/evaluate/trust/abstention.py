"""A threshold below which a classifier abstains, so that what it accepts has a required precision.

N images, K classes, k accepted images. Precision is the share of correct predictions among the accepted ones, 1 minus
the selective risk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.evaluate.scoring.intervals import clopper_pearson_lower
from vitreous.evaluate.trust.selective import SelectionScore, check_scores
from vitreous.evaluate.trust.stored import Stored

__all__ = ["AbstentionRule", "Unreachable", "choose_threshold"]

_STEPS = 60  # thresholds tried in a sequence
_STARTS = (1, 3)  # starts of the sequences, in multiples of the fewest images that could pass


@dataclass(frozen=True)
class AbstentionRule(Stored):
    """Accept an image whose score is above the threshold, otherwise abstain."""

    score: SelectionScore
    threshold: float
    required_precision: float  # in (0, 1)
    confidence: float  # chance that precision on new images reaches what is required, in (0, 1)
    coverage: float  # share of validation images that are accepted, in (0, 1]
    precision: float  # on the accepted validation images, in [0, 1]

    def problems(self) -> Iterator[str]:
        """Yield one sentence for each value out of range."""
        for name in ("required_precision", "confidence"):
            if not 0 < getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}, it must be above 0 and below 1"
        if not 0 < self.coverage <= 1:
            yield f"coverage is {self.coverage}, it must be above 0 and at most 1"
        if not 0 <= self.precision <= 1:
            yield f"precision is {self.precision}, it must be from 0 to 1"

    def accepts(self, logits: Tensor) -> npt.NDArray[np.bool_]:
        """Return which images of logits (N, K) are accepted, (N,)."""
        return self.score(logits) > self.threshold


@dataclass(frozen=True)
class Unreachable:
    """No threshold is shown to reach the required precision."""

    reason: str
    required_precision: float
    best_precision: float  # the highest precision that a threshold is shown to reach, at the same confidence
    coverage: float  # share of validation images that this threshold accepts


def choose_threshold(
    score: SelectionScore,
    logits: Tensor,
    correct: npt.ArrayLike,
    required_precision: float,
    confidence: float = 0.95,
) -> AbstentionRule | Unreachable:
    """Return the rule that accepts the most images with the required precision, at a confidence, or why there is none.

    Thresholds are scores of ranks that are fixed in advance. Given the score at a rank, the images above it are
    independent draws of what the threshold accepts (Geifman and El-Yaniv 2017, arXiv 1705.08500, lemma 3.1), so Clopper
    and Pearson's bound holds for their precision. Thresholds are tested in fixed sequences from strict to loose, each
    of which ends at the first failure (Angelopoulos et al. 2021, "Learn then Test", arXiv 2110.01052, section 2.3).
    Two sequences share the permitted error 1 - confidence. One starts at the fewest images that could pass, where a
    single wrong prediction ends it; the other starts at three times as many, and bears a few wrong labels.

    The promise is for images like the N given, logits (N, K) and whether each prediction is correct (N,); these should
    not have been trained on, nor have chosen the score. The chance that a rule is returned and its precision is below
    the required one is at most 1 - confidence.
    """
    for name, value in (("required_precision", required_precision), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ConfigError(f"{name} is {value}, it must be above 0 and below 1")
    scores, right = check_scores(score(logits), correct)
    n, error = len(scores), (1 - confidence) / len(_STARTS)
    # Fewer accepted images would not pass even if all are correct.
    fewest = math.ceil(math.log(error) / math.log(required_precision))
    falling, hits = _by_score(scores, right)
    if fewest < n:
        passed = [
            rank
            for start in _STARTS
            for rank in _passing(min(start * fewest, n - 1), falling, hits, required_precision, error)
        ]
        if passed:
            rank = max(passed)
            k = _accepted(falling, rank)
            return AbstentionRule(
                score, float(falling[rank]), required_precision, confidence, k / n, float(hits[k - 1] / k)
            )
    return _unreachable(falling, hits, required_precision, confidence, fewest)


def _by_score(scores: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.float64], ...]:
    """Return falling scores (N,) and the number of correct predictions up to each of them (N,)."""
    order = np.argsort(-scores, kind="stable")
    return scores[order], right[order].cumsum().astype(np.float64)


def _accepted(falling: npt.NDArray[np.float64], rank: int) -> int:
    """Return how many images are strictly above the score at a rank, counted from 0; at most `rank`."""
    return int(np.searchsorted(-falling, -falling[rank], side="left"))


def _passing(
    start: int,
    falling: npt.NDArray[np.float64],
    hits: npt.NDArray[np.float64],
    required: float,
    error: float,
) -> Iterator[int]:
    """Yield ranks from `start` to the loosest until one fails."""
    for rank in np.unique(np.linspace(start, len(falling) - 1, _STEPS).round().astype(np.int64)):
        k = _accepted(falling, rank)
        if k == 0 or clopper_pearson_lower(int(hits[k - 1]), k, error) < required:
            return
        yield int(rank)


def _unreachable(
    falling: npt.NDArray[np.float64], hits: npt.NDArray[np.float64], required: float, confidence: float, fewest: int
) -> Unreachable:
    """Return the best that twenty thresholds reach, each tested at its share of the permitted error."""
    n, best, coverage = len(falling), 0.0, 0.0
    ranks = np.unique(np.geomspace(1, max(n - 1, 1), 20).round().astype(np.int64))
    for rank in ranks[ranks < n]:
        k = _accepted(falling, int(rank))
        bound = clopper_pearson_lower(int(hits[k - 1]), k, (1 - confidence) / len(ranks)) if k else 0.0
        if bound > best:
            best, coverage = bound, k / n
    if fewest >= n:
        reason = (
            f"{n:,} images are too few to show a precision of {required:.2%} at {confidence:.0%} confidence: at least "
            f"{fewest + 1:,} are needed even if all predictions are correct"
        )
    else:
        reason = (
            f"no threshold is shown to reach a precision of {required:.2%} at {confidence:.0%} confidence: the best "
            f"reaches {best:.2%} on {coverage:.1%} of the images"
        )
    return Unreachable(reason, required, best, coverage)
