"""Flips, padded crops, erased boxes and affine maps: what they keep, and the same as torchvision's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from photos import tiles
from scipy import stats
from torchvision.transforms import RandomErasing
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from vitreous.data.augment.geometry import ERASE_COLUMNS, affine, erase_boxes, flip, pad_crop

torch.set_num_threads(2)


def test_a_flip_undoes_itself_and_leaves_the_others_alone():
    images = tiles(6, 20, 31)
    which = torch.tensor([True, False, True, True, False, False])
    once = flip(images, which)
    assert torch.equal(flip(once, which), images)
    assert torch.equal(once[which], tv.horizontal_flip(images[which]))
    assert torch.equal(once[~which], images[~which])
    assert torch.equal(once.flatten(2).sort()[0], images.flatten(2).sort()[0])


@pytest.mark.parametrize(("size", "pad"), [((32, 32), 4), ((9, 14), 8), ((8, 8), 1), ((8, 8), 7)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_crop_is_the_window_of_the_reflect_padded_image(size, pad, channels):
    images = tiles(40, *size)[:, :channels]
    rng = np.random.default_rng(0)
    corner = torch.from_numpy(rng.integers(0, 2 * pad + 1, (40, 2)))
    corner[:4] = torch.tensor([[0, 0], [0, 2 * pad], [2 * pad, 0], [2 * pad, 2 * pad]])
    mirrored = torch.from_numpy(rng.random(40) < 0.5)
    cut = pad_crop(images, corner, pad, mirrored)
    padded = F.pad(images.float(), (pad,) * 4, mode="reflect").to(torch.uint8)
    for i, (top, left) in enumerate(corner.tolist()):
        window = padded[i, :, top : top + size[0], left : left + size[1]]
        assert torch.equal(cut[i], window.flip(2) if mirrored[i] else window)


def test_a_crop_in_the_middle_is_the_image_itself():
    images = tiles(5, 16, 24)
    assert torch.equal(pad_crop(images, torch.full((5, 2), 3), 3, torch.zeros(5, dtype=torch.bool)), images)


def test_erase_boxes_are_distributed_as_torchvisions_and_inside():
    H, W = 48, 64
    torch.manual_seed(0)
    blank = torch.zeros(3, H, W)
    theirs = np.array([RandomErasing.get_params(blank, (0.02, 0.33), (0.3, 3.3))[:4] for _ in range(1000)])
    uniform = np.random.default_rng(0).random((1000, ERASE_COLUMNS), dtype=np.float32)
    ours = erase_boxes(uniform, (H, W))
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, 0] + ours[:, 2] <= H).all()
    assert (ours[:, 1] + ours[:, 3] <= W).all()
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3


def test_an_affine_map_by_the_identity_changes_nothing():
    images = tiles(7, 33, 45)
    assert torch.equal(affine(images, torch.eye(2, 3).repeat(7, 1, 1), torch.tensor([1.0, 2, 3])), images)


@pytest.mark.parametrize("angle", [30.0, -135.0, 7.5])
def test_an_affine_map_rotates_as_torchvision(angle):
    images = tiles(4, 40, 56)
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    fill = [10.0, 100.0, 200.0]
    ours = affine(images, torch.tensor([[[c, -s, 0.0], [s, c, 0.0]]]).repeat(4, 1, 1), torch.tensor(fill))
    theirs = tv.rotate(images, angle, interpolation=InterpolationMode.BILINEAR, fill=fill)
    inside = tv.rotate(torch.ones(1, 1, 40, 56), angle, interpolation=InterpolationMode.BILINEAR) == 1
    apart = (ours.int() - theirs.int()).abs()
    assert apart[inside.expand_as(apart)].max() <= 1
    # At the edge torchvision weighs the fill twice; away from it, all that is outside is the fill.
    outside = F.max_pool2d(tv.rotate(torch.ones(1, 1, 40, 56), angle), 5, 1, 2) == 0
    assert torch.equal(
        ours.float()[outside.expand_as(ours)],
        torch.tensor(fill).view(1, 3, 1, 1).expand_as(ours)[outside.expand_as(ours)],
    )
