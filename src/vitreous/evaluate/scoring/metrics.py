"""Scores of a classifier from its logits and the true labels; not calibration, and no figures.

N images, K classes. Every share is a fraction in [0, 1]; every loss is in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import DataError, NonFiniteError
from vitreous.files.html import html_table

__all__ = [
    "ClassScore",
    "ConfusedPair",
    "Scores",
    "check_predictions",
    "counted_shares",
    "evaluate",
    "most_confused",
    "worst_mistakes",
]

Counts = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]

_TOP = 5


class ClassScore(NamedTuple):
    """Scores of one class."""

    precision: float  # share of the images predicted as this class that belong to it; 0 if there is none
    recall: float  # share of the images of this class that are predicted as it; 0 if there is none
    f1: float  # harmonic mean of the two; 0 if both are 0
    support: int  # number of images of this class


@dataclass(frozen=True)
class ConfusedPair:
    """Images of class `true` that are predicted as `predicted`."""

    true: str
    predicted: str
    count: int
    share: float  # `count` / number of images of the true class, in (0, 1]


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one set of images.

    Macro scores are the mean over the classes that occur among the labels or the predictions, as in scikit-learn
    (`labels=None, zero_division=0`) and torchmetrics (`average="macro"`).

    Overall scores are micro averages. With one label per image each mistake is a false positive of one class and a
    false negative of another, so overall precision, recall and F1 all equal `top1`.

    Attributes:
        top5: Share of images with the true class among the five highest logits; None for five classes or fewer.
    """

    n: int  # number of images (N)
    log_loss: float  # mean cross-entropy of the softmax of the logits, in nats
    top1: float  # share of images whose highest logit is that of the true class; the first of equal logits wins
    top5: float | None
    macro_precision: float  # mean precision over classes
    macro_recall: float  # mean recall over classes; equals balanced accuracy if every predicted class has images
    macro_f1: float  # mean F1 over classes
    precision: float  # overall precision, equal to `top1`
    recall: float  # overall recall, equal to `top1`
    f1: float  # overall F1, equal to `top1`
    per_class: tuple[ClassScore, ...]  # one entry per class, in the order of the logits
    confusion: npt.NDArray[np.int64]  # (K, K) counts, row = true class, column = predicted class

    def summary(self) -> dict[str, float]:
        """Return the scalar scores by field name, without `n` and without a `top5` of None."""
        names = ("log_loss", "top1", "top5", "macro_precision", "macro_recall", "macro_f1", "precision", "recall", "f1")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def headline(self) -> tuple[str, float]:
        """Name and value of the main score."""
        return "top-1", self.top1

    def describe(self) -> str:
        """Return the main scores as one line."""
        return f"top-1 {100 * self.top1:.1f} %, macro F1 {self.macro_f1:.2f}, log loss {self.log_loss:.2f}"

    def _repr_html_(self) -> str:
        top5 = [("top-5", f"{self.top5:.2%}")] if self.top5 is not None else []
        macro = [(name, f"{getattr(self, name):.4f}") for name in ("macro_precision", "macro_recall", "macro_f1")]
        rows = [("top-1", f"{self.top1:.2%}"), *top5, *macro, ("log loss", f"{self.log_loss:.4f}")]
        return html_table(f"{self.n:,} images", rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        per_class = [each._asdict() for each in self.per_class]
        return asdict(self) | {"per_class": per_class, "confusion": self.confusion.tolist()}


def check_predictions(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check predictions, and return logits as (N, K) float64 and labels as (N,) int64, both on the CPU.

    Raises:
        DataError: If the shapes do not match, there is no image, or a label is outside [0, K).
        NonFiniteError: If a logit is NaN or infinite.
    """
    if logits.ndim != 2 or labels.ndim != 1 or len(logits) != len(labels):
        raise DataError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} do not match: they must be (N, K) and (N,)"
        )
    n, classes = logits.shape
    if n == 0 or classes == 0:
        raise DataError(f"there is nothing to score: {n} images, {classes} classes")
    logits, labels = logits.detach().cpu().double(), labels.detach().cpu().long()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise DataError(f"labels range from {low} to {high}, but a model of {classes} classes has 0 to {classes - 1}")
    invalid = int((~logits.isfinite()).any(dim=1).sum())
    if invalid:
        raise NonFiniteError(
            f"the model's output is NaN or infinite for {invalid} of {n} images: its weights are corrupt"
        )
    return logits, labels


def evaluate(logits: Tensor, labels: Tensor) -> Scores:
    """Score predictions, logits before softmax and true classes as in :func:`check_predictions`, in float64."""
    logits, labels = check_predictions(logits, labels)
    n, classes = logits.shape
    ranks = _rank_of_truth(logits, labels)
    top1 = float((ranks == 0).double().mean())
    true, predicted = labels.numpy(), logits.argmax(dim=1).numpy()
    confusion = np.bincount(true * classes + predicted, minlength=classes**2).reshape(classes, classes)
    support = confusion.sum(axis=1)
    precision, recall, f1 = counted_shares(confusion.diagonal(), support, confusion.sum(axis=0))
    occurs, per_class = np.union1d(true, predicted), zip(precision, recall, f1, support, strict=True)
    return Scores(
        n=n,
        log_loss=float(F.cross_entropy(logits, labels)),
        top1=top1,
        top5=float((ranks < _TOP).double().mean()) if classes > _TOP else None,
        macro_precision=float(precision[occurs].mean()),
        macro_recall=float(recall[occurs].mean()),
        macro_f1=float(f1[occurs].mean()),
        precision=top1,
        recall=top1,
        f1=top1,
        per_class=tuple(ClassScore(float(p), float(r), float(f), int(s)) for p, r, f, s in per_class),
        confusion=confusion,
    )


def counted_shares(hits: Counts, support: Counts, predicted: Counts) -> tuple[Shares, Shares, Shares]:
    """Return precision, recall and F1 from counts by class or label, (K,) each; 0 where one is undefined.

    `hits` are the images that have a class and are predicted to, `support` those that have it, and `predicted` those
    that are predicted to.
    """
    precision = hits / np.maximum(predicted, 1)
    recall = hits / np.maximum(support, 1)
    return precision, recall, 2 * hits / np.maximum(predicted + support, 1)


def most_confused(confusion: npt.NDArray[np.int64], classes: Sequence[str], n: int = 10) -> list[ConfusedPair]:
    """Return up to `n` pairs of true class (row) and wrongly predicted class (column), the most frequent first.

    Pairs with equal counts are ordered by their share of the true class, then in the order of the classes.
    """
    if confusion.shape != (len(classes), len(classes)):
        raise DataError(f"a confusion matrix of shape {confusion.shape} does not match {len(classes)} class names")
    support = confusion.sum(axis=1)
    rows, columns = np.nonzero(confusion * (1 - np.eye(len(classes), dtype=np.int64)))
    counts = confusion[rows, columns]
    shares = counts / support[rows]
    order = np.lexsort((columns, rows, -shares, -counts))[: max(n, 0)]
    return [ConfusedPair(classes[rows[i]], classes[columns[i]], int(counts[i]), float(shares[i])) for i in order]


def worst_mistakes(logits: Tensor, labels: Tensor, n: int = 25) -> list[int]:
    """Return the indices of up to `n` wrongly classified images, by falling loss and in the order of the images."""
    logits, labels = check_predictions(logits, labels)
    losses = F.cross_entropy(logits, labels, reduction="none")
    wrong = (logits.argmax(dim=1) != labels).nonzero().squeeze(1)
    order = torch.argsort(losses[wrong], descending=True, stable=True)
    return [int(i) for i in wrong[order[: max(n, 0)]]]


def _rank_of_truth(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (N,) the number of classes with a higher logit than the true one, or an equal one and a lower index.

    Unlike `torch.topk`, whose order of equal values is unspecified, this keeps top-1 equal to argmax.
    """
    true_logit = logits.gather(1, labels[:, None])  # (N, 1)
    earlier = torch.arange(logits.shape[1])[None, :] < labels[:, None]  # (N, K)
    return ((logits > true_logit) | ((logits == true_logit) & earlier)).sum(dim=1)
