"""Whether a classifier's probabilities mean what they say, and temperature scaling, which makes them.

After Guo et al. 2017, "On Calibration of Modern Neural Networks" (arXiv 1706.04599). N images, K classes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import DataError
from vitreous.evaluate.metrics import check_predictions

__all__ = [
    "Calibration",
    "Reliability",
    "brier_score",
    "calibrate",
    "cross_scaled",
    "expected_calibration_error",
    "fit_temperature",
    "proven_temperature",
    "reliability",
]

LOWEST, HIGHEST = 0.05, 20.0
"""Bounds of a fitted temperature: beyond them every probability is 0, 1 or 1/K to the reader anyway."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram in numbers: M bins of equal width over the confidence, the highest probability.

    Bin m holds confidences in [m / M, (m + 1) / M); the last one also holds 1.

    Attributes:
        edges: (M + 1,) edges of the bins, from 0 to 1.
        counts: (M,) images in each bin.
        confidence: (M,) mean confidence in each bin; NaN where it is empty.
        accuracy: (M,) share of right predictions in each bin; NaN where it is empty.
    """

    edges: Floats
    counts: npt.NDArray[np.int64]
    confidence: Floats
    accuracy: Floats

    @property
    def error(self) -> float:
        """Expected calibration error: the mean of |accuracy - confidence| over images (equation 3), in [0, 1]."""
        held = self.counts > 0
        gaps = np.abs(self.accuracy[held] - self.confidence[held])
        return float((gaps * self.counts[held]).sum() / self.counts.sum())


@dataclass(frozen=True)
class Calibration:
    """What one temperature does to the probabilities on one set of images.

    Attributes:
        temperature: Logits are divided by it before softmax; above 1 it makes the model less sure.
        n: Number of images measured.
        ece_before: Expected calibration error with 15 bins at temperature 1, in [0, 1].
        ece_after: The same at `temperature`.
        log_loss_before: Mean cross-entropy at temperature 1, in nats.
        log_loss_after: The same at `temperature`.
        brier_before: Brier score at temperature 1, in [0, 2].
        brier_after: The same at `temperature`.
    """

    temperature: float
    n: int
    ece_before: float
    ece_after: float
    log_loss_before: float
    log_loss_after: float
    brier_before: float
    brier_after: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary, ready for JSON."""
        return asdict(self)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature that minimises the log loss of `softmax(logits / temperature)` (section 4.2).

    In the inverse temperature b the log loss is convex, with slope mean(sum_k p_k z_k - z_label), where p is
    softmax(b z). The minimum is the root of that slope, found by bracketing: the same bits every time.

    Args:
        logits: (N, K) outputs of the model before softmax, on images it was not trained on.
        labels: (N,) true classes.

    Returns:
        The temperature, in [0.05, 20]. Where the loss still falls at the lower bound, as when every prediction is
        right, the labels count as right with probability (N + 1) / (N + 2) only, Platt's targets (1999, section 2.2):
        N right ones do not prove that the next one is. 20 where it still falls at the upper bound: then the logits
        say nothing about the labels. 1.0, that is, no change, for fewer than two images or logits that are all equal.

    Raises:
        DataError: If the shapes do not fit, there is no image, or a label is outside [0, K).
        NonFiniteError: If a logit is NaN or infinite.
    """
    logits, labels = check_predictions(logits, labels)
    if len(logits) < 2:
        return 1.0
    logits = logits - logits.amax(dim=1, keepdim=True)  # exact zeros at the top keep the slope's sign exact
    truth = logits.gather(1, labels[:, None]).mean()

    def slope(log_inverse: float) -> float:
        p = torch.softmax(logits * math.exp(log_inverse), dim=1)  # (N, K)
        return float((p * logits).sum(dim=1).mean() - truth)

    coldest, hottest = -math.log(LOWEST), -math.log(HIGHEST)
    if slope(coldest) <= 0:
        doubt, others = 1 / (len(logits) + 2), (logits.sum(1).mean() - truth) / max(1, logits.shape[1] - 1)
        truth = (1 - doubt) * truth + doubt * others
    if slope(coldest) <= 0:
        return 1.0
    if slope(hottest) >= 0:
        return HIGHEST
    return math.exp(-float(brentq(slope, hottest, coldest, xtol=1e-10)))


def reliability(probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Sort predictions into bins of confidence and compare confidence with accuracy in each (figure 1).

    Args:
        probs: (N, K) probabilities, rows that sum to 1.
        labels: (N,) true classes.
        bins: Number of bins (M), at least 1.

    Raises:
        DataError: If the shapes do not fit, there is no image, a label is outside [0, K), `bins` is below 1, or
            `probs` are not probabilities.
        NonFiniteError: If a probability is NaN or infinite.
    """
    probs, labels = _check_probabilities(probs, labels)
    if bins < 1:
        raise DataError(f"bins is {bins}, it must be at least 1")
    top, predicted = probs.max(dim=1)
    confidence, right = top.numpy(), (predicted == labels).double().numpy()
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, bins - 1)
    counts = np.bincount(index, minlength=bins)
    empty = np.where(counts == 0, np.nan, counts)  # a mean over nothing is NaN, without a warning
    return Reliability(
        edges=edges,
        counts=counts.astype(np.int64),
        confidence=np.bincount(index, confidence, bins) / empty,
        accuracy=np.bincount(index, right, bins) / empty,
    )


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error (equation 3), in [0, 1].

    Equals torchmetrics' `multiclass_calibration_error(norm="l1")`, save that torchmetrics gives a confidence of
    exactly 1 a bin of its own, where the paper has M bins.

    Args:
        probs: (N, K) probabilities, rows that sum to 1.
        labels: (N,) true classes.
        bins: Number of bins (M), at least 1.

    Raises:
        DataError: As :func:`reliability`.
        NonFiniteError: As :func:`reliability`.
    """
    return reliability(probs, labels, bins).error


def brier_score(probs: Tensor, labels: Tensor) -> float:
    """Return the mean over images of sum_k (p_k - [k is the label])^2, in [0, 2] (Brier 1950).

    Args:
        probs: (N, K) probabilities, rows that sum to 1.
        labels: (N,) true classes.

    Raises:
        DataError: As :func:`reliability`.
        NonFiniteError: As :func:`reliability`.
    """
    probs, labels = _check_probabilities(probs, labels)
    truth = torch.nn.functional.one_hot(labels, probs.shape[1])
    return float((probs - truth).square().sum(dim=1).mean())


def cross_scaled(logits: Tensor, labels: Tensor) -> Tensor:
    """Return each half of the logits over the temperature that fits the other half, (N, K) float64.

    So the effect of a temperature is measured on images that it was not fitted on, where there are no others. The
    halves have as many images of each class, to within one; the same halves every time.

    Args:
        logits: (N, K) outputs of the model before softmax.
        labels: (N,) true classes.

    Raises:
        DataError, NonFiniteError: As :func:`fit_temperature`.
    """
    logits, labels = check_predictions(logits, labels)
    first = torch.empty(len(labels), dtype=torch.bool)
    first[torch.argsort(labels, stable=True)] = torch.arange(len(labels)) % 2 == 0
    scaled = logits.clone()
    for half in (first, ~first):
        if half.any() and not half.all():
            scaled[half] /= fit_temperature(logits[~half], labels[~half])
    return scaled


def proven_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature to save: the fitted one where fitting helps, and 1.0, no change, where it does not.

    It helps if the temperature of each half of the images lowers the log loss of the other half, both together
    (:func:`cross_scaled`). With few images a fitted temperature may be far off: 20 for four of them was seen. Where the
    model is right on all of them, their log loss could only ask for more confidence, and the fitted one stands.

    Args and errors as :func:`fit_temperature`.
    """
    logits, labels = check_predictions(logits, labels)
    before, after = (F.cross_entropy(each, labels) for each in (logits, cross_scaled(logits, labels)))
    helps = after < before or bool((logits.argmax(1) == labels).all())
    return fit_temperature(logits, labels) if helps else 1.0


def calibrate(logits: Tensor, labels: Tensor, temperature: float, scaled: Tensor | None = None) -> Calibration:
    """Measure what `temperature` changes on these images; they may be others than it was fitted on.

    Args:
        logits: (N, K) outputs of the model before softmax.
        labels: (N,) true classes.
        temperature: Above 0; see :func:`fit_temperature`.
        scaled: What is measured in place of `logits / temperature`, as of :func:`cross_scaled`.

    Raises:
        DataError: If the shapes do not fit, there is no image, a label is outside [0, K), or `temperature` is not
            above 0.
        NonFiniteError: If a logit is NaN or infinite.
    """
    logits, labels = check_predictions(logits, labels)
    if not 0 < temperature < math.inf:
        raise DataError(f"temperature is {temperature}, it must be a number above 0")
    scaled = logits / temperature if scaled is None else scaled
    before, after = torch.softmax(logits, dim=1), torch.softmax(scaled, dim=1)
    return Calibration(
        temperature=temperature,
        n=len(labels),
        ece_before=expected_calibration_error(before, labels),
        ece_after=expected_calibration_error(after, labels),
        log_loss_before=float(torch.nn.functional.cross_entropy(logits, labels)),
        log_loss_after=float(torch.nn.functional.cross_entropy(scaled, labels)),
        brier_before=brier_score(before, labels),
        brier_after=brier_score(after, labels),
    )


def _check_probabilities(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return (N, K) float64 probabilities and (N,) labels, or say what is wrong with them."""
    probs, labels = check_predictions(probs, labels)
    if probs.min() < 0 or (probs.sum(dim=1) - 1).abs().max() > 1e-2:  # wide enough for sums of 1000 bf16 values
        raise DataError("these are no probabilities: each row must be at least 0 and sum to 1; apply softmax first")
    return probs, labels
