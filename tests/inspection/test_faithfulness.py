"""Faithfulness of maps against closed forms: predictions that are known functions of the patches."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError, NonFiniteError
from vitreous.inspection.faithfulness.curves import deletion, insertion
from vitreous.inspection.faithfulness.removal import blurred, group_cells
from vitreous.inspection.faithfulness.saco import saco
from vitreous.inspection.faithfulness.table import faithfulness_table, mean_interval, random_maps, sample_size

PATCH, GRID = 2, 4


class Linear:
    """Two classes whose scores are linear in the patches' means, and a count of the images predicted."""

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.seen = weights, 0

    def __call__(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        first = (self.importance(images)).sum((1, 2))
        return torch.stack([first, 1 - first], 1)

    def importance(self, images: Tensor) -> Tensor:
        """What each patch adds to the score of class 0, (B, 4, 4)."""
        means = images.mean(1).unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).mean((3, 4))
        return means * self.weights


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def linear() -> Linear:
    return Linear(torch.randn(GRID, GRID, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


def images_of(n: int, seed: int = 0) -> Tensor:
    shape = (n, 3, GRID * PATCH, GRID * PATCH)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def zeros(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.long)


def saco_by_hand(predict, image: Tensor, values: Tensor, groups: int, fill: float) -> float:
    """Algorithm 1 for one image, written out, with loops over patches and pairs."""
    order = sorted(range(values.numel()), key=lambda cell: -float(values.flatten()[cell]))
    members = [[] for _ in range(groups)]
    for rank, cell in enumerate(order):
        members[rank * groups // len(order)].append(cell)
    whole = float(predict(image[None])[0, 0])
    sums, drops = [], []
    for cells in members:
        without = image.clone()
        for cell in cells:
            row, column = divmod(cell, GRID)
            without[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = fill
        sums.append(sum(float(values.flatten()[cell]) for cell in cells) / len(cells))
        drops.append((whole - float(predict(without[None])[0, 0])) / len(cells))
    total = absolute = 0.0
    for i, j in itertools.combinations(range(groups), 2):
        weight = sums[i] - sums[j] if drops[i] >= drops[j] else -(sums[i] - sums[j])
        total, absolute = total + weight, absolute + abs(weight)
    return total / absolute


@pytest.mark.parametrize("groups", [2, 5, 8, 10, 16])
@pytest.mark.parametrize("fill", [0.0, 0.7])
def test_saco_is_algorithm_1_written_out(linear, groups, fill):
    images, values = images_of(12), torch.randn(12, GRID, GRID, dtype=torch.float64)
    found = saco(linear, images, values, zeros(12), groups=groups, background=torch.full((3,), fill))
    wanted = [saco_by_hand(linear, *pair, groups, fill) for pair in zip(images, values, strict=True)]
    assert found.numpy() == pytest.approx(np.array(wanted), abs=1e-12)


@pytest.mark.parametrize("groups", [2, 5, 10, 16])
def test_the_perfect_map_gives_1_and_its_negative_gives_minus_1(linear, groups):
    """Also where 16 patches do not divide into groups of one size."""
    images = images_of(40)
    perfect = linear.importance(images)
    for maps, value in ((perfect, 1.0), (perfect * 3, 1.0), (-perfect, -1.0)):
        assert saco(linear, images, maps, zeros(40), groups=groups).tolist() == pytest.approx([value] * 40)
    ones = torch.ones(40, dtype=torch.long)
    assert saco(linear, images, -perfect, ones, groups=groups).tolist() == pytest.approx([1.0] * 40)


@pytest.mark.parametrize("groups", [8, 10])
def test_random_maps_give_0_on_average(linear, groups):
    """Also with groups of unequal sizes, of which the larger have larger drops."""
    images = images_of(4000)
    scores = saco(linear, images, random_maps(images, (GRID, GRID)), zeros(4000), groups=groups, batch_size=4096)
    assert abs(float(scores.mean())) < 0.03
    assert float(scores.std()) > 0.2


def test_constant_maps_have_no_saco(linear):
    images = images_of(3)
    maps = torch.stack([torch.full((GRID, GRID), 0.1), linear.importance(images)[1].float(), torch.zeros(GRID, GRID)])
    for groups in (8, 10):
        found = saco(linear, images, maps, zeros(3), groups=groups)
        assert found.isnan().tolist() == [True, False, True]


def test_equal_drops_count_in_favour_of_the_map():
    """As in the paper. A prediction that ignores the image agrees with every map, so random maps are no worse."""
    images = images_of(20)
    constant = lambda batch: torch.full((len(batch), 2), 0.5)  # noqa: E731
    rows = faithfulness_table(constant, images, zeros(20), {"any": torch.randn(20, GRID, GRID)}, groups=8)
    assert [row.saco.value for row in rows] == [1.0, 1.0]
    assert rows[0].verdict == "no better than random"


def test_equal_values_keep_their_raster_order():
    values = torch.tensor([[[1.0, 2.0], [2.0, 1.0]]])
    assert group_cells(values, 4).tolist() == [[2, 0, 1, 3]]
    assert group_cells(values, 3).tolist() == [[1, 0, 0, 2]]


def test_one_value_per_pixel_ranks_pixels(linear):
    images = images_of(5)
    per_pixel = images.mean(1) * linear.weights.repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
    assert saco(linear, images, per_pixel, zeros(5), groups=16).tolist() == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("steps", [2, 5, 16])
def test_curves_of_a_linear_prediction_are_sums_of_importance(linear, steps):
    """The score after each step is the sum over the patches that are left, or over those that are inserted."""
    images, maps = images_of(7), torch.randn(7, GRID, GRID, dtype=torch.float64)
    importance = linear.importance(images).flatten(1).gather(1, maps.flatten(1).argsort(1, descending=True))
    removed = [math.ceil(step * 16 / steps) for step in range(steps + 1)]
    inserted = torch.stack([importance[:, :count].sum(1) for count in removed], 1)
    found = insertion(linear, images, maps, zeros(7), steps=steps)
    assert found.fractions.tolist() == pytest.approx([count / 16 for count in removed])
    assert (found.scores - inserted).abs().max() < 1e-12
    assert found.auc.numpy() == pytest.approx(np.trapezoid(inserted.numpy(), np.array(removed) / 16, axis=1))
    down = deletion(linear, images, maps, zeros(7), steps=steps)
    assert (down.scores - (importance.sum(1, keepdim=True) - inserted)).abs().max() < 1e-12


def test_the_perfect_map_has_the_best_curves(linear):
    images = images_of(6)
    perfect = linear.importance(images)
    others = [torch.randn(6, GRID, GRID, dtype=torch.float64) for _ in range(30)]
    for curve, sign in ((deletion, -1), (insertion, 1)):
        best = sign * curve(linear, images, perfect, zeros(6), steps=16).auc
        assert all((best > sign * curve(linear, images, other, zeros(6), steps=16).auc).all() for other in others)


def test_a_background_of_images_replaces_each_by_its_own(linear):
    images = images_of(4)
    behind = blurred(images, 5, 1.0)
    assert behind.std() < 0.8 * images.std()
    found = deletion(linear, images, linear.importance(images), zeros(4), background=behind)
    assert found.scores[:, -1].tolist() == pytest.approx(linear(behind)[:, 0].tolist())


def test_the_order_of_images_does_not_matter(linear):
    images, maps = images_of(30), torch.randn(30, GRID, GRID)
    order = torch.randperm(30)
    found = saco(linear, images, maps, zeros(30), groups=8)
    assert torch.equal(saco(linear, images[order], maps[order], zeros(30), groups=8), found[order])
    table = faithfulness_table(linear, images, zeros(30), {"a": maps}, groups=8)
    again = faithfulness_table(linear, images[order], zeros(30), {"a": maps[order]}, groups=8)
    for one, other in zip(table, again, strict=True):
        for name in ("saco", "deletion", "insertion"):
            pair = [vars(getattr(row, name)) for row in (one, other)]
            assert pair[0] == pytest.approx(pair[1], abs=1e-12)


@pytest.mark.parametrize("batch_size", [1, 7, 10_000])
def test_the_batch_size_does_not_matter(linear, batch_size):
    images, maps = images_of(9), torch.randn(9, GRID, GRID)
    assert torch.equal(
        saco(linear, images, maps, zeros(9), groups=8, batch_size=batch_size),
        saco(linear, images, maps, zeros(9), groups=8),
    )


def test_a_table_equals_its_parts_and_predicts_no_variant_twice(linear):
    images = images_of(100)
    maps = {"perfect": linear.importance(images), "noise": torch.randn(100, GRID, GRID, dtype=torch.float64)}
    linear.seen = 0
    rows = faithfulness_table(linear, images, zeros(100), maps, groups=8)
    assert linear.seen == 100 * (2 + (2 + 3) * (3 * 8 - 4))
    assert [row.method for row in rows] == ["perfect", "noise", "random"]
    assert [row.verdict for row in rows] == ["better than random", "no better than random", "no better than random"]
    for row in rows[:2]:
        arguments = (linear, images, maps[row.method], zeros(100))
        assert row.saco.value == pytest.approx(float(saco(*arguments, groups=8).mean()))
        assert row.deletion.value == pytest.approx(float(deletion(*arguments, steps=8).auc.mean()))
        assert row.insertion.value == pytest.approx(float(insertion(*arguments, steps=8).auc.mean()))
        assert row.saco.low <= row.saco.value <= row.saco.high
    other_seed = faithfulness_table(linear, images, zeros(100), maps, groups=8, seed=1)
    assert other_seed[2].saco.value != rows[2].saco.value


def test_other_random_maps_are_seldom_better_than_random(linear):
    """Two intervals of 95 % that do not touch are rarer than 1 in 40: the verdict errs on the side of random."""
    verdicts = []
    for seed in range(150):
        images = images_of(12, seed)
        maps = {"noise": torch.randn(12, GRID, GRID)}
        verdicts += faithfulness_table(linear, images, zeros(12), maps, groups=8, batch_size=4096, resamples=200)[:1]
    assert sum(row.verdict == "better than random" for row in verdicts) <= 4


def test_a_table_counts_constant_maps_and_refuses_a_verdict_on_few_images(linear):
    images = images_of(12)
    maps = linear.importance(images)
    maps[:3] = 1.0
    rows = faithfulness_table(linear, images, zeros(12), {"some": maps}, groups=8)
    assert (rows[0].images, rows[0].undefined, rows[0].verdict) == (12, 3, "too few images")
    assert rows[0].saco.value == pytest.approx(1)
    assert rows[1].undefined == 0
    assert rows[1].verdict == "no better than random"


@pytest.mark.parametrize("groups", [2, 3, 8, 16])
def test_a_budget_buys_the_forward_passes_that_the_table_makes(linear, groups):
    images = images_of(3)
    faithfulness_table(linear, images, zeros(3), {"a": torch.randn(3, 4, 4), "b": torch.randn(3, 4, 4)}, groups=groups)
    each = linear.seen / 3 * 0.25
    assert sample_size(each * 7.5, 0.25, methods=2, groups=groups) == 7
    with pytest.raises(ConfigError, match="allow more time"):
        sample_size(each * 0.9, 0.25, methods=2, groups=groups)


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says():
    draws = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        interval = mean_interval(torch.from_numpy(draws.exponential(size=80)), resamples=400)
        hits += interval.low <= 1 <= interval.high
    assert 0.90 <= hits / 400 <= 0.97


def test_the_interval_of_a_mean_leaves_out_what_is_undefined():
    values = torch.tensor([0.2, math.nan, 0.4, 0.9, math.nan])
    assert mean_interval(values) == mean_interval(torch.tensor([0.9, 0.2, 0.4]))
    assert mean_interval(values).value == pytest.approx(0.5)
    one = mean_interval(values[:2])
    assert one.value == pytest.approx(0.2)
    assert math.isnan(one.low)
    assert math.isnan(mean_interval(values[1:2]).value)


WRONG = {
    "too many groups": ({"groups": 17}, DataError, "from 2 to 16"),
    "one group": ({"groups": 1}, DataError, "from 2 to 16"),
    "no batch": ({"batch_size": 0}, DataError, "at least 1"),
    "grid": ({"maps": torch.rand(4, 3, 3)}, DataError, "cells of equal size"),
    "fewer maps": ({"maps": torch.rand(3, 4, 4)}, DataError, "one map and one target"),
    "shape": ({"maps": torch.rand(4, 16)}, DataError, "must be"),
    "NaN": ({"maps": torch.full((4, 4, 4), math.nan)}, NonFiniteError, "finite"),
    "target": ({"targets": torch.tensor([0, 1, 2, 0])}, DataError, "classes 0 to 1"),
    "background": ({"background": torch.zeros(1)}, DataError, "one value per channel"),
    "logits": ({"predict": lambda x: x.mean((1, 2, 3))}, DataError, "must be"),
    "infinite": ({"predict": lambda x: torch.full((len(x), 2), math.inf)}, NonFiniteError, "check the model"),
}


@pytest.mark.parametrize(("change", "kind", "words"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(linear, change, kind, words):
    given = {"predict": linear, "images": images_of(4), "maps": torch.rand(4, 4, 4), "targets": zeros(4), "groups": 8}
    with pytest.raises(kind, match=words):
        saco(**(given | change))


def test_wrong_tables_are_named(linear):
    images, maps = images_of(4), torch.rand(4, 4, 4)
    for methods, words in (
        ({}, "at least one"),
        ({"random": maps}, "another name"),
        ({"a": maps, "b": torch.rand(4, 2, 2)}, "different grids"),
    ):
        with pytest.raises(DataError, match=words):
            faithfulness_table(linear, images, zeros(4), methods, groups=4)
    with pytest.raises(DataError, match="resamples"):
        faithfulness_table(linear, images, zeros(4), {"a": maps}, groups=4, resamples=0)
    for wrong in ({"methods": 0}, {"groups": 1}, {"seconds": math.inf}, {"seconds_per_forward": 0}):
        with pytest.raises(ConfigError, match="must be"):
            sample_size(**({"seconds": 1, "seconds_per_forward": 1e-3, "methods": 1} | wrong))
    with pytest.raises(DataError, match="odd"):
        blurred(images, kernel=4)
    with pytest.raises(DataError, match="sigma"):
        blurred(images, kernel=3, sigma=0)


def test_random_maps_belong_to_images_not_to_positions():
    images = images_of(5)
    maps = random_maps(images, (GRID, GRID), seed=3)
    assert torch.equal(random_maps(images.flip(0), (GRID, GRID), seed=3), maps.flip(0))
    assert len({tuple(values.flatten().tolist()) for values in maps}) == 5
    assert not torch.equal(random_maps(images, (GRID, GRID), seed=4), maps)


def test_predictions_record_no_gradient(linear):
    linear.weights.requires_grad_()
    recorded = []

    def predict(images: Tensor) -> Tensor:
        recorded.append(linear(images).requires_grad)
        return linear(images)

    images = images_of(2)
    saco(predict, images, torch.rand(2, GRID, GRID), zeros(2), groups=2)
    assert recorded
    assert not any(recorded)
