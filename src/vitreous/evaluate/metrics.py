"""Scores of a classifier from its logits and the true labels. Calibration lives beside it, pictures in `train/`.

N images, K classes. Every share is a fraction in [0, 1]; every loss is in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import precision_recall_fscore_support
from torch import Tensor

from vitreous.errors import DataError, NonFiniteError
from vitreous.files.html import html_table

__all__ = ["ClassScore", "ConfusedPair", "Scores", "check_predictions", "evaluate", "most_confused", "worst_mistakes"]

_TOP = 5


class ClassScore(NamedTuple):
    """How one class fares.

    Attributes:
        precision: Share of the images called this class that are of it; 0 where none was called so.
        recall: Share of the images of this class that were called so; 0 where there is none.
        f1: Harmonic mean of the two; 0 where both are 0.
        support: Images of this class among the labels.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ConfusedPair:
    """One kind of mistake: images of class `true` that were called `predicted`.

    Attributes:
        true: Name of the true class.
        predicted: Name of the class it was taken for.
        count: Number of such images.
        share: `count` over all images of the true class, in (0, 1].
    """

    true: str
    predicted: str
    count: int
    share: float


@dataclass(frozen=True, eq=False)
class Scores:
    """Everything that :func:`evaluate` measures.

    Macro scores are the plain mean over the classes that occur among the labels or the predictions: what
    scikit-learn (`labels=None, zero_division=0`) and torchmetrics (`average="macro"`) both compute. A class of the
    model that this data neither holds nor elicits does not count; a class that is held but never predicted counts 0.

    Overall scores pool all decisions (micro average). With one label an image, each wrong decision is a false positive
    of one class and a false negative of another, so precision, recall and F1 overall all equal `top1`.

    Attributes:
        n: Number of images (N).
        log_loss: Mean cross-entropy of the softmax of the logits, in nats.
        top1: Share of images whose highest logit is the true class; the first of equals counts as the highest.
        top5: Share of images with the true class among the five highest logits. None with five classes or fewer,
            where it would be 1 for any model.
        macro_precision: Mean precision over classes.
        macro_recall: Mean recall over classes; equals balanced accuracy where every predicted class has images.
        macro_f1: Mean over classes of F1.
        precision: Overall precision, equal to `top1`.
        recall: Overall recall, equal to `top1`.
        f1: Overall F1, equal to `top1`.
        per_class: One entry per class, in the order of the logits.
        confusion: (K, K) counts, row = true class, column = predicted class.
    """

    n: int
    log_loss: float
    top1: float
    top5: float | None
    macro_precision: float
    macro_recall: float
    macro_f1: float
    precision: float
    recall: float
    f1: float
    per_class: tuple[ClassScore, ...]
    confusion: npt.NDArray[np.int64]

    def summary(self) -> dict[str, float]:
        """Return the single numbers by field name, without `n`; `top5` only where there is one."""
        names = ("log_loss", "top1", "top5", "macro_precision", "macro_recall", "macro_f1", "precision", "recall", "f1")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _repr_html_(self) -> str:
        top5 = [("top-5", f"{self.top5:.2%}")] if self.top5 is not None else []
        macro = [(name, f"{getattr(self, name):.4f}") for name in ("macro_precision", "macro_recall", "macro_f1")]
        rows = [("top-1", f"{self.top1:.2%}"), *top5, *macro, ("log loss", f"{self.log_loss:.4f}")]
        return html_table(f"{self.n:,} images", rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the same fields as plain numbers, lists and dictionaries, ready for JSON."""
        return asdict(self) | {
            "per_class": [c._asdict() for c in self.per_class],
            "confusion": self.confusion.tolist(),
        }


def check_predictions(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits as (N, K) float64 and labels as (N,) int64, both on the CPU, or say what is wrong with them.

    Raises:
        DataError: If the shapes do not fit, there is no image, or a label is outside [0, K).
        NonFiniteError: If a logit is NaN or infinite.
    """
    if logits.ndim != 2 or labels.ndim != 1 or len(logits) != len(labels):
        raise DataError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} do not fit: they must be (N, K) and (N,)"
        )
    n, classes = logits.shape
    if n == 0 or classes == 0:
        raise DataError(f"there is nothing to score: {n} images, {classes} classes")
    logits, labels = logits.detach().cpu().double(), labels.detach().cpu().long()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise DataError(f"labels go from {low} to {high}, but a model of {classes} classes knows 0 to {classes - 1}")
    broken = int((~logits.isfinite()).any(dim=1).sum())
    if broken:
        raise NonFiniteError(
            f"the model's output is NaN or infinite for {broken} of {n} images: its weights are broken"
        )
    return logits, labels


def evaluate(logits: Tensor, labels: Tensor) -> Scores:
    """Score predictions.

    Args:
        logits: (N, K) outputs of the model before softmax, any floating type and device; N, K >= 1.
        labels: (N,) true classes, integers in [0, K).

    Returns:
        The scores, computed in float64.

    Raises:
        DataError: If the shapes do not fit, there is no image, or a label is outside [0, K).
        NonFiniteError: If a logit is NaN or infinite.
    """
    logits, labels = check_predictions(logits, labels)
    n, classes = logits.shape
    predicted = logits.argmax(dim=1)
    ranks = _rank_of_truth(logits, labels)
    top1 = float((ranks == 0).double().mean())
    true_, predicted_ = labels.numpy(), predicted.numpy()
    precision, recall, f1, support = precision_recall_fscore_support(
        true_, predicted_, labels=range(classes), zero_division=0
    )
    occurs = np.union1d(true_, predicted_)
    return Scores(
        n=n,
        log_loss=float(torch.nn.functional.cross_entropy(logits, labels)),
        top1=top1,
        top5=float((ranks < _TOP).double().mean()) if classes > _TOP else None,
        macro_precision=float(precision[occurs].mean()),
        macro_recall=float(recall[occurs].mean()),
        macro_f1=float(f1[occurs].mean()),
        precision=top1,
        recall=top1,
        f1=top1,
        per_class=tuple(
            ClassScore(float(p), float(r), float(f), int(s))
            for p, r, f, s in zip(precision, recall, f1, support, strict=True)
        ),
        confusion=np.bincount(true_ * classes + predicted_, minlength=classes**2).reshape(classes, classes),
    )


def most_confused(confusion: npt.NDArray[np.int64], classes: Sequence[str], n: int = 10) -> list[ConfusedPair]:
    """Return the `n` most frequent kinds of mistake, most frequent first.

    Kinds with the same count come with the larger share of their true class first, then in the order of the classes.

    Args:
        confusion: (K, K) counts, row = true class, column = predicted class.
        classes: The K class names.
        n: How many at most; kinds that never happened are left out.

    Raises:
        DataError: If `confusion` is not (K, K) for K class names.
    """
    if confusion.shape != (len(classes), len(classes)):
        raise DataError(f"a confusion matrix of shape {confusion.shape} does not fit {len(classes)} class names")
    support = confusion.sum(axis=1)
    rows, columns = np.nonzero(confusion * (1 - np.eye(len(classes), dtype=np.int64)))
    counts = confusion[rows, columns]
    shares = counts / support[rows]
    order = np.lexsort((columns, rows, -shares, -counts))[: max(n, 0)]
    return [ConfusedPair(classes[rows[i]], classes[columns[i]], int(counts[i]), float(shares[i])) for i in order]


def worst_mistakes(logits: Tensor, labels: Tensor, n: int = 25) -> list[int]:
    """Return the indices of the wrongly classified images with the highest loss, the worst first.

    Args:
        logits: (N, K) outputs of the model before softmax.
        labels: (N,) true classes.
        n: How many at most; equal losses come in the order of the images.

    Raises:
        DataError: As :func:`evaluate`.
        NonFiniteError: As :func:`evaluate`.
    """
    logits, labels = check_predictions(logits, labels)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    wrong = (logits.argmax(dim=1) != labels).nonzero().squeeze(1)
    order = torch.argsort(losses[wrong], descending=True, stable=True)
    return [int(i) for i in wrong[order[: max(n, 0)]]]


def _rank_of_truth(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (N,) how many classes stand before the true one: higher logits, and equal ones of lower index.

    Unlike `torch.topk`, whose order among equals is unspecified, this keeps top-1 = argmax and top-5 >= top-1.
    """
    true_logit = logits.gather(1, labels[:, None])  # (N, 1)
    earlier = torch.arange(logits.shape[1])[None, :] < labels[:, None]  # (N, K)
    return ((logits > true_logit) | ((logits == true_logit) & earlier)).sum(dim=1)
