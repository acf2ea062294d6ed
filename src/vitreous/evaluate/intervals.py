"""Confidence intervals of scores: Wilson and Clopper-Pearson for shares, one stratified bootstrap for the rest.

N images, K classes, R resamples, C distinct pairs of true and predicted class that occur, V columns of values of the
images, M bins of confidence. A resample draws, for each class, as many images of the class as there are, with
replacement. Scores that are sums over images or counts of a confusion matrix follow from how often each image is drawn.
Areas under curves have a closed form instead, in `area_intervals`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from scipy.special import ndtri
from scipy.stats import beta
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import DataError
from vitreous.evaluate.metrics import check_predictions
from vitreous.evaluate.scores import counted_scores, matthews

__all__ = [
    "Bootstrap",
    "Images",
    "Interval",
    "bootstrap",
    "check_count",
    "check_share",
    "clopper_pearson_lower",
    "image_order",
    "resample",
    "tabulate",
    "wilson",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_TOP = 5
_BINS = 15  # of the calibration error
_MAX_DRAWS = 2**20  # images in memory at once


@dataclass(frozen=True)
class Interval:
    """A score and its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Images:
    """What the bootstrap needs of each image."""

    labels: Ints  # (N,) true classes
    predicted: Ints  # (N,)
    values: Floats  # (N, V) one column for each of `names`
    gaps: Floats  # (N, M) correct minus confidence in the column of the image's bin, 0 in the others
    names: tuple[str, ...]
    classes: int  # K

    def take(self, order: Ints) -> Images:
        """Return the images at the given positions."""
        rows = (self.labels[order], self.predicted[order], self.values[order], self.gaps[order])
        return Images(*rows, self.names, self.classes)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Headline scores of one set of images, and the same scores of R resamples."""

    values: dict[str, float]
    resampled: dict[str, Floats]  # (R,) each
    single: int  # classes with exactly one image: resampling cannot vary them, so the intervals are too narrow

    def intervals(self, level: float = 0.95) -> dict[str, Interval]:
        """Return the percentile interval of each score at a confidence level in (0, 1).

        With ten images per class or fewer, macro precision and F1 of the resamples are shifted against the score, and
        so are their intervals: prefer balanced accuracy there.
        """
        check_share("level", level)
        edges = [(1 - level) / 2, (1 + level) / 2]
        bounds = {name: np.quantile(scores, edges) for name, scores in self.resampled.items()}
        return {name: Interval(self.values[name], float(low), float(high)) for name, (low, high) in bounds.items()}


def bootstrap(logits: Tensor, labels: Tensor, resamples: int = 1000, seed: int = 0) -> Bootstrap:
    """Resample images (N, K) within their classes, and score each resample.

    The scores are top1, top5 (for K above 5), log_loss, brier, ece, macro_precision, macro_recall, macro_f1,
    macro_specificity, balanced_accuracy and mcc, defined as in `metrics`, `scores` and `calibration`. The result
    depends on the seed, but not on the order of the images. The binned calibration error of a resample is larger on
    average than that of the images (Roelofs et al. 2022, arXiv 2012.08668), so the resamples of `ece` are shifted to
    have it as their mean, and are at least 0.

    Raises:
        DataError: If the predictions do not pass :func:`~vitreous.evaluate.metrics.check_predictions`, or `resamples`
            is below 1.
    """
    if resamples < 1:
        raise DataError(f"resamples is {resamples}, it must be at least 1")
    images = tabulate(*check_predictions(logits, labels))
    return resample(images.take(image_order(images)), resamples, seed)


def tabulate(logits: Tensor, labels: Tensor) -> Images:
    """Return the values of each image from checked logits and labels."""
    true_logit = logits.gather(1, labels[:, None])  # (N, 1)
    earlier = torch.arange(logits.shape[1])[None, :] < labels[:, None]  # as metrics breaks ties
    ranks = ((logits > true_logit) | ((logits == true_logit) & earlier)).sum(dim=1)
    errors = torch.softmax(logits, dim=1) - F.one_hot(labels, logits.shape[1])
    columns = {
        "top1": (ranks == 0).double(),
        "top5": (ranks < _TOP).double() if logits.shape[1] > _TOP else None,
        "log_loss": F.cross_entropy(logits, labels, reduction="none"),
        "brier": errors.square().sum(dim=1),
    }
    kept = {name: column.numpy() for name, column in columns.items() if column is not None}
    values, true, predicted = np.stack(list(kept.values()), axis=1), labels.numpy(), logits.argmax(dim=1).numpy()
    confidence = torch.softmax(logits, dim=1).amax(dim=1).numpy()
    edges = np.linspace(0, 1, _BINS + 1)  # as in calibration.reliability
    bins = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, _BINS - 1)
    gaps = np.zeros((len(true), _BINS))
    gaps[np.arange(len(true)), bins] = (predicted == true) - confidence
    return Images(true, predicted, values, gaps, tuple(kept), logits.shape[1])


def image_order(*tables: Images) -> Ints:
    """Return (N,) the order by class, and within a class by what the tables of the same images hold."""
    keys = [key for images in tables for key in (*images.values.T, images.predicted)]
    return np.lexsort((*keys, tables[0].labels))


def resample(images: Images, resamples: int, seed: int) -> Bootstrap:
    """Bootstrap images that are in the order of :func:`image_order`; the same seed draws the same rows."""
    cells, cell_of = np.unique(images.labels * images.classes + images.predicted, return_inverse=True)
    ones = np.ones(len(cells))
    into_cell = csr_array((np.ones(len(cell_of)), (np.arange(len(cell_of)), cell_of)))  # (N, C)
    into_class = csr_array((ones, (np.arange(len(cells)), cells % images.classes)), (len(cells), images.classes))
    correct = np.flatnonzero(cells // images.classes == cells % images.classes)
    support = np.bincount(images.labels, minlength=images.classes)
    parts: list[dict[str, Floats]] = []
    for draws in _all_then_drawn(images.labels, resamples, seed):  # (r, N) how often each image is drawn
        counts = draws @ into_cell  # (r, C)
        hits = np.zeros((len(draws), images.classes))
        hits[:, cells[correct] % images.classes] = counts[:, correct]
        means, gaps = (draws @ columns / len(images.labels) for columns in (images.values, images.gaps))
        errors = {"ece": np.abs(gaps).sum(axis=1)}
        parts.append(_scores(means, images.names, hits, support, counts @ into_class) | errors)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined["ece"][1:] = np.maximum(0, joined["ece"][1:] - joined["ece"][1:].mean() + joined["ece"][0])
    values = {name: float(scores[0]) for name, scores in joined.items()}
    return Bootstrap(values, {name: scores[1:] for name, scores in joined.items()}, int((support == 1).sum()))


def _all_then_drawn(labels: Ints, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield (1, N) ones, and then blocks (r, N) of how often each image is drawn, R rows in total."""
    n, generator = len(labels), np.random.default_rng(seed)
    yield np.ones((1, n))
    sizes = np.bincount(labels)
    size = sizes[labels].astype(np.float32)  # (N,) images of the class
    first = (np.cumsum(sizes) - sizes)[labels]  # (N,) position of the first image of the class
    block = max(1, _MAX_DRAWS // n)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        # A float32 has 24 bits: the chances of two images of one class differ by less than size / 2^24.
        drawn = (generator.random((rows, n), dtype=np.float32) * size).astype(np.int64)
        drawn = np.minimum(drawn, size.astype(np.int64) - 1) + first + np.arange(rows)[:, None] * n
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def _scores(sums: Floats, names: tuple[str, ...], hits: Floats, support: Ints, predicted: Floats) -> dict[str, Floats]:
    """Return the scores (r,) from the means (r, V) and the counts of each class (r, K)."""
    fixed = np.broadcast_to(support, hits.shape)  # every resample has the same images per class
    each = counted_scores(hits, fixed, predicted)
    occurs = (fixed + predicted) > 0
    scores = {name: sums[:, column] for column, name in enumerate(names)}
    scores |= {
        f"macro_{name}": (each[name] * occurs).sum(axis=1) / occurs.sum(axis=1)
        for name in ("precision", "recall", "f1", "specificity")
    }
    scores["balanced_accuracy"] = each["recall"].sum(axis=1) / (support > 0).sum()
    scores["mcc"] = matthews(hits.sum(axis=1), fixed, predicted)
    return scores


def wilson(correct: int, n: int, level: float = 0.95) -> Interval:
    """Return Wilson's score interval (1927) of `correct` of `n`, both at least 0 and `n` above 0."""
    check_count(correct, n)
    check_share("level", level)
    z = float(ndtri((1 + level) / 2))
    share = correct / n
    centre, half = share + z**2 / (2 * n), z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    # The bounds at no and at all correct are exactly 0 and 1; rounding would leave them beside it.
    low = 0.0 if correct == 0 else (centre - half) / scale
    high = 1.0 if correct == n else (centre + half) / scale
    return Interval(share, low, high)


def clopper_pearson_lower(correct: int, n: int, error: float) -> float:
    """Return the one-sided lower bound of a share (Clopper and Pearson 1934), which fails with a chance <= `error`."""
    check_count(correct, n)
    check_share("error", error)
    return 0.0 if correct == 0 else float(beta.ppf(error, correct, n - correct + 1))


def check_share(name: str, value: float) -> None:
    """Raise DataError unless a number is in (0, 1)."""
    if not 0 < value < 1:
        raise DataError(f"{name} is {value}, it must be above 0 and below 1")


def check_count(correct: int, n: int) -> None:
    """Raise DataError unless 0 <= correct <= n and n > 0."""
    if not 0 <= correct <= n or n == 0:
        raise DataError(f"{correct} of {n} is no share: the first must be from 0 to the second, which must be above 0")
