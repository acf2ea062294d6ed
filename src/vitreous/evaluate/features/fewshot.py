"""The paper's few-shot evaluation: regularised least squares from a few frozen features to {-1, 1}^K, in closed form.

Dosovitskiy et al. 2020 (arXiv 2010.11929), section 4.1. What the paper leaves open follows big_vision's evaluator
`fewshot_lsr`: how shots are drawn, the bias as a large constant feature, whitening, and the fixed l2.

n images, D features, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vitreous.errors import ConfigError
from vitreous.evaluate.features.labelled import Labelled, accuracy

__all__ = ["STRENGTHS", "FewShot", "LeastSquares", "probe_few_shot"]

STRENGTHS: tuple[float, ...] = tuple(2.0**power for power in range(-10, 21, 2))
"""Values of l2 in the sweep."""

_DEFAULT_L2 = 2.0**10  # the fixed value of big_vision
_BIAS = 100.0  # so large that its weight is almost unregularised
_MAX_CHOOSERS = 5_000  # images per seed that choose l2

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FewShot:
    """Accuracy from a number of images per class."""

    shots: int  # requested images per class
    l2: float  # regularisation strength, added to the diagonal of the sum of the features' outer products
    chosen_on: str  # images that chose it: `the rest of train`, `nothing` if all of train are shots, or `given`
    accuracy: dict[str, tuple[float, ...]]  # by split, top-1 in [0, 1] for each seed
    short: int  # number of classes with fewer images than shots, all of which are used

    def mean(self, split: str) -> float:
        """Return the mean over the seeds, in [0, 1]."""
        return float(np.mean(self.accuracy[split]))

    def spread(self, split: str) -> float | None:
        """Return the sample standard deviation over the seeds; None with one seed."""
        values = self.accuracy[split]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


class LeastSquares:
    """Minimises ``|X w - T|^2 + l2 |w|^2`` for any l2 from one eigendecomposition; T is 1 for the class, else -1.

    `whiten` (the name is big_vision's) standardises each feature by its mean and standard deviation over the shots.
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
        else:  # the equivalent X' (XX' + l2)^-1 T is smaller
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
    """Draw images of each class with seeds 0, 1, ..., fit, and score on whole splits.

    For one seed, larger draws contain the smaller ones. If l2 is None, it is chosen from :data:`STRENGTHS` for each
    number of shots: the best on average over the seeds, on at most 5,000 training images per seed that are not among
    the shots. Scored images never choose.
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
        solvers = [LeastSquares(train.subset(rows[ranks < each]), classes, whiten) for rows, ranks in order]
        totals = np.zeros(len(candidates))
        for solver, (rows, ranks) in zip(solvers, order, strict=True):
            choosers = train.subset(rows[ranks >= each][:_MAX_CHOOSERS])
            if len(candidates) > 1 and len(choosers.labels):
                predictions = solver.predict(choosers.features, candidates)
                totals += [accuracy(predicted, choosers.labels) for predicted in predictions]
        can_choose = l2 is None and bool((counts > each).any())
        fallback = _DEFAULT_L2 if l2 is None else l2
        # The last of equals: the strongest regularisation.
        best = candidates[len(totals) - 1 - int(totals[::-1].argmax())] if can_choose else fallback
        scores = {
            name: tuple(accuracy(solver.predict(data.features, [best])[0], data.labels) for solver in solvers)
            for name, data in scored.items()
        }
        how = "given" if l2 is not None else "the rest of train" if can_choose else "nothing"
        results.append(FewShot(each, best, how, scores, int(((counts > 0) & (counts < each)).sum())))
        step()
    return tuple(results)


def _order(labels: npt.NDArray[np.int64], seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows of train in random order, and the rank of each within its class, from 0."""
    rows = np.random.default_rng(seed).permutation(len(labels))
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    starts = np.searchsorted(labels[by_class], np.arange(labels.max() + 1))
    ranks = np.empty(len(labels), np.int64)
    ranks[by_class] = np.arange(len(labels)) - starts[labels[by_class]]
    return rows, ranks[rows]
