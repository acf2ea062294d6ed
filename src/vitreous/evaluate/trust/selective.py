"""Selective classification: scores of how far a prediction can be trusted, and the risk they leave at each coverage.

N images, K classes, p the order of a norm. The risk at a coverage is the share of wrong predictions among the images
with the highest scores. `abstention` turns a score into a threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.errors import DataError, NonFiniteError
from vitreous.evaluate.scoring.metrics import check_predictions
from vitreous.evaluate.trust.stored import Stored

__all__ = [
    "ChosenScore",
    "RiskCoverage",
    "SelectionScore",
    "candidate_scores",
    "check_scores",
    "choose_score",
    "risk_coverage",
]

Floats = npt.NDArray[np.float64]
ScoreName = Literal["max_probability", "margin", "negative_entropy", "max_logit", "max_logit_p_norm"]

NORM_ORDERS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
"""Orders p of the norm that are tried (Cattelan and Silva 2023, arXiv 2305.15508, section 4.1)."""

_RESAMPLES = 100


@dataclass(frozen=True)
class SelectionScore(Stored):
    """A score of each image; a higher one means that its prediction is more likely to be correct.

    Attributes:
        name: `max_probability`: the highest probability. `margin`: the highest probability minus the second.
            `negative_entropy`: sum_k q_k log q_k of the probabilities q, in nats. `max_logit`: the highest logit.
            `max_logit_p_norm`: the highest logit after the mean is subtracted and the result divided by its p-norm
            (Cattelan and Silva 2023, arXiv 2305.15508, equation 11); 0 if all logits are equal.
        norm_order: p of the norm, at least 1; 0 for the other scores.
    """

    name: ScoreName
    norm_order: float = 0.0

    def problems(self) -> Iterator[str]:
        """Yield one sentence for each value out of range."""
        if self.name == "max_logit_p_norm" and self.norm_order < 1:
            yield f"norm_order is {self.norm_order}, it must be at least 1 for {self.name}"
        if self.name != "max_logit_p_norm" and self.norm_order != 0:
            yield f"norm_order is {self.norm_order}, it must be 0 for {self.name}, which has no norm"

    def __call__(self, logits: Tensor) -> Floats:
        """Return the scores (N,) of logits (N, K), in float64.

        Raises:
            DataError: If the logits are not (N, K) with N and K of at least 1.
            NonFiniteError: If a logit is NaN or infinite.
        """
        if logits.ndim != 2:
            raise DataError(f"logits are {tuple(logits.shape)}, they must be (N, K)")
        logits, _ = check_predictions(logits, torch.zeros(len(logits), dtype=torch.int64))
        if self.name == "max_logit":
            return logits.amax(dim=1).numpy()
        if self.name == "max_logit_p_norm":
            centred = logits - logits.mean(dim=1, keepdim=True)
            largest = centred.abs().amax(dim=1, keepdim=True)
            scaled = centred / torch.where(largest > 0, largest, 1)  # so that powers do not overflow
            norm = scaled.abs().pow(self.norm_order).sum(dim=1).pow(1 / self.norm_order)
            return (scaled.amax(dim=1) / torch.where(norm > 0, norm, 1)).numpy()
        probs = torch.softmax(logits, dim=1)
        if self.name == "margin":
            top = probs.topk(min(2, probs.shape[1]), dim=1).values
            return (top[:, 0] - top[:, 1:].sum(dim=1)).numpy()
        if self.name == "negative_entropy":
            return (probs * torch.log_softmax(logits, dim=1)).sum(dim=1).numpy()
        return probs.amax(dim=1).numpy()


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk at each coverage, and the two areas that summarise it.

    Images with equal scores enter together in expectation: each counts the mean error of its group, so neither the
    curve nor the areas depend on the order of the images.
    """

    coverage: Floats  # (N,) 1/N to 1
    risk: Floats  # (N,) share of wrong predictions among the accepted ones

    @property
    def aurc(self) -> float:
        """Area under the risk-coverage curve, the mean risk over coverages 1/N to 1 (Geifman and El-Yaniv 2017)."""
        return float(self.risk.mean())

    @property
    def augrc(self) -> float:
        """Area under the generalised risk-coverage curve, in [0, 1/2] (Traub et al. 2024, arXiv 2407.01032).

        The generalised risk is the share of all images that are accepted and wrong. The area is that of the straight
        lines between its points, from coverage 0.
        """
        joint = np.concatenate([[0.0], self.risk * self.coverage])
        return float((joint[1:] + joint[:-1]).mean() / 2)


@dataclass(frozen=True)
class ChosenScore:
    """The chosen score, and the areas of all that were tried."""

    score: SelectionScore
    aurc: float
    augrc: float
    tried: tuple[tuple[SelectionScore, float, float], ...]  # score, AURC, AUGRC


def risk_coverage(scores: npt.ArrayLike, correct: npt.ArrayLike) -> RiskCoverage:
    """Return the risk at each coverage, from scores (N,) and whether each prediction is correct (N,)."""
    scores, correct = check_scores(scores, correct)
    _, level = np.unique(-scores, return_inverse=True)  # falling scores
    errors = np.bincount(level, ~correct) / np.bincount(level)  # mean error of each distinct score
    accepted = np.arange(1, len(scores) + 1)
    return RiskCoverage(accepted / len(scores), errors[np.sort(level)].cumsum() / accepted)


def candidate_scores() -> list[SelectionScore]:
    """Return the scores that :func:`choose_score` tries, the simplest first."""
    simple = [SelectionScore(name) for name in get_args(ScoreName) if name != "max_logit_p_norm"]
    return [*simple, *(SelectionScore("max_logit_p_norm", order) for order in NORM_ORDERS)]


def choose_score(logits: Tensor, labels: Tensor) -> ChosenScore:
    """Choose the score with the lowest AURC on validation images, logits (N, K) and labels (N,).

    The highest probability stays unless the best score is better by more than one standard error of their difference,
    estimated from resamples of the images: among fourteen scores one is always a little better by chance. Of equal
    areas the simpler score wins. AUGRC is reported beside AURC and does not choose.
    """
    logits, labels = check_predictions(logits, labels)
    correct = (logits.argmax(dim=1) == labels).numpy()
    tried = []
    for score in candidate_scores():
        curve = risk_coverage(score(logits), correct)
        tried.append((score, curve.aurc, curve.augrc))
    best = min(tried, key=lambda each: round(each[1], 12))  # rounding differs between equal orders of images
    if best is not (simplest := tried[0]):
        error = _standard_error(best[0](logits), simplest[0](logits), correct)
        best = best if simplest[1] - best[1] > error else simplest
    return ChosenScore(*best, tuple(tried))


def _standard_error(first: Floats, second: Floats, correct: npt.NDArray[np.bool_]) -> float:
    """Return the standard error of the difference in AURC between two scores (N,), from resamples of the images."""
    order = np.lexsort((correct, second, first))  # whatever the order of the images
    draws = np.random.default_rng(0).integers(len(correct), size=(_RESAMPLES, len(correct)))
    areas = [[risk_coverage(score[at], correct[at]).aurc for score in (first, second)] for at in order[draws]]
    return float(np.diff(areas, axis=1).std())


def check_scores(scores: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Check scores (N,) and correct predictions (N,), and return them as float64 and bool."""
    scores, correct = np.asarray(scores, np.float64), np.asarray(correct)
    if scores.ndim != 1 or scores.shape != correct.shape or correct.dtype != np.bool_ or len(scores) == 0:
        raise DataError(
            f"scores {scores.shape} and correct {correct.dtype} {correct.shape} do not match: they must be numbers "
            "(N,) and bool (N,), N of at least 1"
        )
    if invalid := int((~np.isfinite(scores)).sum()):
        raise NonFiniteError(f"{invalid:,} of {len(scores):,} scores are NaN or infinite: check the model's weights")
    return scores, correct
