"""Scores of a model with several labels, from its logits and the true labels. N images, K labels.

Every share is a fraction in [0, 1]; every loss is in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import DataError, NonFiniteError
from vitreous.evaluate.scoring.metrics import counted_shares
from vitreous.files.html import html_table

__all__ = [
    "LabelScore",
    "MultiLabelScores",
    "average_precisions",
    "check_label_sets",
    "evaluate_labels",
    "mean_average_precision",
]


class LabelScore(NamedTuple):
    """Scores of one label."""

    ap: float | None  # average precision, which needs no threshold; None if no image has the label
    precision: float  # share of the images given the label that have it; 0 if there is none
    recall: float  # share of the images with the label that are given it; 0 if there is none
    f1: float  # harmonic mean of the two; 0 if both are 0
    support: int  # number of images with the label
    predicted: int  # number of images given the label


@dataclass(frozen=True, eq=False)
class MultiLabelScores:
    """Scores of one set of images.

    Macro scores are the mean over all labels, as in scikit-learn and torchmetrics (`average="macro"`, zero_division=0).
    Micro scores count all pairs of image and label alike.
    """

    n: int  # number of images (N)
    log_loss: float  # binary cross-entropy, mean over images and labels, in nats
    mean_ap: float  # mAP: average precision, mean over the labels that an image has; 0 if there is none
    macro_precision: float
    macro_recall: float
    macro_f1: float
    micro_precision: float
    micro_recall: float
    micro_f1: float
    subset_accuracy: float  # share of images whose labels are all right
    hamming_loss: float  # share of wrong pairs of image and label
    mean_labels: float  # labels that an image has, mean
    per_label: tuple[LabelScore, ...]  # in the order of the logits

    def summary(self) -> dict[str, float]:
        """Return the scalar scores by field name, without `n`."""
        return {name: value for name, value in vars(self).items() if name not in ("n", "per_label", "mean_labels")}

    @property
    def headline(self) -> tuple[str, float]:
        """Name and value of the main score."""
        return "mAP", self.mean_ap

    def describe(self) -> str:
        """Return the main scores as one line."""
        return (
            f"mAP {100 * self.mean_ap:.1f} %, macro F1 {self.macro_f1:.2f}, micro F1 {self.micro_f1:.2f}, "
            f"log loss {self.log_loss:.2f}"
        )

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:.4f}") for name, value in self.summary().items()]
        return html_table(f"{self.n:,} images", rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return asdict(self) | {"per_label": [each._asdict() for each in self.per_label]}


def check_label_sets(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check predictions, and return logits as float64 and labels as bool, both (N, K) on the CPU.

    Raises:
        DataError: If the shapes do not match, there is no image, or a label is neither 0 nor 1.
        NonFiniteError: If a logit is NaN or infinite.
    """
    if logits.ndim != 2 or logits.shape != labels.shape:
        raise DataError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} do not match: both must be (N, K)"
        )
    if not logits.numel():
        raise DataError(f"there is nothing to score: {len(logits)} images, {logits.shape[1]} labels")
    logits, labels = logits.detach().cpu().double(), labels.detach().cpu()
    if not ((labels == 0) | (labels == 1)).all():
        raise DataError("labels must be 0 or 1 for each image and label")
    if invalid := int((~logits.isfinite()).any(dim=1).sum()):
        raise NonFiniteError(
            f"the model's output is NaN or infinite for {invalid} of {len(logits)} images: its weights are corrupt"
        )
    return logits, labels.bool()


def evaluate_labels(
    logits: Tensor, labels: Tensor, present: Tensor | None = None, *, ranked: Tensor | None = None
) -> MultiLabelScores:
    """Score calibrated logits and true labels, both (N, K), in float64.

    ``present``, bool (N, K), are the labels that are given; None gives those with a probability of at least 0.5. The
    average precision is that of ``ranked``, (N, K), where the images are calibrated in parts whose values do not
    compare; None takes the logits.
    """
    logits, true = check_label_sets(logits, labels)
    given = (logits.sigmoid() >= 0.5 if present is None else present.cpu().bool()).numpy()
    has = true.numpy()
    hits, support, predicted = (has & given).sum(0), has.sum(0), given.sum(0)  # K each
    precision, recall, f1 = counted_shares(hits, support, predicted)
    aps = average_precisions((logits if ranked is None else ranked.double().cpu()).numpy(), has)
    micro = counted_shares(*(each.sum(keepdims=True) for each in (hits, support, predicted)))
    return MultiLabelScores(
        n=len(has),
        log_loss=float(F.binary_cross_entropy_with_logits(logits, true.double())),
        mean_ap=_mean(aps),
        macro_precision=float(precision.mean()),
        macro_recall=float(recall.mean()),
        macro_f1=float(f1.mean()),
        micro_precision=float(micro[0][0]),
        micro_recall=float(micro[1][0]),
        micro_f1=float(micro[2][0]),
        subset_accuracy=float((has == given).all(axis=1).mean()),
        hamming_loss=float((has != given).mean()),
        mean_labels=float(has.sum(axis=1).mean()),
        per_label=tuple(
            LabelScore(ap, float(p), float(r), float(f), int(s), int(g))
            for ap, p, r, f, s, g in zip(aps, precision, recall, f1, support, predicted, strict=True)
        ),
    )


def average_precisions(values: npt.NDArray[Any], has: npt.NDArray[Any]) -> list[float | None]:
    """Return the average precision of each label from values and labels (N, K); None where no image has the label."""
    from sklearn.metrics import average_precision_score  # slow to import: only where it is used

    found = np.asarray(has.any(axis=0))
    return [float(average_precision_score(has[:, k], values[:, k])) if found[k] else None for k in range(has.shape[1])]


def mean_average_precision(values: npt.NDArray[Any], has: npt.NDArray[Any]) -> float:
    """Return mAP of values and labels (N, K): the mean over the labels that an image has, 0 if there is none."""
    return _mean(average_precisions(values, has))


def _mean(aps: Sequence[float | None]) -> float:
    found = [each for each in aps if each is not None]
    return float(np.mean(found)) if found else 0.0
