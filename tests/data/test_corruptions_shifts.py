"""Shifts along a parameter: the value that changes nothing, exact special cases, reproducible bytes and refusals."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from data.photos import tiles
from vitreous.data.corruptions import SHIFTS
from vitreous.data.corruptions.apply import shift
from vitreous.errors import DataError, UsageError

IDENTITY = {"scale": 1, "rotation": 0, "brightness": 1, "patch_shuffle": 40, "patch_shuffle_fraction": 0}
OTHER = {"scale": 0.6, "rotation": 25.5, "brightness": 1.4, "patch_shuffle": 7, "patch_shuffle_fraction": 0.4}


def run(name, value, images, seed=0):
    return shift(images, name, value, indices=range(len(images)), seed=seed)


@pytest.mark.parametrize("name", SHIFTS)
def test_one_value_changes_nothing_and_others_do(name):
    images = tiles(4, 40, 40)
    assert torch.equal(run(name, IDENTITY[name], images), images)
    assert not torch.equal(run(name, OTHER[name], images), images)


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_of_1_equals_a_batch_of_32_byte_for_byte(name, channels):
    images = tiles(32, 44, 53)[:, :channels].contiguous()
    batch = run(name, OTHER[name], images)
    for position in (0, 19, 31):
        alone = shift(images[position : position + 1], name, OTHER[name], indices=[position])
        assert torch.equal(alone[0], batch[position])


@pytest.mark.parametrize(("angle", "turns"), [(90, 1), (180, 2), (-90, 3), (-180, 2)])
def test_right_angles_are_exact(angle, turns):
    images = tiles(2, 41, 41)
    assert torch.equal(run("rotation", angle, images), images.rot90(turns, dims=(2, 3)))


def test_rotation_back_and_forth_restores_the_centre():
    images = F.avg_pool2d(tiles(2, 160, 160).float(), 9, stride=1, padding=4).to(torch.uint8)
    back = run("rotation", -33, run("rotation", 33, images))
    inside = (slice(None), slice(None), slice(45, 115), slice(45, 115))
    assert float((back[inside].float() - images[inside].float()).abs().mean()) < 1.5


def test_scale_2_equals_interpolation_of_the_centre():
    images = tiles(2, 64, 64)
    expected = F.interpolate(images.double(), scale_factor=2, mode="bilinear")[..., 32:96, 32:96]
    assert float((run("scale", 2, images) - expected).abs().max()) <= 0.5 + 1e-3


def test_scale_below_1_shows_the_smaller_image_in_the_centre():
    images = tiles(2, 64, 64)
    smaller = run("scale", 0.5, images)[..., 16:48, 16:48].double()
    expected = F.avg_pool2d(images.double(), 2)
    assert float((smaller - expected).abs().mean()) < 0.15 * float((expected - expected.mean()).abs().mean())


@pytest.mark.parametrize("factor", [0, 0.3, 1.7, 4])
def test_brightness_is_a_product(factor):
    images = tiles(2, 32, 32)
    expected = torch.clamp(images.double() * factor, 0, 255)
    assert float((run("brightness", factor, images) - expected).abs().max()) <= 0.5 + 1e-3


def patches(images, side):
    """Return the sorted patches of each image whose sides are multiples of ``side``."""
    rows = F.unfold(images.double(), side, stride=side).transpose(1, 2)
    return [sorted(one.tolist()) for one in rows]


@pytest.mark.parametrize("side", [1, 4, 16, 32])
def test_patches_are_permuted_whole(side):
    images = tiles(3, 64, 96)
    shuffled = run("patch_shuffle", side, images)
    assert patches(shuffled, side) == patches(images, side)
    assert not torch.equal(shuffled, images)
    assert not torch.equal(run("patch_shuffle", side, images, seed=1), shuffled)


def test_rows_and_columns_that_fill_no_patch_stay():
    images = tiles(2, 47, 45)
    shuffled = run("patch_shuffle", 10, images)
    assert torch.equal(shuffled[:, :, 40:], images[:, :, 40:])
    assert torch.equal(shuffled[..., 40:], images[..., 40:])


def test_a_fraction_of_the_patches_moves():
    images = torch.arange(64).reshape(1, 1, 8, 8).repeat_interleave(5, 2).repeat_interleave(5, 3).to(torch.uint8)
    images = images.expand(32, 1, 40, 40).contiguous()
    moved = [(run("patch_shuffle_fraction", value, images) != images)[..., ::5, ::5] for value in (0.25, 0.5, 1)]
    for mask, chosen in zip(moved, (16, 32, 64), strict=True):
        counts = mask.sum(dim=(1, 2, 3))
        assert int(counts.max()) <= chosen
        assert float(counts.double().mean()) == pytest.approx(chosen - 1, abs=0.8)  # a permutation fixes 1 on average


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scale", 0.2), ("scale", 5), ("rotation", 181), ("brightness", -0.1), ("patch_shuffle", 0), ("scale", True),
        ("patch_shuffle", 41), ("patch_shuffle", 2.5), ("patch_shuffle_fraction", 1.1), ("rotation", float("nan")),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(UsageError, match=f"shift '{name}' is {value}"):
        run(name, value, tiles(1, 40, 40))


def test_unknown_names_and_small_images_are_refused():
    with pytest.raises(UsageError, match=r"no shift 'rotate'.*Did you mean 'rotation'"):
        run("rotate", 3, tiles(1, 40, 40))
    with pytest.raises(DataError, match="32 x 32 or more"):
        run("rotation", 3, tiles(1, 40, 31))
