"""Which images to label next, by typicality, coverage or uncertainty: pure functions on features and probabilities.

Each returns the numbers of the chosen images among the candidates, best first, with their scores.

Shapes: n images, L of them labelled, F features, k clusters, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Choice", "by_coverage", "by_margin", "by_thresholds", "by_typicality", "k_means", "typicality"]

Floats = npt.NDArray[np.float32]
Choice = list[tuple[int, float]]
"""The chosen images, in order, each with its score."""

_MOST_CLUSTERS = 500  # of the published code of TypiClust, as the two numbers below
_SMALL = 5  # a cluster of at most so many images is asked last
_NEIGHBOURS = 20
_LEAST_DISTANCE = 1e-3  # between features of length 1; float32 tells smaller ones from 0 no longer
_ITERATIONS = 50
_POOL = 5  # uncertain images per chosen one, among which those that differ are chosen
_ROWS = 4096  # of a matrix of distances at once


def by_typicality(candidates: Floats, labelled: Floats, count: int, seed: int = 0) -> Choice:
    """Choose the most typical image of each cluster, as TypiClust (arXiv 2202.02794); best for few labels.

    There are as many clusters as labelled and chosen images together, at most 500. Those without a labelled image come
    first, then the larger ones.

    Args:
        candidates: Features, (n, F), with n of at least ``count``.
        labelled: Features of the labelled images, (L, F).
        count: Number of images to choose.
        seed: Of the first centres.

    Returns:
        The chosen images with their typicality.
    """
    x, known = _unit(np.concatenate((labelled, candidates))), len(labelled)
    clusters = k_means(x, min(known + count, _MOST_CLUSTERS), seed)
    sizes = np.bincount(clusters)
    covered = np.bincount(clusters[:known], minlength=len(sizes))
    members = {int(c): known + np.flatnonzero(clusters[known:] == c) for c in np.unique(clusters[known:])}
    order = sorted(members, key=lambda c: (covered[c], -sizes[c], c))
    found: Choice = []
    for is_small in (False, True):
        group = [cluster for cluster in order if (sizes[cluster] <= _SMALL) == is_small]
        while group and len(found) < count:
            for cluster in group[: count - len(found)]:
                values = typicality(x[members[cluster]])
                best = int(values.argmax())
                found.append((int(members[cluster][best]) - known, float(values[best])))
                members[cluster] = np.delete(members[cluster], best)
            group = [cluster for cluster in group if len(members[cluster])]
    return found


def by_coverage(candidates: Floats, labelled: Floats, count: int) -> Choice:
    """Choose greedily the image that is farthest from all labelled and chosen ones: core-set, arXiv 1708.00489.

    Arguments as :func:`by_typicality`. Without labelled images, the one nearest to the mean is the first.

    Returns:
        The chosen images with their distance to the nearest one before them; NaN for one that has none before it.
    """
    x, centres = _unit(candidates), _unit(labelled)
    nearest = _nearest(x, centres)
    found: Choice = []
    if not len(centres):
        first = int(_squared(x, x.mean(0, keepdims=True)).argmin())
        found.append((first, math.nan))
        nearest = _squared(x, x[first : first + 1])[:, 0]
        nearest[first] = -1.0
    while len(found) < count:
        best = int(nearest.argmax())
        found.append((best, math.sqrt(nearest[best])))
        nearest = np.minimum(nearest, _squared(x, x[best : best + 1])[:, 0])
        nearest[best] = -1.0  # below the distance of any other, also of a copy
    return found


def by_margin(probabilities: Floats, count: int, seed: int = 0) -> Choice:
    """Choose images whose two most probable classes are close, and that differ in their probabilities.

    Of the five times as many images with the smallest margins, the smallest margin of each cluster is chosen in turn,
    so that one confusion of the model does not fill the choice.

    Args:
        probabilities: Calibrated, (n, K), of at least two classes.
        count: Number of images to choose, at most n.
        seed: Of the first centres.

    Returns:
        The chosen images with their margin in [0, 1], the smallest first.
    """
    top = np.partition(probabilities, -2, axis=1)
    return _least(top[:, -1] - top[:, -2], probabilities, count, seed)


def by_thresholds(probabilities: Floats, thresholds: Floats, count: int, seed: int = 0) -> Choice:
    """Choose images with a label whose probability is close to its threshold, and that differ in their probabilities.

    As :func:`by_margin`, where an image may have several labels: its margin is that of the label nearest to being
    decided the other way, as a share of the range on its side of the threshold. So a rare label, whose threshold is
    low, is not uncertain in every image.

    Args:
        probabilities: Calibrated, of each label, (n, K).
        thresholds: From which on an image has the label, (K,).
        count: Number of images to choose, at most n.
        seed: Of the first centres.

    Returns:
        The chosen images with their margin in [0, 1], the smallest first.
    """
    above = probabilities >= thresholds
    gaps = np.abs(probabilities - thresholds) / np.where(above, 1 - thresholds, thresholds).clip(min=1e-9)
    return _least(gaps.min(axis=1), probabilities, count, seed)


def _least(margins: Floats, probabilities: Floats, count: int, seed: int) -> Choice:
    """Choose the smallest margins (n,) of each cluster in turn, among five times as many images as are chosen."""
    pool = np.argsort(margins, kind="stable")[: _POOL * count]
    clusters = k_means(probabilities[pool], min(count, _MOST_CLUSTERS), seed)
    turn, seen = np.zeros(len(pool), np.int64), np.zeros(len(pool), np.int64)
    for n, cluster in enumerate(clusters):  # the pool is in the order of margins
        turn[n] = seen[cluster]
        seen[cluster] += 1
    chosen = np.sort(np.argsort(turn, kind="stable")[:count])
    return [(int(n), float(margins[n])) for n in pool[chosen]]


def typicality(x: Floats) -> npt.NDArray[np.float64]:
    """Return the inverse mean distance of each image to its nearest neighbours, (n,); 0 for one without any.

    They are the 20 nearest of the features (n, F), or half of all if these are fewer. It is at most 1,000, that of an
    image whose neighbours all have its features.
    """
    count = min(_NEIGHBOURS, max(len(x) // 2, 1), len(x) - 1)
    if count < 1:
        return np.zeros(len(x))
    means = []
    for start in range(0, len(x), _ROWS):
        squared = _squared(x[start : start + _ROWS], x)
        squared[np.arange(len(squared)), start + np.arange(len(squared))] = np.inf  # not the image itself
        means.append(np.sqrt(np.partition(squared, count - 1, axis=1)[:, :count].astype(np.float64)).mean(1))
    return 1 / np.maximum(np.concatenate(means), _LEAST_DISTANCE)


def k_means(x: Floats, k: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the cluster of each row of x, (n, F), by Lloyd's algorithm from the centres of k-means++.

    Clusters are numbered from 0. There are at most k, and no more than distinct rows.
    """
    centres = _first_centres(x, k, np.random.default_rng(seed))
    clusters = _assign(x, centres)
    for _ in range(_ITERATIONS):
        order = np.argsort(clusters, kind="stable")
        filled, starts = np.unique(clusters[order], return_index=True)
        sums = np.add.reduceat(x[order], starts, axis=0)
        centres[filled] = sums / np.bincount(clusters)[filled][:, None]
        before, clusters = clusters, _assign(x, centres)
        if np.array_equal(before, clusters):
            break
    return clusters


def _first_centres(x: Floats, k: int, draws: np.random.Generator) -> Floats:
    """Draw rows, each with a chance in proportion to its squared distance to those before it."""
    chosen = [int(draws.integers(len(x)))]
    nearest = _squared(x, x[chosen])[:, 0]
    nearest[chosen] = 0.0
    while len(chosen) < k:
        total = np.cumsum(nearest, dtype=np.float64)
        if total[-1] <= 0:
            break
        chosen.append(min(int(np.searchsorted(total, draws.random() * total[-1], side="right")), len(x) - 1))
        nearest = np.minimum(nearest, _squared(x, x[chosen[-1:]])[:, 0])
        nearest[chosen] = 0.0
    return x[chosen].copy()


def _nearest(x: Floats, centres: Floats) -> Floats:
    """Return the squared distance of each row to the nearest centre, (n,); infinity without centres."""
    nearest = np.full(len(x), np.inf, np.float32)
    for first in range(0, len(x), _ROWS):
        rows = slice(first, first + _ROWS)
        for start in range(0, len(centres), _ROWS):
            nearest[rows] = np.minimum(nearest[rows], _squared(x[rows], centres[start : start + _ROWS]).min(1))
    return nearest


def _assign(x: Floats, centres: Floats) -> npt.NDArray[np.int64]:
    """Return the nearest centre of each row."""
    parts: Sequence[npt.NDArray[np.int64]] = [
        _squared(x[start : start + _ROWS], centres).argmin(1) for start in range(0, len(x), _ROWS)
    ]
    return np.concatenate(parts)


def _squared(a: Floats, b: Floats) -> Floats:
    """Return the squared distances of the rows of a to those of b."""
    distances: Floats = (a * a).sum(1)[:, None] - 2 * (a @ b.T) + (b * b).sum(1)[None]
    return np.maximum(distances, 0)


def _unit(x: Floats) -> Floats:
    """Scale rows to length 1."""
    scaled: Floats = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return scaled
