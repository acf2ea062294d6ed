"""Confidence intervals of scores: Wilson and Clopper-Pearson for shares, one stratified bootstrap for the rest.

N images, K classes, R resamples, C distinct pairs of true and predicted class that occur, V columns of values of the
images, M bins of confidence, n images of a class. A resample draws images of each class with replacement, and weights
them so that the classes keep their sizes. Scores that are sums over images or counts of a confusion matrix follow from
the weights.
Areas under curves have a closed form instead, in `area_intervals`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import DataError
from vitreous.evaluate.scoring.metrics import check_predictions
from vitreous.evaluate.scoring.scores import counted_scores, matthews

__all__ = [
    "Bootstrap",
    "Images",
    "Interval",
    "block_sizes",
    "bootstrap",
    "check_count",
    "check_share",
    "clopper_pearson_lower",
    "image_order",
    "quantiles",
    "resample",
    "tabulate",
    "weighted_scores",
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

    def followed_by(self, other: Images) -> Images:
        """Return these images and then the others, of the same classes and values."""
        return Images(
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.predicted, other.predicted]),
            np.concatenate([self.values, other.values]),
            np.concatenate([self.gaps, other.gaps]),
            self.names,
            self.classes,
        )


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
        bounds = {name: quantiles(scores, edges) for name, scores in self.resampled.items()}
        return {name: Interval(self.values[name], float(low), float(high)) for name, (low, high) in bounds.items()}


def quantiles(resampled: Floats, shares: Sequence[float]) -> Floats:
    """Return quantiles of R resampled values, at the ranks share * (R + 1).

    A further value from the same distribution is beyond such a quantile with exactly its share, whatever R is, so that
    an interval and a p-value of the same resamples agree.
    """
    return np.quantile(resampled, shares, method="weibull")


def bootstrap(logits: Tensor, labels: Tensor, resamples: int = 1000, seed: int = 0) -> Bootstrap:
    """Resample images (N, K) within their classes, and score each resample.

    The scores are top1, top5 (for K above 5), log_loss, brier, ece, macro_precision, macro_recall, macro_f1,
    macro_specificity, balanced_accuracy and mcc, defined as in `metrics`, `scores` and `calibration`. The result
    depends on the seed, but not on the order of the images. The binned calibration error of a resample is larger on
    average than that of the images (Roelofs et al. 2022, arXiv 2012.08668), so the resamples of `ece` are shifted to
    have it as their mean, and are at least 0.

    Raises:
        DataError: If the predictions do not pass :func:`~vitreous.evaluate.scoring.metrics.check_predictions`, or
            `resamples` is below 1.
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
    scores = weighted_scores(images, _all_then_drawn(images.labels, resamples, seed))
    scores["ece"][1:] = np.maximum(0, scores["ece"][1:] - scores["ece"][1:].mean() + scores["ece"][0])
    single = int((np.bincount(images.labels) == 1).sum())
    values = {name: float(each[0]) for name, each in scores.items()}
    return Bootstrap(values, {name: each[1:] for name, each in scores.items()}, single)


def weighted_scores(images: Images, blocks: Iterable[Floats], copies: int = 1) -> dict[str, Floats]:
    """Return the scores (R,) of the images with given weights, in blocks of rows (r, N).

    The weights of a class must sum to its number of images over `copies`, the number of rows that stand for one image.
    """
    n, classes = len(images.labels) // copies, images.classes
    cells, cell_of = np.unique(images.labels * classes + images.predicted, return_inverse=True)
    ones = np.ones(len(cells))
    from scipy.sparse import csr_array  # slow to import: only where it is used

    into_cell = csr_array((np.ones(len(cell_of)), (np.arange(len(cell_of)), cell_of)))  # (N, C)
    into_class = csr_array((ones, (np.arange(len(cells)), cells % classes)), (len(cells), classes))
    correct = np.flatnonzero(cells // classes == cells % classes)
    support = np.bincount(images.labels, minlength=classes) // copies
    parts: list[dict[str, Floats]] = []
    for weights in blocks:
        counts = weights @ into_cell  # (r, C)
        hits = np.zeros((len(weights), classes))
        hits[:, cells[correct] % classes] = counts[:, correct]
        means, gaps = (weights @ columns / n for columns in (images.values, images.gaps))
        errors = {"ece": np.abs(gaps).sum(axis=1)}
        parts.append(_scores(means, images.names, hits, support, counts @ into_class) | errors)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _all_then_drawn(labels: Ints, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield (1, N) ones, and then blocks (r, N) of the weight of each image, R rows in total.

    A resample draws n - 1 of the n images of a class, each of which weighs n / (n - 1) (Rao and Wu 1988, "Resampling
    inference with complex survey data", section 2.2). The usual n draws make the variance of a mean too small by the
    factor (n - 1) / n. The only image of a class is always drawn.
    """
    images, generator = len(labels), np.random.default_rng(seed)
    yield np.ones((1, images))
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes  # position of the first image of each class
    draws = np.maximum(sizes - 1, np.minimum(sizes, 1))  # (K,) n - 1, or 1 of 1
    weight = (sizes / np.maximum(draws, 1))[labels]  # (N,)
    size, first = np.repeat(sizes, draws).astype(np.float32), np.repeat(starts, draws)  # of each draw
    last = np.repeat(sizes, draws) - 1
    for rows in block_sizes(images, resamples):
        # A float32 has 24 bits: the chances of two images of one class differ by less than size / 2^24.
        drawn = (generator.random((rows, len(size)), dtype=np.float32) * size).astype(np.int64)
        drawn = np.minimum(drawn, last) + first + np.arange(rows)[:, None] * images
        yield np.bincount(drawn.ravel(), minlength=rows * images).reshape(rows, images) * weight


def block_sizes(images: int, resamples: int) -> Iterator[int]:
    """Yield how many of R resamples of N images to hold in memory at once, R in total."""
    block = max(1, _MAX_DRAWS // images)
    for start in range(0, resamples, block):
        yield min(block, resamples - start)


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
    from scipy.stats import beta  # slow to import: only where it is used

    return 0.0 if correct == 0 else float(beta.ppf(error, correct, n - correct + 1))


def check_share(name: str, value: float) -> None:
    """Raise DataError unless a number is in (0, 1)."""
    if not 0 < value < 1:
        raise DataError(f"{name} is {value}, it must be above 0 and below 1")


def check_count(correct: int, n: int) -> None:
    """Raise DataError unless 0 <= correct <= n and n > 0."""
    if not 0 <= correct <= n or n == 0:
        raise DataError(f"{correct} of {n} is no share: the first must be from 0 to the second, which must be above 0")
