"""Calibration of a classifier's probabilities, and temperature scaling.

Guo et al. 2017, "On Calibration of Modern Neural Networks" (arXiv 1706.04599).

Throughout, logits are (N, K) outputs of the model before softmax, probabilities are (N, K) with rows that sum to 1, and
labels are (N,) true classes, for N images and K classes. Every function raises DataError if the shapes do not match,
there is no image, or a label is outside [0, K), and NonFiniteError if a value is NaN or infinite.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import DataError
from vitreous.evaluate.scoring.metrics import check_predictions

__all__ = [
    "Calibration",
    "CalibrationErrors",
    "Reliability",
    "adaptive_calibration_error",
    "brier_score",
    "calibrate",
    "calibration_errors",
    "check_probabilities",
    "choose_temperature",
    "class_wise_calibration_error",
    "cross_scaled",
    "expected_calibration_error",
    "fit_temperature",
    "halves",
    "reliability",
]

LOWEST, HIGHEST = 0.05, 20.0
"""Bounds of a fitted temperature: beyond them every probability is practically 0, 1 or 1/K.

The lower one is that of logits whose highest is 1 or more above the second; below, it is proportional to this gap.
"""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reliability:
    """The data of a reliability diagram: M bins of equal width over the confidence, which is the highest probability.

    Bin m holds confidences in [m / M, (m + 1) / M); the last one also holds 1.
    """

    edges: Floats  # (M + 1,) edges of the bins, from 0 to 1
    counts: npt.NDArray[np.int64]  # (M,) number of images per bin
    confidence: Floats  # (M,) mean confidence per bin; NaN for an empty bin
    accuracy: Floats  # (M,) share of correct predictions per bin; NaN for an empty bin

    @property
    def error(self) -> float:
        """Expected calibration error (equation 3), in [0, 1]: the mean of ``|accuracy - confidence|`` over images."""
        held = self.counts > 0
        gaps = np.abs(self.accuracy[held] - self.confidence[held])
        return float((gaps * self.counts[held]).sum() / self.counts.sum())


@dataclass(frozen=True)
class Calibration:
    """Calibration with and without a temperature on one set of images."""

    temperature: float  # divisor of the logits before softmax; values above 1 lower the confidence
    n: int  # number of images
    ece_before: float  # expected calibration error with 15 bins at temperature 1, in [0, 1]
    ece_after: float
    log_loss_before: float  # mean cross-entropy at temperature 1, in nats
    log_loss_after: float
    brier_before: float  # Brier score at temperature 1, in [0, 2]
    brier_after: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class CalibrationErrors:
    """Three estimates of the calibration error of one set of probabilities, each in [0, 1]."""

    equal_width: float  # of the highest probability, bins of equal width; the usual ECE
    equal_mass: float  # of the highest probability, bins of equally many images
    class_wise: float  # of every class's probability, bins of equal width, mean over classes

    def to_dict(self) -> dict[str, float]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature that minimises the log loss of `softmax(logits / temperature)` (section 4.2).

    The log loss is convex in the inverse temperature b, with slope mean(sum_k p_k z_k - z_label), p = softmax(b z). Its
    root in [0.05, 20] is found by bracketing, which is deterministic; logits that hardly differ, as those of a strongly
    regularised head, have a lower bound in proportion. If the loss still falls at the lower bound, as
    when all predictions are correct, the labels are smoothed to a probability of (N + 1) / (N + 2), Platt's targets
    (1999, section 2.2). If it still falls at the upper bound, the logits are unrelated to the labels, and that is
    returned. The result is 1.0 for fewer than two images or if all logits are equal.
    """
    logits, labels = check_predictions(logits, labels)
    if len(logits) < 2:
        return 1.0
    logits = logits - logits.amax(dim=1, keepdim=True)  # exact zeros at the maximum keep the sign of the slope exact
    target = logits.gather(1, labels[:, None]).mean()

    def slope(log_inverse: float) -> float:
        p = torch.softmax(logits * math.exp(log_inverse), dim=1)  # (N, K)
        return float((p * logits).sum(dim=1).mean() - target)

    gap = float(-logits.topk(min(2, logits.shape[1])).values[:, -1].mean())  # of the highest to the second
    coldest, hottest = -math.log(LOWEST * min(1.0, gap or 1.0)), -math.log(HIGHEST)
    if slope(coldest) <= 0:
        smoothing, others = 1 / (len(logits) + 2), (logits.sum(1).mean() - target) / max(1, logits.shape[1] - 1)
        target = (1 - smoothing) * target + smoothing * others
    if slope(coldest) <= 0:
        return 1.0
    if slope(hottest) >= 0:
        return HIGHEST
    from scipy.optimize import brentq  # slow to import: only where it is used

    return math.exp(-float(brentq(slope, hottest, coldest, xtol=1e-10)))


def reliability(probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Compare confidence with accuracy in M = `bins` bins of confidence (figure 1)."""
    probs, labels = check_probabilities(probs, labels)
    if bins < 1:
        raise DataError(f"bins is {bins}, it must be at least 1")
    top, predicted = probs.max(dim=1)
    confidence, correct = top.numpy(), (predicted == labels).double().numpy()
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, bins - 1)
    counts = np.bincount(index, minlength=bins)
    empty = np.where(counts == 0, np.nan, counts)  # NaN for empty bins, without a warning
    return Reliability(
        edges=edges,
        counts=counts.astype(np.int64),
        confidence=np.bincount(index, confidence, bins) / empty,
        accuracy=np.bincount(index, correct, bins) / empty,
    )


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error (equation 3), in [0, 1].

    It equals torchmetrics' `multiclass_calibration_error(norm="l1")`, which has a further bin for a confidence of 1.
    """
    return reliability(probs, labels, bins).error


def adaptive_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the calibration error with bins of equally many images (Nixon et al. 2019, arXiv 1904.01685), in [0, 1].

    The images are sorted by confidence and split into `bins` parts whose sizes differ by at most one, the larger first.
    Images of equal confidence each count the mean accuracy of their group, so the order of the images does not matter.
    """
    probs, labels = check_probabilities(probs, labels)
    if bins < 1:
        raise DataError(f"bins is {bins}, it must be at least 1")
    top, predicted = probs.max(dim=1)
    _, level = np.unique(top.numpy(), return_inverse=True)
    accuracy = np.bincount(level, (predicted == labels).double().numpy()) / np.bincount(level)
    gaps = accuracy[np.sort(level)] - np.sort(top.numpy())  # (N,) by rising confidence
    return float(sum(abs(part.sum()) for part in np.array_split(gaps, bins)) / len(gaps))


def class_wise_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the mean over classes of the calibration error of the class's probability (Kull et al. 2019), in [0, 1].

    Unlike the error of the highest probability it sees all K probabilities (arXiv 1910.12656, equation 2). Bins have
    equal width, as in `reliability`. Classes without images count too: their probabilities should be low.
    """
    probs, labels = check_probabilities(probs, labels)
    if bins < 1:
        raise DataError(f"bins is {bins}, it must be at least 1")
    gaps = (probs - F.one_hot(labels, probs.shape[1])).numpy()  # (N, K)
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.searchsorted(edges, probs.numpy(), side="right") - 1, 0, bins - 1)
    index += np.arange(probs.shape[1]) * bins  # a bin for each class
    sums = np.bincount(index.ravel(), gaps.ravel(), bins * probs.shape[1])
    return float(np.abs(sums).sum() / gaps.size)


def calibration_errors(logits: Tensor, labels: Tensor, temperature: float = 1.0, bins: int = 15) -> CalibrationErrors:
    """Measure all three errors of `softmax(logits / temperature)`: call it without and with a temperature."""
    logits, labels = check_predictions(logits, labels)
    _check_temperature(temperature)
    probs = torch.softmax(logits / temperature, dim=1)
    measures = (expected_calibration_error, adaptive_calibration_error, class_wise_calibration_error)
    return CalibrationErrors(*(measure(probs, labels, bins) for measure in measures))


def brier_score(probs: Tensor, labels: Tensor) -> float:
    """Return the mean over images of sum_k (p_k - [k is the label])^2, in [0, 2] (Brier 1950)."""
    probs, labels = check_probabilities(probs, labels)
    return float((probs - F.one_hot(labels, probs.shape[1])).square().sum(dim=1).mean())


def halves(labels: Tensor) -> Tensor:
    """Return which of the images with labels (N,) are in the first half, (N,): every second one of each class."""
    first = torch.empty(len(labels), dtype=torch.bool)
    first[torch.argsort(labels, stable=True)] = torch.arange(len(labels)) % 2 == 0
    return first


def cross_scaled(logits: Tensor, labels: Tensor) -> Tensor:
    """Divide each half of the logits by the temperature fitted on the other half; returns (N, K) float64.

    This measures the effect of a temperature on images that it was not fitted on, without a test split. The halves are
    deterministic, and stratified by class.
    """
    logits, labels = check_predictions(logits, labels)
    first = halves(labels)
    scaled = logits.clone()
    for half in (first, ~first):
        if half.any() and not half.all():
            scaled[half] /= fit_temperature(logits[~half], labels[~half])
    return scaled


def choose_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature to save: the fitted one if it generalises, otherwise 1.0.

    It generalises if :func:`cross_scaled` lowers the log loss; with few images a fitted temperature may be far off. If
    all predictions are correct, the fitted temperature is always used.
    """
    logits, labels = check_predictions(logits, labels)
    before, after = (F.cross_entropy(each, labels) for each in (logits, cross_scaled(logits, labels)))
    helps = after < before or bool((logits.argmax(1) == labels).all())
    return fit_temperature(logits, labels) if helps else 1.0


def calibrate(logits: Tensor, labels: Tensor, temperature: float, scaled: Tensor | None = None) -> Calibration:
    """Measure calibration without and with a temperature, or with `scaled` logits as of :func:`cross_scaled`."""
    logits, labels = check_predictions(logits, labels)
    _check_temperature(temperature)
    scaled = logits / temperature if scaled is None else scaled
    before, after = torch.softmax(logits, dim=1), torch.softmax(scaled, dim=1)
    return Calibration(
        temperature=temperature,
        n=len(labels),
        ece_before=expected_calibration_error(before, labels),
        ece_after=expected_calibration_error(after, labels),
        log_loss_before=float(F.cross_entropy(logits, labels)),
        log_loss_after=float(F.cross_entropy(scaled, labels)),
        brier_before=brier_score(before, labels),
        brier_after=brier_score(after, labels),
    )


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise DataError(f"temperature is {temperature}, it must be a number above 0")


def check_probabilities(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check probabilities (N, K) and labels (N,), and return them as float64 and int64 on the CPU."""
    probs, labels = check_predictions(probs, labels)
    if probs.min() < 0 or (probs.sum(dim=1) - 1).abs().max() > 1e-2:  # wide enough for sums of 1000 bf16 values
        raise DataError("probabilities must be at least 0, and each row must sum to 1: apply softmax first")
    return probs, labels
