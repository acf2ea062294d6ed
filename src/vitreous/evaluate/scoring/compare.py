"""Two models on the same images: McNemar's test, and interval and test of the difference of every headline score.

N images, K classes, R resamples. Model A minus model B, throughout.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vitreous.errors import DataError
from vitreous.evaluate.scoring.intervals import (
    Images,
    Interval,
    block_sizes,
    check_share,
    image_order,
    quantiles,
    resample,
    tabulate,
    weighted_scores,
)
from vitreous.evaluate.scoring.metrics import check_predictions

__all__ = ["Difference", "McNemar", "compare", "mcnemar"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of equal accuracy on the same images."""

    only_a: int  # images that only model A classifies correctly
    only_b: int  # images that only model B classifies correctly
    p_value: float  # two-sided mid-p value, in (0, 1]


@dataclass(frozen=True)
class Difference:
    """The difference of one score, A minus B."""

    difference: Interval
    p_value: float  # two-sided, of random swaps between the models, in (0, 1]


def mcnemar(correct_a: npt.ArrayLike, correct_b: npt.ArrayLike) -> McNemar:
    """Test whether two models are equally accurate, from which images (N,) each classifies correctly.

    Only images on which one model is right count: if the models are equally accurate, the number that A wins is
    binomial with a chance of 1/2. The mid-p value counts half of the probability of the observed split. The exact test
    counts all of it and gives fewer false alarms than its level, the mid-p test close to its level (Fagerland et al.
    2013); it needs no separate rule for few images.
    """
    a, b = np.asarray(correct_a), np.asarray(correct_b)
    if a.ndim != 1 or a.shape != b.shape or a.dtype != np.bool_ or b.dtype != np.bool_:
        raise DataError(
            f"correct predictions are {a.dtype} {a.shape} and {b.dtype} {b.shape}: both must be bool (N,), of the same "
            "images in the same order"
        )
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    n, fewer = only_a + only_b, min(only_a, only_b)
    from scipy.stats import binom  # slow to import: only where it is used

    return McNemar(only_a, only_b, min(1.0, float(2 * binom.cdf(fewer, n, 0.5) - binom.pmf(fewer, n, 0.5))))


def compare(
    logits_a: Tensor, logits_b: Tensor, labels: Tensor, *, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> dict[str, Difference]:
    """Compare the scores of :func:`~vitreous.evaluate.scoring.intervals.bootstrap` of two models' logits (N, K).

    The interval is the percentile interval of a paired bootstrap: both models are scored on the same resamples, drawn
    within the classes. The p-value is that of an approximate randomisation test (Noreen 1989, "Computer-Intensive
    Methods for Testing Hypotheses", chapter 2): if the models are equally good, the predictions of an image may change
    sides, so each swap of random images gives a difference from the distribution of the observed one. It is twice the
    share of R swaps whose difference is further out, of which equal ones count half, as in the mid-p test; it is at
    least 1 / (R + 1). For top-1 it estimates the p-value of :func:`mcnemar`. Resamples of a few images on which the
    models differ would reject too often: 4 to 0 images give a p-value of 0.02 instead of 0.06.

    Resamples and swaps are drawn by a generator that depends on `seed`, the labels and the predictions.
    """
    check_share("level", level)
    if resamples < 1:
        raise DataError(f"resamples is {resamples}, it must be at least 1")
    if logits_a.shape != logits_b.shape:
        raise DataError(
            f"logits are {tuple(logits_a.shape)} and {tuple(logits_b.shape)}: both models must score the same images "
            "and classes"
        )
    checked = [check_predictions(logits, labels) for logits in (logits_a, logits_b)]
    tables = [tabulate(*pair) for pair in checked]
    order = image_order(*tables)
    # Images are sorted by what is compared, so with the same draws for all data the error of few resamples would favour
    # the same p-values in every comparison. Labels and predictions do not change with the rounding of logits.
    for column in (tables[0].labels, tables[0].predicted, tables[1].predicted):
        seed = zlib.crc32(column[order].astype("<i8").tobytes(), seed & 0xFFFFFFFF)
    scored = [resample(images.take(order), resamples, seed) for images in tables]
    swapped = _swapped(tables[0].take(order), tables[1].take(order), resamples, seed + 1)
    edges = [(1 - level) / 2, (1 + level) / 2]
    found = {}
    for name, values in scored[0].resampled.items():
        low, high = quantiles(values - scored[1].resampled[name], edges)
        observed = scored[0].values[name] - scored[1].values[name]
        beyond = swapped[name] - observed
        beyond[np.abs(beyond) < 1e-12] = 0  # sums of the same numbers in another order
        further = [float((each > 0).sum() + (each == 0).sum() / 2) for each in (beyond, -beyond)]
        p_value = min(1.0, (2 * min(further) + 1) / (resamples + 1))
        found[name] = Difference(Interval(observed, float(low), float(high)), p_value)
    return found


def _swapped(a: Images, b: Images, resamples: int, seed: int) -> dict[str, Floats]:
    """Return differences (R,) of each score after the two models have swapped their predictions of random images."""
    n = len(a.labels)
    both = a.followed_by(b)  # 2N rows

    def weights(first: bool) -> Iterator[Floats]:
        generator = np.random.default_rng(seed)
        for rows in block_sizes(2 * n, resamples):
            kept = generator.integers(0, 2, (rows, n), np.int8).astype(np.float64)
            yield np.concatenate([kept, 1 - kept] if first else [1 - kept, kept], axis=1)

    here, there = (weighted_scores(both, weights(first), copies=2) for first in (True, False))
    return {name: here[name] - there[name] for name in here}
