"""Suspected label errors by confident learning (arXiv 1911.00068), from out-of-sample probabilities.

n images, D features, K classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

from vitreous.errors import DataError, MissingExtraError
from vitreous.evaluate.features.labelled import labelled
from vitreous.evaluate.features.logistic import fit_path

__all__ = ["FOLDS", "Suspect", "cross_validated", "require_cleanlab", "suspects"]

FOLDS = 5
"""Number of cross-validation folds."""

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Values of C in the sweep; the log loss on the first fold chooses."""

_MIN_PROBABILITY = 1e-12  # for a class without fitted images

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Suspect:
    """An image whose label looks wrong."""

    position: int  # index of the image
    likely: int  # the most probable other class
    own: float  # probability of its label, in [0, 1]
    other: float  # probability of the other class, in [0, 1]


def require_cleanlab() -> None:
    """Raise MissingExtraError if cleanlab is not installed."""
    _import_cleanlab()


def cross_validated(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    groups: Sequence[int],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Floats, float]:
    """Compute out-of-sample probabilities by logistic regression on frozen features.

    The images are split into FOLDS folds, stratified by class; each class needs images in two. The probabilities of a
    fold come from a classifier fitted on the other folds. Copies share a group, and so a fold, because they would leak
    the label. Returns the probabilities (n, K) and the chosen C.

    Labels (n, K) of 0 and 1 are several of an image, each with a probability of its own; the folds are not stratified.
    """
    data = labelled(features, labels, "image")
    classes = data.labels.shape[1] if data.several else int(data.labels.max()) + 1
    if classes < 2 and not data.several:
        raise DataError("finding label errors needs at least two classes")
    folds = _assign_folds(data.labels, groups, seed)
    probabilities = np.zeros((len(data.labels), classes))
    best = 0.0
    for fold in range(FOLDS):
        held_out, fitted = np.flatnonzero(folds == fold), data.subset(np.flatnonzero(folds != fold))
        if not len(held_out):
            continue
        tried = []
        for model in fit_path(fitted, classes, [best] if best else STRENGTHS):
            logits, true = model.logits(data.features[held_out]), data.labels[held_out]
            predicted = expit(logits) if data.several else softmax(logits, axis=1)
            own = np.abs(predicted - (1 - true)) if data.several else predicted[np.arange(len(held_out)), true]
            tried.append((-float(np.log(np.maximum(own, _MIN_PROBABILITY)).mean()), model.strength, predicted))
        _, best, probabilities[held_out] = min(tried, key=lambda each: each[0])
        progress(fold + 1, FOLDS)
    return probabilities, best


def suspects(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> list[Suspect]:
    """Find the labels that look wrong, the least plausible first.

    The confident joint estimates how many images of each class belong to each other class. That many are suspected,
    those with the largest margin between the two probabilities ("prune by noise rate" in the paper, and the default of
    cleanlab). They are ranked by the margin between the likely class and their label. The probabilities (n, K) must be
    of models that did not see the labels (n,); each class needs an image.
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, np.int64)
    p = np.maximum(p, _MIN_PROBABILITY)
    p /= p.sum(axis=1, keepdims=True)
    find_label_issues = _import_cleanlab()
    with warnings.catch_warnings(action="ignore"):  # it warns that it flags none of very small classes
        ranked = find_label_issues(
            y, p, filter_by="prune_by_noise_rate", return_indices_ranked_by="normalized_margin", n_jobs=1
        )
    found = []
    for n in np.asarray(ranked, np.int64).tolist():
        likely = int(np.where(np.arange(p.shape[1]) == y[n], 0, p[n]).argmax())
        found.append(Suspect(n, likely, own=float(p[n, y[n]]), other=float(p[n, likely])))
    return found


def _assign_folds(labels: Ints, groups: Sequence[int], seed: int) -> Ints:
    """Return the fold (n,) of each image: shuffled groups, sorted by class if there is one, take the folds in turn."""
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    order = np.random.default_rng(seed).permutation(np.sort(first))
    if labels.ndim == 1:
        order = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(len(first), np.int64)
    folds[group_of[order]] = np.arange(len(order)) % FOLDS
    return folds[group_of]


def _import_cleanlab() -> Callable[..., Any]:
    try:
        from cleanlab.filter import find_label_issues
    except ImportError as error:
        text = "suspected label errors need cleanlab: pip install 'vitreous[labels]', or leave out --model"
        raise MissingExtraError(text) from error
    return find_label_issues  # type: ignore[no-any-return,unused-ignore]
