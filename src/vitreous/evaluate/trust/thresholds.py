"""Thresholds of a classifier: fitted on calibration images, applied to new ones, and measured on labelled ones.

N images, K classes. Logits are (N, K) outputs before temperature and softmax; calibrated logits are these divided by
the temperature, and their softmax is the probabilities. `abstention` and `conformal` have the statistics.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.errors import DataError
from vitreous.evaluate.scoring.metrics import check_predictions
from vitreous.evaluate.trust.abstention import AbstentionRule, Unreachable, choose_threshold
from vitreous.evaluate.trust.calibration import Calibration, calibrate, choose_temperature, cross_scaled, halves
from vitreous.evaluate.trust.conformal import ConformalSets, fit_lac, fit_raps
from vitreous.evaluate.trust.selective import SelectionScore, choose_score, risk_coverage

__all__ = ["Answered", "Fit", "Goals", "Held", "answered", "fit_thresholds", "held", "is_unsure"]

_CHOOSING_SHARE = 0.2  # of the images choose the selection score, and then do not set the threshold
_FEWEST_CHOOSING = 50


@dataclass(frozen=True)
class Goals:
    """What the thresholds should reach; None omits them."""

    precision: float | None = None  # of the predictions that are not unsure, in (0, 1)
    coverage: float | None = None  # share of the sets that hold the true class, in (0, 1)
    method: Literal["lac", "raps"] = "lac"  # of the sets
    class_conditional: bool = False  # whether each class has its own threshold for the sets


@dataclass(frozen=True)
class Answered:
    """What an abstention rule does on labelled images."""

    share: float  # of the images whose prediction is not unsure, in [0, 1]
    precision: float | None  # share of these predictions that are correct; None if every prediction is unsure


@dataclass(frozen=True)
class Held:
    """What conformal sets do on labelled images."""

    coverage: float  # share of sets that hold the true class, in [0, 1]
    mean_size: float  # classes in a set


@dataclass(frozen=True)
class Fit:
    """A calibration of one model, and what it is worth.

    Attributes:
        images: Number N of calibration images.
        temperature: The new temperature.
        before: Calibration without a temperature, and with the one that the model had.
        after: Calibration without a temperature, and with the new one, which is cross-fitted: each half of the images
            is scaled by the temperature fitted on the other half.
        abstention: The rule that marks a prediction as unsure, or None.
        aurc: Area under the risk-coverage curve of the rule's score, on the images that did not choose the score.
        aurc_max_probability: The same for the highest probability.
        choosing: Number of images that chose the score; 0 if they are too few, and the highest probability is used.
        conformal: The rule for sets of classes, or None.
        sets: Coverage and size of the sets by cross-fitting: temperature and sets are fitted on one half and measured
            on the other, both ways. None if the halves are too small.
    """

    images: int
    temperature: float
    before: Calibration
    after: Calibration
    abstention: AbstentionRule | None = None
    aurc: float | None = None
    aurc_max_probability: float | None = None
    choosing: int = 0
    conformal: ConformalSets | None = None
    sets: Held | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return every number as plain JSON values."""
        rules = {"abstention": self.abstention, "conformal": self.conformal}
        return asdict(self) | {name: rule.to_dict() if rule else None for name, rule in rules.items()}


def is_unsure(rule: AbstentionRule, calibrated: Tensor) -> npt.NDArray[np.bool_]:
    """Return for which calibrated logits (N, K) the prediction is unsure, (N,)."""
    return ~rule.accepts(calibrated)


def answered(rule: AbstentionRule, calibrated: Tensor, labels: Tensor) -> Answered:
    """Measure an abstention rule on calibrated logits (N, K) and labels (N,)."""
    calibrated, labels = check_predictions(calibrated, labels)
    accepted, correct = rule.accepts(calibrated), (calibrated.argmax(dim=1) == labels).numpy()
    return Answered(float(accepted.mean()), float(correct[accepted].mean()) if accepted.any() else None)


def held(rule: ConformalSets, calibrated: Tensor, labels: Tensor) -> Held:
    """Measure conformal sets on calibrated logits (N, K) and labels (N,)."""
    calibrated, labels = check_predictions(calibrated, labels)
    sets = rule.sets(torch.softmax(calibrated, dim=1))  # N K
    return Held(float(sets[np.arange(len(labels)), labels.numpy()].mean()), float(sets.sum(axis=1).mean()))


def fit_thresholds(logits: Tensor, labels: Tensor, goals: Goals, temperature: float = 1.0) -> Fit:
    """Fit temperature and thresholds on logits (N, K) and labels (N,) of images that the model was not trained on.

    The temperature is that of :func:`~vitreous.evaluate.trust.calibration.choose_temperature`; `temperature` is the one
    that the model has, for comparison. A fifth of the images chooses the selection score of the abstention rule and the
    other images set its threshold, since a score chosen on the same images would break the promise. The temperature is
    fitted on all images: one number, whose effect on the promises is far below their sampling error. A set always holds
    the most probable class.

    Raises:
        ConfigError: If a goal is outside (0, 1).
        DataError: If no threshold is shown to reach the precision, or the images are too few for the coverage.
    """
    logits, labels = check_predictions(logits, labels)
    chosen = choose_temperature(logits, labels)
    fitted: dict[str, Any] = {
        "images": len(labels),
        "temperature": chosen,
        "before": calibrate(logits, labels, temperature),
        "after": calibrate(logits, labels, chosen, cross_scaled(logits, labels) if chosen != 1 else None),
    }
    if goals.precision is not None:
        fitted |= _fit_abstention(logits / chosen, labels, goals.precision)
    if goals.coverage is not None:
        fitted |= {"conformal": _fit_sets(logits / chosen, labels, goals), "sets": _cross_fitted(logits, labels, goals)}
    return Fit(**fitted)


def _fit_abstention(calibrated: Tensor, labels: Tensor, precision: float) -> dict[str, Any]:
    """Return the rule and its score's areas, as fields of `Fit`."""
    score, choosing = SelectionScore("max_probability"), _choosing(calibrated)
    if choosing.any():
        score = choose_score(calibrated[choosing], labels[choosing]).score
    rest, correct = calibrated[~choosing], (calibrated.argmax(dim=1) == labels)[~choosing].numpy()
    rule = choose_threshold(score, rest, correct, precision)
    if isinstance(rule, Unreachable):
        raise DataError(f"{rule.reason}. Require less, or give more images; nothing is stored")
    return {
        "abstention": rule,
        "aurc": risk_coverage(score(rest), correct).aurc,
        "aurc_max_probability": risk_coverage(SelectionScore("max_probability")(rest), correct).aurc,
        "choosing": int(choosing.sum()),
    }


def _choosing(calibrated: Tensor) -> Tensor:
    """Return which images (N,) choose the score: a random fifth, whatever their order, or none if that is too few."""
    count = int(len(calibrated) * _CHOOSING_SHARE)
    chosen = torch.zeros(len(calibrated), dtype=torch.bool)
    if count >= _FEWEST_CHOOSING:
        canonical = np.lexsort(tuple(calibrated.T.numpy()))
        chosen[torch.from_numpy(canonical[np.random.default_rng(0).permutation(len(calibrated))[:count]])] = True
    return chosen


def _fit_sets(calibrated: Tensor, labels: Tensor, goals: Goals) -> ConformalSets:
    fit = {"lac": fit_lac, "raps": fit_raps}[goals.method]
    coverage = goals.coverage if goals.coverage is not None else 0.0  # refused
    return fit(
        torch.softmax(calibrated, dim=1),
        labels,
        coverage,
        class_conditional=goals.class_conditional,
        include_top=True,
    )


def _cross_fitted(logits: Tensor, labels: Tensor, goals: Goals) -> Held | None:
    """Measure sets whose temperature and thresholds are fitted on the other half of the images."""
    first = halves(labels)
    found = []
    for half in (first, ~first):
        try:
            temperature = choose_temperature(logits[~half], labels[~half])
            rule = _fit_sets(logits[~half] / temperature, labels[~half], goals)
            found.append((held(rule, logits[half] / temperature, labels[half]), int(half.sum())))
        except DataError:  # half the images are too few for the coverage
            return None
    images = sum(count for _, count in found)
    coverage = sum(each.coverage * count for each, count in found) / images
    return Held(coverage, sum(each.mean_size * count for each, count in found) / images)
