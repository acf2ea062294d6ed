"""Labels that look wrong: confident learning (arXiv 1911.00068) on probabilities of models that did not see the label.

n pictures, D features, K classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.errors import DataError, MissingExtraError
from vitreous.evaluate.labelled import labelled
from vitreous.evaluate.logistic import fit_path

__all__ = ["FOLDS", "Suspect", "cross_validated", "require_cleanlab", "suspects"]

FOLDS = 5
"""Parts of the pictures, each judged by a classifier that was fitted on the others."""

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Values of C to choose from, by the log loss on the first part."""

_LEAST = 1e-12  # probability of a class that the fitted pictures do not have

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A picture whose label looks wrong.

    Attributes:
        position: Among those that were judged.
        likely: The most probable other class.
        own: Probability of the label that it has, in [0, 1].
        other: Probability of the likely class, in [0, 1].
    """

    position: int
    likely: int
    own: float
    other: float


def require_cleanlab() -> None:
    """Check, before any work is done, that cleanlab is there.

    Raises:
        MissingExtraError: If it is not installed.
    """
    _issues()


def cross_validated(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    groups: Sequence[int],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Floats, float]:
    """Compute out-of-sample probabilities by logistic regression on frozen features.

    The pictures are dealt into FOLDS parts, the classes spread evenly; each part's probabilities are those of a
    classifier that was fitted on the others. Copies, which would give the label away, go to one part.

    Args:
        features: (n, D).
        labels: (n,) classes from 0 to K - 1; each class needs pictures in two parts.
        groups: (n,) a number per picture, the same for those that show the same.
        seed: Of the deal.
        progress: Called with (done, total) fits.

    Returns:
        Probabilities (n, K), and the C that was chosen.

    Raises:
        DataError: If there are fewer than two classes, or a class is in one part only.
    """
    data = labelled(features, labels, "the pictures'")
    classes = int(data.labels.max()) + 1
    if classes < 2:
        raise DataError("label errors need at least two classes to be told apart")
    parts = _parts(data.labels, groups, seed)
    probabilities = np.zeros((len(data.labels), classes))
    best = 0.0
    for part in range(FOLDS):
        held, fitted = np.flatnonzero(parts == part), data.chosen(np.flatnonzero(parts != part))
        if not len(held):
            continue
        tried = []
        for model in fit_path(fitted, classes, [best] if best else STRENGTHS):
            found = _softmax(model.logits(data.features[held]))
            own = found[np.arange(len(held)), data.labels[held]]
            tried.append((-float(np.log(np.maximum(own, _LEAST)).mean()), model.strength, found))
        _, best, probabilities[held] = min(tried, key=lambda each: each[0])
        progress(part + 1, FOLDS)
    return probabilities, best


def suspects(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> list[Suspect]:
    """Find the labels that look wrong, the least plausible first.

    How many pictures of each class belong to each other one is estimated by the confident joint; so many are suspected,
    those with the largest margin between the two probabilities ("prune by noise rate" in the paper, and what cleanlab
    does by default). They are ranked by the margin between the likely class and their own.

    Args:
        probabilities: (n, K), of models that did not see the labels.
        labels: (n,) classes from 0 to K - 1, each with at least one picture.

    Raises:
        MissingExtraError: If cleanlab is not installed.
    """
    p, given = np.asarray(probabilities, np.float64), np.asarray(labels, np.int64)
    p = np.maximum(p, _LEAST)
    p /= p.sum(axis=1, keepdims=True)
    find_label_issues = _issues()
    with warnings.catch_warnings(action="ignore"):  # it says that of very small classes it flags none
        ranked = find_label_issues(
            given, p, filter_by="prune_by_noise_rate", return_indices_ranked_by="normalized_margin", n_jobs=1
        )
    found = []
    for position in np.asarray(ranked, np.int64).tolist():
        others = p[position].copy()
        own = others[given[position]]
        others[given[position]] = 0
        found.append(Suspect(position, int(others.argmax()), float(own), float(others.max())))
    return found


def _parts(labels: Ints, groups: Sequence[int], seed: int) -> Ints:
    """The part (n,) of each picture: groups are dealt in turn, those of one class after each other."""
    first: dict[int, int] = {}
    for position, group in enumerate(groups):
        first.setdefault(group, position)
    order = np.random.default_rng(seed).permutation(np.fromiter(first.values(), np.int64))
    order = order[np.argsort(labels[order], kind="stable")]
    dealt = {groups[position]: turn % FOLDS for turn, position in enumerate(order.tolist())}
    return np.asarray([dealt[group] for group in groups], np.int64)


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _issues() -> Callable[..., Any]:
    """The function of cleanlab that finds label issues."""
    try:
        from cleanlab.filter import find_label_issues
    except ImportError as error:
        raise MissingExtraError(
            "suspected label errors need cleanlab: pip install 'vitreous[labels]', or leave out --model"
        ) from error
    return find_label_issues  # type: ignore[no-any-return,unused-ignore]
