"""Random resized crops: the boxes, and the same pixels as Pillow's, torch's and torchvision's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from photos import tiles
from PIL import Image
from scipy import stats
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from vitreous.data.augment.resized_crop import CROP_COLUMNS, crop_boxes, cut_each, cut_together, resized_crop

torch.set_num_threads(2)

WAYS = pytest.mark.parametrize("cut", [cut_each, cut_together])


@pytest.mark.parametrize("target", [(24, 40), (64, 64), (50, 90)])
def test_a_resized_crop_of_everything_is_a_plain_antialiased_resize(target):
    images = tiles(8, 50, 90)
    whole = torch.tensor([[0.0, 0, 1, 1]]).repeat(8, 1)
    assert torch.equal(resized_crop(images, whole, target), tv.resize(images, target, antialias=True))
    edges = [torch.tensor(edge).repeat(8) for edge in (0.0, 50.0, 90.0)]
    upright = torch.zeros(8, dtype=torch.bool)
    ours = cut_together(images, (edges[0], edges[1]), (edges[0], edges[2]), target, upright)
    theirs = F.interpolate(images.float(), target, mode="bilinear", antialias=True, align_corners=False)
    # Each is rounded from the same real number: at most one level apart, where float32 falls on either side of a half.
    assert (ours - theirs.round()).abs().max() <= 1
    assert (ours == theirs.round()).float().mean() > 0.999
    if target == (50, 90):
        assert torch.equal(ours, images)


def _some_boxes() -> tuple[torch.Tensor, ...]:
    """Edges of 12 boxes of whole pixels in images of 80 x 100: the rows' first and end, the columns'."""
    rng = np.random.default_rng(1)
    height, width = rng.integers(10, 80, 12), rng.integers(10, 100, 12)
    top, left = rng.integers(0, 81 - height), rng.integers(0, 101 - width)
    return tuple(torch.from_numpy(edge).float() for edge in (top, top + height, left, left + width))


@WAYS
def test_a_resized_crop_is_what_torchvision_and_pillow_cut(cut):
    images = tiles(12, 80, 100)
    top, bottom, left, right = edges = _some_boxes()
    mirrored = torch.arange(12) % 2 == 1
    ours = cut(images, (top, bottom), (left, right), (32, 48), mirrored)
    for i in range(12):
        mine = ours[i].flip(2) if mirrored[i] else ours[i]
        y, bottom_y, x, right_x = (int(edge[i]) for edge in edges)
        place = (y, x, bottom_y - y, right_x - x, (32, 48))
        exact = tv.resized_crop(images[i].float(), *place, antialias=True)
        if cut is cut_each:
            assert torch.equal(mine, tv.resized_crop(images[i], *place, antialias=True))
        else:
            assert (mine - exact).abs().max() <= 0.51  # rounding to uint8, and float32
        assert _apart_from_pillow(mine, images[i, :, y:bottom_y, x:right_x]) <= 1


def test_a_box_is_cut_by_shares_as_by_pixels():
    images = tiles(12, 80, 100)
    top, bottom, left, right = _some_boxes()
    boxes = torch.stack([top / 80, left / 100, (bottom - top) / 80, (right - left) / 100], 1)
    upright = torch.zeros(12, dtype=torch.bool)
    assert torch.equal(
        resized_crop(images, boxes, (24, 24)), cut_each(images, (top, bottom), (left, right), (24, 24), upright)
    )


@pytest.mark.parametrize("target", [(20, 20), (70, 60)])
def test_a_box_between_pixels_is_cut_at_the_nearest(target):
    images = tiles(1, 80, 100)
    top, left, height, width = 0.1234, 0.2345, 0.4567, 0.5678  # rows 9.87 to 46.41, columns 23.45 to 80.23
    ours = resized_crop(images, torch.tensor([[top, left, height, width]]), target)[0]
    assert _apart_from_pillow(ours, images[0, :, 10:46, 23:80]) <= 1


def _apart_from_pillow(ours: torch.Tensor, image: torch.Tensor) -> int:
    """Most levels between a resized image and what Pillow makes of each channel in float32."""
    apart = 0
    for mine, channel in zip(ours.numpy(), image.numpy(), strict=True):
        source = Image.fromarray(channel.astype(np.float32))
        pillow = np.asarray(source.resize(mine.shape[::-1], Image.Resampling.BILINEAR))
        apart = max(apart, int(np.abs(mine - np.rint(pillow)).max()))
    return apart


def test_a_box_thinner_than_a_pixel_still_gives_its_colours():
    images = tiles(2, 8, 8)
    boxes = torch.tensor([[0.9999, 0.9999, 1e-4, 1e-4], [0.0, 0.5, 1e-6, 1e-6]])
    cut = resized_crop(images, boxes, (4, 4))
    assert torch.equal(cut[0], images[0, :, -1:, -1:].expand(3, 4, 4))
    assert torch.equal(cut[1], images[1, :, :1, 4:5].expand(3, 4, 4))


@pytest.mark.parametrize("size", [(64, 64), (240, 320), (500, 100)])
def test_crop_boxes_are_distributed_as_torchvisions(size):
    H, W = size
    torch.manual_seed(0)
    scale, ratio = (0.3, 1.0), (3 / 4, 4 / 3)
    blank = torch.zeros(3, H, W)
    theirs = np.array([RandomResizedCrop.get_params(blank, list(scale), list(ratio)) for _ in range(1000)])
    uniform = np.random.default_rng(0).random((1000, CROP_COLUMNS), dtype=np.float32)
    ours = crop_boxes(uniform, np.full(1000, W / H, np.float32), scale[0], ratio)
    assert (ours >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= 1 + 1e-6).all()
    area, shape = ours[:, 2] * ours[:, 3], ours[:, 3] * W / (ours[:, 2] * H)
    assert area.max() <= 1
    assert ratio[0] - 1e-4 <= shape.min() <= shape.max() <= ratio[1] + 1e-4
    if size == (500, 100):  # nothing of 30 % fits a strip: the largest middle box of the flattest ratio
        assert np.allclose(ours, [(1 - 2 / 3 * 0.4) / 2, 0, 2 / 3 * 0.4, 1], atol=1e-6) or area.min() < 0.3
        return
    # torchvision rounds to pixels: the distributions agree up to that, 1,000 draws each.
    for mine, other in ((ours[:, 2] * H, theirs[:, 2]), (ours[:, 3] * W, theirs[:, 3]), (ours[:, 0] * H, theirs[:, 0])):
        assert stats.ks_2samp(np.rint(mine), other).pvalue > 1e-3
