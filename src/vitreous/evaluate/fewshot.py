"""The paper's few-shot evaluation: least squares from a few frozen features to {-1, 1}^K, in closed form.

Dosovitskiy et al. 2020 (arXiv 2010.11929), section 4.1. What the paper leaves open is as in big_vision's evaluator
`fewshot_lsr`: the draw of the shots, the bias as a large constant feature, what whitening is, and its fixed strength.

n pictures, D features, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vitreous.errors import ConfigError
from vitreous.evaluate.labelled import Labelled, accuracy

__all__ = ["STRENGTHS", "FewShot", "LeastSquares", "probe_few_shot"]

STRENGTHS: tuple[float, ...] = tuple(2.0**power for power in range(-10, 21, 2))
"""The swept values of l2."""

_UNSWEPT = 2.0**10  # what big_vision uses for all
_BIAS = 100.0  # so large that its weight is next to unregularised
_CHOOSERS = 5_000  # pictures a seed that choose l2, at most

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FewShot:
    """Accuracy from a number of pictures per class.

    Attributes:
        shots: Pictures per class that were asked for.
        l2: The strength of the regularisation, added to the diagonal of the features' second moments (a sum).
        chosen_on: What chose it: ``the rest of train``, ``nothing`` where train is all shots, or ``given``.
        accuracy: By split, top-1 in [0, 1] for each seed.
        short: Classes that have fewer pictures than shots; all of theirs are used.
    """

    shots: int
    l2: float
    chosen_on: str
    accuracy: dict[str, tuple[float, ...]]
    short: int

    def mean(self, split: str) -> float:
        """Return the mean over the seeds, in [0, 1]."""
        return float(np.mean(self.accuracy[split]))

    def spread(self, split: str) -> float | None:
        """Return the sample standard deviation over the seeds; None with one seed."""
        values = self.accuracy[split]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


class LeastSquares:
    """Minimises |X w - T|^2 + l2 |w|^2 for any l2 from one eigendecomposition; T is 1 for the class and -1 elsewhere.

    X has a constant feature of 100 for the bias, so that its weight is next to unregularised.

    Args:
        train: The shots.
        classes: K, above every label.
        whiten: Standardise each feature by its mean and deviation over the shots, as big_vision does and calls it.
    """

    def __init__(self, train: Labelled, classes: int, whiten: bool = False) -> None:
        x = train.features.astype(np.float64)
        self._mean: Floats = x.mean(axis=0) if whiten else np.zeros(1)
        self._std: Floats = x.std(axis=0) + 1e-5 if whiten else np.ones(1)
        x = self._extended(x)  # (n, D + 1)
        targets = np.full((len(x), classes), -1.0)
        targets[np.arange(len(x)), train.labels] = 1.0
        if len(x) >= x.shape[1]:  # w = (X'X + l2)^-1 X'T
            eigenvalues, q = np.linalg.eigh(x.T @ x)
            self._left, self._right = q, q.T @ (x.T @ targets)
        else:  # the same as X' (XX' + l2)^-1 T, smaller here
            eigenvalues, q = np.linalg.eigh(x @ x.T)
            self._left, self._right = x.T @ q, q.T @ targets
        self._eigenvalues = eigenvalues.clip(min=0)

    def weights(self, l2: float) -> Floats:
        """Return the solution (D + 1, K); the last row is the weight of the constant feature."""
        solution: Floats = self._left / (self._eigenvalues + l2) @ self._right
        return solution

    def predict(self, features: npt.NDArray[np.float32], l2: Sequence[float]) -> list[npt.NDArray[np.int64]]:
        """Return the predicted classes (n,) for each l2."""
        projected = self._extended(features) @ self._left  # (n, rank): shared by all l2
        return [((projected / (self._eigenvalues + each)) @ self._right).argmax(axis=1) for each in l2]

    def _extended(self, features: npt.NDArray[np.floating]) -> Floats:
        """Whiten, and add the constant feature: (n, D + 1)."""
        return np.pad((features - self._mean) / self._std, ((0, 0), (0, 1)), constant_values=_BIAS)


class _Draw(NamedTuple):
    """One seed's solver, and how many of the pictures that choose it gets right, by l2."""

    solver: LeastSquares
    chosen_by: Floats


def probe_few_shot(
    train: Labelled,
    scored: Mapping[str, Labelled],
    classes: int,
    *,
    shots: Sequence[int] = (1, 5, 10, 25),
    seeds: int = 5,
    whiten: bool = False,
    l2: float | None = None,
    step: Callable[[], None] = lambda: None,
) -> tuple[FewShot, ...]:
    """Draw pictures of each class, solve, and score on whole splits.

    With l2 to be chosen, one is for each number of shots: the best on average over the seeds on training pictures that
    are not among the shots, at most 5,000 a seed. Scored pictures never choose.

    Args:
        train: Where the shots come from.
        scored: Splits to score, by name.
        classes: K, above every label.
        shots: Pictures per class. The shots of a seed contain its fewer shots.
        seeds: Draws, with seeds 0, 1, ...
        whiten: As :class:`LeastSquares`.
        l2: Fixed strength above 0, such as big_vision's 1024; None sweeps :data:`STRENGTHS`.
        step: Called after each number of shots.

    Raises:
        ConfigError: If a number is out of its range.
    """
    if seeds < 1 or any(each < 1 for each in shots):
        raise ConfigError(f"shots are {', '.join(map(str, shots))} and seeds {seeds}: each must be at least 1")
    if l2 is not None and not 0 < l2 < math.inf:
        raise ConfigError(f"l2 is {l2}, it must be a number above 0")
    candidates = STRENGTHS if l2 is None else (l2,)
    order = [_order(train.labels, seed) for seed in range(seeds)]  # (row of train, its rank in its class)
    counts = np.bincount(train.labels)
    results = []
    for each in sorted(set(shots)):
        draws = [
            _draw(train, rows[ranks < each], rows[ranks >= each], classes=classes, whiten=whiten, candidates=candidates)
            for rows, ranks in order
        ]
        totals = np.sum([draw.chosen_by for draw in draws], axis=0)  # (candidates,)
        can_choose = l2 is None and bool((counts > each).any())
        fallback = _UNSWEPT if l2 is None else l2
        # Of equals the strongest, which is the last.
        best = candidates[len(totals) - 1 - int(totals[::-1].argmax())] if can_choose else fallback
        scores = {
            name: tuple(accuracy(draw.solver.predict(data.features, [best])[0], data.labels) for draw in draws)
            for name, data in scored.items()
        }
        how = "given" if l2 is not None else "the rest of train" if can_choose else "nothing"
        results.append(FewShot(each, best, how, scores, int(((counts > 0) & (counts < each)).sum())))
        step()
    return tuple(results)


def _order(labels: npt.NDArray[np.int64], seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return rows of train in a random order, and the rank of each among its class in that order, from 0."""
    rows = np.random.default_rng(seed).permutation(len(labels))
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    starts = np.searchsorted(labels[by_class], np.arange(labels.max() + 1))
    ranks = np.empty(len(labels), np.int64)
    ranks[by_class] = np.arange(len(labels)) - starts[labels[by_class]]
    return rows, ranks[rows]


def _draw(
    train: Labelled,
    shots: npt.NDArray[np.int64],
    rest: npt.NDArray[np.int64],
    *,
    classes: int,
    whiten: bool,
    candidates: Sequence[float],
) -> _Draw:
    """Solve for one seed's shots, and let other rows of train judge each l2."""
    solver = LeastSquares(train.chosen(shots), classes, whiten)
    if len(candidates) == 1 or not len(rest):
        return _Draw(solver, np.zeros(len(candidates)))
    choosers = train.chosen(rest[:_CHOOSERS])
    predictions = solver.predict(choosers.features, candidates)
    return _Draw(solver, np.asarray([accuracy(each, choosers.labels) for each in predictions]))
