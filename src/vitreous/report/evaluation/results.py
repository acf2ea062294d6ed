"""All figures of an evaluation from one pass of logits; nothing is drawn here.

N images, K classes. Shares are in [0, 1], losses in nats. Logits are `raw` before and `scaled` after the division by
the temperature; every figure without the word `before` is of the scaled ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import DataError
from vitreous.evaluate.scoring.area_intervals import area_intervals
from vitreous.evaluate.scoring.compare import Difference, McNemar, compare, mcnemar
from vitreous.evaluate.scoring.intervals import Interval, bootstrap, wilson
from vitreous.evaluate.scoring.metrics import check_predictions, worst_mistakes
from vitreous.evaluate.scoring.scores import (
    ConfusedImages,
    DetailedScores,
    class_order,
    confused_images,
    detailed_scores,
)
from vitreous.evaluate.scoring.slices import Slice, score_slices
from vitreous.evaluate.trust.calibration import (
    Calibration,
    CalibrationErrors,
    Reliability,
    calibrate,
    calibration_errors,
    reliability,
)
from vitreous.evaluate.trust.conformal import ConformalSets, fit_lac, fit_raps
from vitreous.evaluate.trust.selective import RiskCoverage, SelectionScore, risk_coverage
from vitreous.report.evaluation.robustness import RobustnessResult

__all__ = [
    "Comparison",
    "ConformalResult",
    "EvaluationInput",
    "EvaluationResult",
    "Selection",
    "Sheets",
    "measure",
    "with_robustness",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LEVEL = 0.95
"""Confidence level of all intervals."""

_RESAMPLES = 1000
_PAIRS = 10
_FEW_CLASSES, _MOST_ORDERED = 20, 2000  # few are easier to find in their own order; more take gigabytes to cluster
_MOST_PREDICTIONS = 5_000_000  # images times classes that prediction sets are fitted on
_SHEET = 24  # images of a sheet
_COVERAGES = (0.8, 0.9, 0.95)
_SCORES = (
    *(SelectionScore(name) for name in ("max_probability", "margin", "negative_entropy", "max_logit")),
    SelectionScore("max_logit_p_norm", 3.0),
)


@dataclass(frozen=True, eq=False)
class EvaluationInput:
    """What is known of each image.

    Attributes:
        model, data, split: What to call them.
        classes: K class names, in the order of the logits.
        names: N names of images, such as paths.
        logits: (N, K) outputs before temperature and softmax.
        labels: (N,) true classes.
        temperature: Divisor of the logits.
        scaled: (N, K) logits that replace `logits / temperature`, if the temperature was fitted on these images: as of
            :func:`~vitreous.evaluate.trust.calibration.cross_scaled`.
        columns: Further facts of each image, by which scores are sliced: name -> N values.
        other: Name and logits / temperature (N, K) of a second model on the same images and classes.
        robustness: Errors on changed images.
        stages: Rows of `finetune.stages` of report.json, if the model is the best of several stages.
        held_out: Name, logits (M, K) before temperature, and labels (M,) of images on which the temperature was not
            fitted, if it was fitted on the others.
        notes: Remarks for the reader.
    """

    model: str
    data: str
    split: str
    classes: Sequence[str]
    names: Sequence[str]
    logits: Tensor
    labels: Tensor
    temperature: float = 1.0
    scaled: Tensor | None = None
    columns: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    other: tuple[str, Tensor] | None = None
    robustness: RobustnessResult | None = None
    stages: Sequence[Mapping[str, Any]] = ()
    held_out: tuple[str, Tensor, Tensor] | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Comparison:
    """The model minus another one, on the same images."""

    other: str
    test: McNemar
    differences: Mapping[str, Difference]


@dataclass(frozen=True, eq=False)
class Selection:
    """How well a score tells correct from wrong predictions."""

    score: SelectionScore
    curve: RiskCoverage

    def risk_at(self, coverage: float) -> float:
        """Return the risk at the lowest coverage of the images that is at least `coverage`, in (0, 1]."""
        n = len(self.curve.risk)
        return float(self.curve.risk[max(1, math.ceil(coverage * n - 1e-9)) - 1])


@dataclass(frozen=True)
class ConformalResult:
    """Prediction sets, measured by cross-fitting: each half of the images with the rule fitted on the other half."""

    method: str  # `lac` or `raps`
    wanted: float  # coverage that the rule was fitted for
    covered: Interval  # share of images whose set holds the true class, Wilson's interval
    mean_size: float  # classes per set
    median_size: float
    empty: float  # share of empty sets
    single: float  # share of sets of exactly one class
    images: int  # number of images: all, or a random sample of very many predictions


@dataclass(frozen=True)
class Sheets:
    """Indices of the images to look at."""

    worst: tuple[int, ...]  # mistakes with the highest loss, falling
    uncertain: tuple[int, ...]  # lowest highest probability, rising
    random: tuple[int, ...]  # drawn without replacement, in their order


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """All figures of the report."""

    given: EvaluationInput
    headline: dict[str, Interval]  # value and interval of each score, at the level `LEVEL`
    detailed: DetailedScores
    predicted: Ints  # (N,)
    probability: Floats  # (N,) of the predicted class
    true_probability: Floats  # (N,)
    log_loss: Floats  # (N,)
    confusion: Ints  # (K, K) counts, row = true class, column = predicted class
    order: Ints  # (K,) of more than 20 classes, those that are confused with each other stand together
    pairs: list[ConfusedImages]
    slices: list[Slice]
    comparison: Comparison | None
    calibration: Calibration
    errors: tuple[CalibrationErrors, CalibrationErrors]  # before and after temperature
    reliability: tuple[Reliability, Reliability]  # before and after temperature
    held_out: tuple[Reliability, Reliability] | None  # likewise, of the images held out
    selection: list[Selection]
    conformal: list[ConformalResult]
    sheets: Sheets


def measure(given: EvaluationInput, *, resamples: int = _RESAMPLES, seed: int = 0) -> EvaluationResult:
    """Compute all figures.

    `resamples` is the number of resamples of the bootstrap; `seed` draws them and the random sheet.

    Raises:
        DataError: If logits, labels, names and classes do not match.
        NonFiniteError: If a logit is NaN or infinite.
    """
    raw, labels = check_predictions(given.logits, given.labels)
    if len(given.names) != len(raw) or len(given.classes) != raw.shape[1]:
        raise DataError(
            f"there are {len(given.names):,} names and {len(given.classes):,} classes for logits {tuple(raw.shape)}: "
            "give one name for each image, and one class for each column"
        )
    scaled = raw / given.temperature if given.scaled is None else given.scaled.detach().cpu().double()
    true, predicted = labels.numpy(), scaled.argmax(dim=1).numpy()
    classes = raw.shape[1]
    confusion = np.bincount(true * classes + predicted, minlength=classes**2).reshape(classes, classes)
    probabilities = [torch.softmax(logits, dim=1) for logits in (raw, scaled)]
    errors = calibration_errors(raw, labels), calibration_errors(scaled, labels)
    before, after = (reliability(probs, labels) for probs in probabilities)
    return EvaluationResult(
        given=given,
        headline=_headline(scaled, labels, resamples, seed),
        detailed=detailed_scores(scaled, labels),
        predicted=predicted,
        probability=probabilities[1].amax(dim=1).numpy(),
        true_probability=probabilities[1].gather(1, labels[:, None])[:, 0].numpy(),
        log_loss=F.cross_entropy(scaled, labels, reduction="none").numpy(),
        confusion=confusion,
        order=class_order(confusion) if _FEW_CLASSES < classes <= _MOST_ORDERED else np.arange(classes),
        pairs=confused_images(scaled, labels, _PAIRS),
        slices=score_slices(scaled, labels, given.columns, level=LEVEL),
        comparison=_comparison(given, scaled, labels, seed),
        calibration=calibrate(raw, labels, given.temperature, scaled),
        errors=errors,
        reliability=(before, after),
        held_out=_held_out(given),
        selection=_selection(scaled, labels),
        conformal=_conformal(probabilities[1], labels, seed),
        sheets=_sheets(scaled, labels, seed),
    )


def _held_out(given: EvaluationInput) -> tuple[Reliability, Reliability] | None:
    if given.held_out is None:
        return None
    raw, labels = check_predictions(*given.held_out[1:])
    before, after = (reliability(torch.softmax(raw / divisor, dim=1), labels) for divisor in (1.0, given.temperature))
    return before, after


def _headline(scaled: Tensor, labels: Tensor, resamples: int, seed: int) -> dict[str, Interval]:
    """Return Wilson's intervals of top-1 and top-5, closed forms of the areas, and the bootstrap's of the others."""
    found = bootstrap(scaled, labels, resamples, seed).intervals(LEVEL) | area_intervals(scaled, labels, LEVEL)
    n = len(labels)
    for name in ("top1", "top5"):
        if name in found:
            found[name] = wilson(round(found[name].value * n), n, LEVEL)
    return found


def _comparison(given: EvaluationInput, scaled: Tensor, labels: Tensor, seed: int) -> Comparison | None:
    if given.other is None:
        return None
    name, logits = given.other
    right, other_right = ((each.argmax(dim=1) == labels).numpy() for each in (scaled, logits.detach().cpu()))
    return Comparison(name, mcnemar(right, other_right), compare(scaled, logits, labels, seed=seed, level=LEVEL))


def _selection(scaled: Tensor, labels: Tensor) -> list[Selection]:
    """Return the curve of each score, the smallest area first."""
    correct = (scaled.argmax(dim=1) == labels).numpy()
    found = [Selection(score, risk_coverage(score(scaled), correct)) for score in _SCORES]
    return sorted(found, key=lambda each: round(each.curve.aurc, 12))


def _conformal(probabilities: Tensor, labels: Tensor, seed: int) -> list[ConformalResult]:
    """Measure sets of every method and coverage for which half of the images are enough."""
    most = max(2000, _MOST_PREDICTIONS // probabilities.shape[1])
    if len(labels) > most:
        drawn = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(len(labels))[:most]))
        probabilities, labels = probabilities[drawn], labels[drawn]
    first = torch.empty(len(labels), dtype=torch.bool)
    first[torch.argsort(labels, stable=True)] = torch.arange(len(labels)) % 2 == 0  # halves stratified by class
    found = []
    for method, fit in (("lac", fit_lac), ("raps", fit_raps)):
        for wanted in _COVERAGES:
            held = np.zeros(tuple(probabilities.shape), np.bool_)
            try:
                for half in (first, ~first):
                    rule: ConformalSets = fit(probabilities[~half], labels[~half], wanted)
                    held[half.numpy()] = rule.sets(probabilities[half])
            except DataError:  # too few images for this coverage
                continue
            sizes, n = held.sum(axis=1), len(labels)
            covered = wilson(int(held[np.arange(n), labels.numpy()].sum()), n, LEVEL)
            shares = float((sizes == 0).mean()), float((sizes == 1).mean())
            found.append(
                ConformalResult(method, wanted, covered, float(sizes.mean()), float(np.median(sizes)), *shares, n)
            )
    return found


def _sheets(scaled: Tensor, labels: Tensor, seed: int) -> Sheets:
    confidence = torch.softmax(scaled, dim=1).amax(dim=1)
    uncertain = torch.argsort(confidence, stable=True)[:_SHEET].tolist()
    drawn = np.random.default_rng(seed).permutation(len(labels))[:_SHEET]
    return Sheets(tuple(worst_mistakes(scaled, labels, _SHEET)), tuple(uncertain), tuple(sorted(drawn.tolist())))


def with_robustness(result: EvaluationResult, robustness: RobustnessResult) -> EvaluationResult:
    """Return the result with errors on changed images."""
    return replace(result, given=replace(result.given, robustness=robustness))
