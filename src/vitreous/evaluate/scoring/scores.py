"""Scores per class, their averages, and the order and pairs that make a large confusion matrix readable.

N images, K classes, m images of the class, S distinct scores. Every score is in [0, 1], except Matthews correlation in
[-1, 1]. Ranking scores are one-vs-rest and rank by the logarithm of the softmax, which orders images as the
probability does but does not round to 0 or 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.errors import DataError
from vitreous.evaluate.scoring.metrics import check_predictions, evaluate, most_confused

__all__ = [
    "ConfusedImages",
    "DetailedScores",
    "class_order",
    "confused_images",
    "counted_scores",
    "detailed_scores",
    "matthews",
    "ranking_scores",
]

Floats = npt.NDArray[np.float64]

_LARGEST_OPTIMAL_ORDER = 200  # classes; the optimal order of leaves takes a time of K^3 and more


@dataclass(frozen=True, eq=False)
class DetailedScores:
    """Scores of each class and their averages.

    A macro score is the mean over the classes for which the score is defined: precision, specificity and F1 over the
    classes that occur among the labels or the predictions, as in torchmetrics; recall over the same classes, so that
    `balanced_accuracy` is the one to use if some classes have no images; AUC over classes with images of the class
    and of others; average precision over classes with images.
    """

    precision: Floats  # (K,) 0 if nothing is predicted as the class
    recall: Floats  # (K,) 0 if the class has no image
    specificity: Floats  # (K,) share of the other classes' images that are not predicted as it; 0 if there are none
    f1: Floats  # (K,) 0 if precision and recall are 0
    support: npt.NDArray[np.int64]  # (K,) number of images
    auc: Floats  # (K,) area under the one-vs-rest ROC curve; NaN if the class has no image or all of them
    average_precision: Floats  # (K,) as in scikit-learn; NaN if the class has no image
    macro: dict[str, float]  # precision, recall, specificity, f1, auc, average_precision; NaN if none is defined
    micro: dict[str, float]  # precision, recall, specificity, f1; all but specificity equal the accuracy
    balanced_accuracy: float  # mean recall over classes with images
    mcc: float  # Matthews correlation for K classes (Gorodkin 2004); 0 if it is undefined
    top5: float | None  # share of images with the true class in the five highest logits; None for K of 5 or less
    absent: tuple[int, ...]  # classes without an image
    notes: tuple[str, ...]  # remarks on how to read the scores

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; an undefined score is None."""
        columns = ("precision", "recall", "specificity", "f1", "auc", "average_precision")
        rows = zip(*(getattr(self, name).tolist() for name in columns), self.support.tolist(), strict=True)
        per_class = [dict(zip((*columns, "support"), map(_defined, row), strict=True)) for row in rows]
        return {
            "per_class": per_class,
            "macro": {name: _defined(value) for name, value in self.macro.items()},
            "micro": {name: _defined(value) for name, value in self.micro.items()},
            "balanced_accuracy": self.balanced_accuracy,
            "mcc": self.mcc,
            "top5": self.top5,
            "absent": list(self.absent),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class ConfusedImages:
    """The images of class `true` that are predicted as class `predicted`."""

    true: int
    predicted: int
    share: float  # of the images of the true class, in (0, 1]
    images: tuple[int, ...]  # indices in the order of the logits


def detailed_scores(logits: Tensor, labels: Tensor) -> DetailedScores:
    """Score logits (N, K) and labels (N,).

    Errors are those of :func:`~vitreous.evaluate.scoring.metrics.check_predictions`.
    """
    logits, labels = check_predictions(logits, labels)
    basic = evaluate(logits, labels)
    confusion = basic.confusion
    support, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    n, classes = logits.shape
    ranked = torch.log_softmax(logits, dim=1).numpy()
    areas = np.array([ranking_scores(ranked[:, k], labels.numpy() == k) for k in range(classes)])  # (K, 2)
    counted = counted_scores(np.diag(confusion), support, predicted)
    occurs = (support + predicted) > 0
    macro = {name: float(counted[name][occurs].mean()) for name in ("precision", "recall", "specificity", "f1")}
    macro |= {name: _mean_defined(areas[:, k]) for k, name in enumerate(("auc", "average_precision"))}
    others = n * (classes - 1)
    specificity = 1 - (n - int(np.diag(confusion).sum())) / others if others else math.nan
    absent = tuple(int(k) for k in np.flatnonzero(support == 0))
    return DetailedScores(
        **counted,
        support=support,
        auc=areas[:, 0],
        average_precision=areas[:, 1],
        macro=macro,
        micro={"precision": basic.top1, "recall": basic.top1, "specificity": specificity, "f1": basic.top1},
        balanced_accuracy=float(counted["recall"][support > 0].mean()),
        mcc=float(matthews(np.diag(confusion).sum(), support, predicted)),
        top5=basic.top5,
        absent=absent,
        notes=_notes(absent, classes),
    )


def counted_scores(hits: npt.ArrayLike, support: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, Floats]:
    """Return precision, recall, specificity and F1, (..., K) each.

    Arguments are counts of the shape (..., K): the correct predictions, the images, and the predictions of each class.
    An undefined score is 0.
    """
    hits, support, predicted = (np.asarray(counts, np.float64) for counts in (hits, support, predicted))
    others = support.sum(axis=-1, keepdims=True) - support
    return {
        "precision": _ratio(hits, predicted),
        "recall": _ratio(hits, support),
        "specificity": _ratio(others - (predicted - hits), others),
        "f1": _ratio(2 * hits, support + predicted),
    }


def matthews(hits: npt.ArrayLike, support: npt.ArrayLike, predicted: npt.ArrayLike) -> Floats:
    """Return Matthews correlation for K classes (Gorodkin 2004), 0 if it is undefined.

    `hits` (...) is the number of correct predictions; `support` and `predicted` (..., K) count images and predictions.
    """
    hits, support, predicted = (np.asarray(counts, np.float64) for counts in (hits, support, predicted))
    n = support.sum(axis=-1)
    covariance = hits * n - (support * predicted).sum(axis=-1)
    spreads = [n**2 - (counts**2).sum(axis=-1) for counts in (support, predicted)]
    # Weighted counts of a single class leave a rounding error, of either sign, instead of 0.
    spread = math.prod(np.where(each > 1e-12 * n**2, each, 0) for each in spreads)
    return _ratio(covariance, np.sqrt(spread))


def ranking_scores(score: Floats, positive: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision of scores (N,) for positive images (N,).

    The area is the Mann-Whitney statistic, in which equal scores count half. Average precision is the sum over
    distinct scores of precision times the gain in recall, without interpolation. An undefined one is NaN.
    """
    m, others = int(positive.sum()), int((~positive).sum())
    if m == 0:
        return math.nan, math.nan
    auc = math.nan
    if others:
        from scipy.stats import rankdata  # slow to import: only where it is used

        auc = float((rankdata(score)[positive].sum() - m * (m + 1) / 2) / (m * others))
    _, level = np.unique(-score, return_inverse=True)  # falling scores
    above = np.bincount(level).cumsum()  # (S,) images at least as high
    gained = np.bincount(level, positive)  # (S,)
    return auc, float((gained / m * gained.cumsum() / above).sum())


def class_order(confusion: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return (K,) an order of the classes in which classes that are confused with each other stand together.

    The rows of `confusion` (K, K) become shares, the matrix is symmetrised, and classes are clustered by average
    linkage of 1 - share; classes without images have the distance 1 to all. Up to 200 classes the order of the leaves
    is the optimal one (Bar-Joseph et al. 2001).
    """
    confusion = np.asarray(confusion)
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1] or len(confusion) == 0:
        raise DataError(f"a confusion matrix must be (K, K) with K of at least 1, this one is {confusion.shape}")
    classes = len(confusion)
    if classes < 3:
        return np.arange(classes)
    shares = _ratio(confusion, np.broadcast_to(confusion.sum(axis=1, keepdims=True), confusion.shape))
    distance = 1 - (shares + shares.T) / 2
    np.fill_diagonal(distance, 0)
    optimal = classes <= _LARGEST_OPTIMAL_ORDER
    from scipy.cluster.hierarchy import leaves_list, linkage  # slow to import: only where they are used
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(distance, checks=False), method="average", optimal_ordering=optimal)
    return leaves_list(tree).astype(np.int64)


def confused_images(logits: Tensor, labels: Tensor, n: int = 10) -> list[ConfusedImages]:
    """Return up to `n` most frequent confusions with their images, as `metrics.most_confused` orders them."""
    logits, labels = check_predictions(logits, labels)
    classes = logits.shape[1]
    true, predicted = labels.numpy(), logits.argmax(dim=1).numpy()
    confusion = np.bincount(true * classes + predicted, minlength=classes**2).reshape(classes, classes)
    found = []
    for pair in most_confused(confusion, [str(k) for k in range(classes)], n):
        row, column = int(pair.true), int(pair.predicted)
        images = np.flatnonzero((true == row) & (predicted == column))
        found.append(ConfusedImages(row, column, pair.share, tuple(int(i) for i in images)))
    return found


def _ratio(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> Floats:
    """Divide, with 0 where the denominator is 0."""
    numerator, denominator = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator != 0)


def _mean_defined(values: Floats) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _notes(absent: tuple[int, ...], classes: int) -> tuple[str, ...]:
    if not absent:
        return ()
    return (
        f"{len(absent):,} of {classes:,} classes have no image: their recall, AUC and average precision are undefined, "
        "and balanced accuracy leaves them out",
    )
