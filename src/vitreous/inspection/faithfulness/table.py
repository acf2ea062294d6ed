"""Map methods side by side, always with random maps, and what a budget of time pays for.

Shapes: N images of C channels and H x W pixels, maps of h x w cells, P = h w cells, K classes, G groups of cells,
V variants of an image, R resamples.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitreous.data.rng import generator
from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.scoring.intervals import Interval, check_share
from vitreous.inspection.faithfulness.curves import cells_changed, deletion_steps, insertion_steps
from vitreous.inspection.faithfulness.removal import Predict, Removal, check_maps, group_cells
from vitreous.inspection.faithfulness.saco import coefficient, one_group_removed

__all__ = ["RANDOM", "Faithfulness", "faithfulness_table", "mean_interval", "random_maps", "sample_size"]

RANDOM = "random"
"""The name of the row of random maps."""
_RANDOM_MAPS = 3  # per image, averaged: one per image leaves a mean SaCo of 200 images uncertain by 0.05
Verdict = Literal["better than random", "no better than random", "too few images"]

_FEWEST = 10  # images of a verdict: percentile intervals of fewer are far too narrow
_MAX_DRAWS = 2**20  # images in memory at once


@dataclass(frozen=True)
class Faithfulness:
    """How faithful the maps of one method are.

    Attributes:
        method: Its name; `random` for random maps.
        saco: Mean SaCo over the images that define it, in [-1, 1], and its interval. Higher is better.
        deletion: Mean area under the deletion curve, in [0, 1]. Lower is better.
        insertion: Mean area under the insertion curve, in [0, 1]. Higher is better.
        images: N.
        undefined: Images without SaCo, because their map is constant.
        verdict: `better than random` if the interval of SaCo lies above that of random maps, and otherwise `no better
            than random`; `too few images` if fewer than 10 images define SaCo.
    """

    method: str
    saco: Interval
    deletion: Interval
    insertion: Interval
    images: int
    undefined: int
    verdict: Verdict


def faithfulness_table(
    predict: Predict,
    images: Tensor,
    targets: Tensor,
    maps_by_method: Mapping[str, Tensor],
    *,
    groups: int = 10,
    background: Tensor | None = None,
    batch_size: int = 64,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[Faithfulness]:
    """Score map methods on the same images by SaCo, deletion and insertion, with the groups as steps of the curves.

    Each variant of an image is predicted once. For 3 or more groups, that takes 2 forward passes per image, 3 G - 4 for
    each method, and as many for each of three random maps, whose scores are averaged.

    Args:
        predict: Maps normalised images (B, C, H, W) to probabilities (B, K).
        images: Normalised images, (N, C, H, W).
        targets: The class that the maps explain, (N,) integers.
        maps_by_method: Name -> maps (N, h, w), the same h and w for all methods. Average maps over patches before, if
            others have one value per patch. Constant maps are scored by the curves in raster order.
        groups: G, from 2 to P.
        background: What replaces removed cells, see :class:`~vitreous.inspection.faithfulness.removal.Removal`.
        batch_size: Variants of images per forward pass.
        resamples: R, of the bootstrap of images, at least 1.
        level: Confidence level of the intervals, in (0, 1).
        seed: Of random maps and resamples.

    Returns:
        One row per method in the order given, and the row of random maps last.

    Raises:
        DataError: If shapes do not match, a method is called `random`, or an option is out of range.
        NonFiniteError: If a map or a probability is NaN or infinite.
    """
    _check_methods(images, targets, maps_by_method)
    _check_resamples(resamples, level)
    h, w = next(iter(maps_by_method.values())).shape[1:]
    methods = {name: [maps] for name, maps in maps_by_method.items()}
    methods[RANDOM] = [random_maps(images, (h, w), seed, draw) for draw in range(_RANDOM_MAPS)]
    removal = Removal(predict, images, targets, background=background, batch_size=batch_size)
    measured = _measure(removal, methods, groups)
    scores = {
        name: [mean_interval(values, resamples, level, seed) for values in measures]
        for name, measures in measured.items()
    }
    rows = []
    for name, (saco, deletion, insertion) in scores.items():
        undefined = int(measured[name][0].isnan().sum())
        verdict = _verdict(saco, scores[RANDOM][0], len(images) - undefined)
        rows.append(Faithfulness(name, saco, deletion, insertion, len(images), undefined, verdict))
    return rows


def _measure(removal: Removal, methods: Mapping[str, Sequence[Tensor]], groups: int) -> dict[str, Tensor]:
    """Return SaCo and the areas of deletion and insertion, (3, N), of each method: means over its maps (N, h, w)."""
    first = next(iter(methods.values()))[0]
    h, w = first.shape[1:]
    kept, place = _variants(groups)
    shared = removal.scores(group_cells(first, groups), (h, w), kept[:2])  # (N, 2): whole and background, for all maps
    fractions = cells_changed(h * w, groups)

    def measures(maps: Tensor) -> Tensor:
        group_of = group_cells(maps, groups)
        own = removal.scores(group_of, (h, w), kept[2:])  # (N, V - 2)
        scores = torch.cat([shared, own], 1)[:, place]  # (N, G + 2 (G + 1))
        one_removed, deleted, inserted = scores.split([groups, groups + 1, groups + 1], 1)
        saco = coefficient(maps, group_of, shared[:, :1] - one_removed)
        areas = (torch.trapezoid(steps, fractions, dim=1) for steps in (deleted, inserted))
        return torch.stack([saco, *areas])

    return {name: torch.stack([measures(maps) for maps in several]).mean(0) for name, several in methods.items()}


def random_maps(images: Tensor, grid: tuple[int, int], seed: int = 0, draw: int = 0) -> Tensor:
    """Return uniform random maps (N, h, w) in [0, 1), drawn from the seed and each image's pixels, not its position.

    ``draw`` numbers several maps of the same image.
    """
    rows = [zlib.crc32(image.detach().cpu().float().contiguous().numpy().tobytes()) for image in images]
    drawn = [generator(seed, row, draw, stream="random maps").random(grid) for row in rows]
    return torch.from_numpy(np.stack(drawn))


def mean_interval(values: Tensor, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the mean of values (N,) without NaN, and its percentile interval over R bootstrap resamples.

    The order of the values does not matter. Without a value the mean and the interval are NaN; with one, the interval
    is NaN.

    Raises:
        DataError: If ``resamples`` is below 1 or ``level`` is not in (0, 1).
    """
    _check_resamples(resamples, level)
    defined = np.sort(values[~values.isnan()].double().cpu().numpy())
    n = len(defined)
    if n < 2:
        return Interval(float(defined[0]) if n else math.nan, math.nan, math.nan)
    draw = np.random.default_rng(seed)
    block = max(1, _MAX_DRAWS // n)
    rows = [min(block, resamples - start) for start in range(0, resamples, block)]
    means = np.concatenate([defined[draw.integers(n, size=(count, n))].mean(axis=1) for count in rows])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(defined.mean()), float(low), float(high))


def sample_size(seconds: float, seconds_per_forward: float, methods: int, groups: int = 10) -> int:
    """Return how many images :func:`faithfulness_table` scores in a time, random maps included.

    Args:
        seconds: The budget, above 0. The maps of the methods are not part of it.
        seconds_per_forward: Time of the forward pass per image, measured at the batch size of the table.
        methods: Number of methods, at least 1; three random maps are added.
        groups: G, at least 2.

    Raises:
        ConfigError: If an argument is out of range, or the budget is too small for one image.
    """
    for name, value, least in (("methods", methods, 1), ("groups", groups, 2)):
        if value < least:
            raise ConfigError(f"{name} is {value}, it must be at least {least}")
    for name, time in (("seconds", seconds), ("seconds_per_forward", seconds_per_forward)):
        if not 0 < time < math.inf:
            raise ConfigError(f"{name} is {time}, it must be above 0 and finite")
    passes = 2 + (methods + _RANDOM_MAPS) * (len(_variants(groups)[0]) - 2)
    count = int(seconds / (passes * seconds_per_forward))
    if count == 0:
        raise ConfigError(
            f"seconds is {seconds:g}, one image takes {passes} forward passes or {passes * seconds_per_forward:.3g} s: "
            "allow more time, or compare fewer methods or groups"
        )
    return count


def _variants(groups: int) -> tuple[Tensor, Tensor]:
    """Return the distinct variants of an image, and which of them each measure needs.

    Returns:
        Which groups the variants keep, (V, G) bool: all of them in the first row and none in the second. The rows of
        the variants of SaCo, deletion and insertion, (G + 2 (G + 1),).
    """
    ends = torch.stack([torch.ones(groups), torch.zeros(groups)]).bool()
    needed = torch.cat([ends, one_group_removed(groups), deletion_steps(groups), insertion_steps(groups)])
    first: dict[tuple[bool, ...], int] = {}
    place = [first.setdefault(tuple(row), len(first)) for row in needed.tolist()]
    return torch.tensor(list(first)), torch.tensor(place[2:])


def _check_methods(images: Tensor, targets: Tensor, maps_by_method: Mapping[str, Tensor]) -> None:
    """Raise a DataError unless there are methods, none called random, with maps of the images on one grid."""
    if not maps_by_method:
        raise DataError("there are no methods to compare: give the maps of at least one")
    if RANDOM in maps_by_method:
        raise DataError(f"a method is called '{RANDOM}', the name of the row of random maps: give it another name")
    for maps in maps_by_method.values():
        check_maps(images, maps, targets)
    grids = {name: tuple(maps.shape[1:]) for name, maps in maps_by_method.items()}
    if len(set(grids.values())) > 1:
        listed = ", ".join(f"{name} {h} x {w}" for name, (h, w) in grids.items())
        raise DataError(f"maps have different grids ({listed}): average the finer maps over the cells of the coarsest")


def _check_resamples(resamples: int, level: float) -> None:
    check_share("level", level)
    if resamples < 1:
        raise DataError(f"resamples is {resamples}, it must be at least 1")


def _verdict(saco: Interval, baseline: Interval, defined: int) -> Verdict:
    """Compare the interval of SaCo of a method, defined for so many images, with that of random maps."""
    if defined < _FEWEST:
        return "too few images"
    return "better than random" if saco.low > baseline.high else "no better than random"
