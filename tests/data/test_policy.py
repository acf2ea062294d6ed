"""Colour operations and policies against those of torchvision, and the properties that they must preserve."""

from __future__ import annotations

import math
import pkgutil

import numpy as np
import pytest
import torch
from photos import digits, tiles
from scipy import stats
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from vitreous.data.augment import POLICIES, color
from vitreous.data.augment.policies import COLUMNS, OPERATIONS
from vitreous.data.config import AugmentConfig

FILL = torch.tensor([115.0, 128, 102])


def images_of(channels: int) -> torch.Tensor:
    return tiles(10, 30, 44)[:, :channels]


def apply(name: str, images: torch.Tensor, uniform: np.ndarray, **fields: object) -> torch.Tensor:
    """Apply a policy with given random numbers."""

    def draw(columns: int) -> np.ndarray:
        assert len(uniform) == len(images)
        return uniform[:, :columns]

    policy = pkgutil.resolve_name(POLICIES[name])
    return policy(images, draw, FILL[: images.shape[1]], AugmentConfig(policy=name, **fields))


def rand(images: torch.Tensor, uniform: np.ndarray, magnitude: float, ops: int = 1) -> torch.Tensor:
    return apply("rand", images, uniform, policy_magnitude=magnitude, policy_ops=ops)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("ours", "theirs", "amounts"),
    [
        (color.brightness, tv.adjust_brightness, (0.0, 0.1, 0.9, 1.0, 1.9)),
        (color.contrast, tv.adjust_contrast, (0.0, 0.1, 0.9, 1.0, 1.9)),
        (color.saturation, tv.adjust_saturation, (0.0, 0.1, 0.9, 1.0, 1.9)),
        (color.sharpness, tv.adjust_sharpness, (0.0, 0.1, 0.9, 1.0, 1.9)),
        (color.posterize, tv.posterize, (1, 2, 4, 7, 8)),
        (color.solarize, tv.solarize, (0, 100, 128, 200, 255)),
    ],
)
def test_colour_operations_are_torchvisions_with_an_amount_for_each(channels, ours, theirs, amounts):
    images = images_of(channels)
    changed = ours(images, torch.tensor(amounts * 2, dtype=torch.float32))
    assert changed.dtype == torch.uint8
    for image, mine, amount in zip(images, changed, amounts * 2, strict=True):
        # torchvision cuts off fractions where we round: one level, and one more where it cuts the mean or the grey too.
        assert (mine.int() - theirs(image, amount).int()).abs().max() <= 2
    if ours not in (color.posterize, color.solarize):
        assert torch.equal(ours(images, torch.ones(10)), images)


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_blur_and_histogram_operations_are_torchvisions(channels):
    images = images_of(channels)
    for image, equal, stretched, grey in zip(
        *(images, color.equalize(images), color.autocontrast(images), color.grayscale(images)), strict=True
    ):
        assert torch.equal(equal, tv.equalize(image))
        assert torch.equal(stretched, tv.autocontrast(image))
        expected = tv.rgb_to_grayscale(image, num_output_channels=3) if channels == 3 else image
        assert (grey.int() - expected.int()).abs().max() <= 1
    for sigma in (0.1, 0.7, 2.0):
        expected = tv.gaussian_blur(images, [21, 21], [sigma, sigma])  # 21 pixels: 5 sigma on each side
        assert (color.blur(images, torch.full((10,), sigma)).int() - expected.int()).abs().max() <= 1


def test_jitter_is_brightness_contrast_saturation_in_a_row():
    images = images_of(3)
    amount = torch.from_numpy(np.random.default_rng(0).uniform(0.6, 1.4, (10, 3))).float()
    changed = color.jitter_(images.float(), amount)
    for image, mine, (b, c, s) in zip(images, changed, amount.tolist(), strict=True):
        expected = tv.adjust_saturation(tv.adjust_contrast(tv.adjust_brightness(image / 255, b), c), s) * 255
        assert (mine - expected).abs().max() <= 0.01
    assert torch.equal(color.jitter_(images.float(), torch.ones(10, 3)), images.float())


def draws(name: str, sign: int, count: int) -> np.ndarray:
    """Uniform numbers that make every image draw one operation."""
    number = list(OPERATIONS).index(name)
    column = np.full(count, (number + 0.5) / len(OPERATIONS), np.float32)
    return np.stack([column, np.zeros(count, np.float32), np.full(count, 0.25 if sign < 0 else 0.75, np.float32)], 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_rand_augment_operations_have_torchvisions_ranges(name, sign, channels):
    images, magnitude = images_of(channels), 7.0
    mine = rand(images, draws(name, sign, 10), magnitude)
    share = magnitude / 10
    H, W = images.shape[2:]

    def moved(**fields):
        plain = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0], **fields}
        return tv.affine(
            images.float(), interpolation=InterpolationMode.BILINEAR, fill=FILL[:channels].tolist(), **plain
        )

    shear = sign * math.degrees(math.atan(0.3 * share))
    factor = 1 + sign * 0.9 * share
    expected = {
        "identity": lambda: images,
        "shear_x": lambda: moved(shear=[shear, 0.0], center=[0, 0]),
        "shear_y": lambda: moved(shear=[0.0, shear], center=[0, 0]),
        "translate_x": lambda: moved(translate=[sign * round(150 / 331 * W * share), 0]),
        "translate_y": lambda: moved(translate=[0, sign * round(150 / 331 * H * share)]),
        "rotate": lambda: moved(angle=-sign * 30 * share),
        "brightness": lambda: tv.adjust_brightness(images, factor),
        "color": lambda: tv.adjust_saturation(images, factor),
        "contrast": lambda: tv.adjust_contrast(images, factor),
        "sharpness": lambda: tv.adjust_sharpness(images, factor),
        "posterize": lambda: tv.posterize(images, 8 - round(4 * share)),
        "solarize": lambda: tv.solarize(images, 255 * (1 - share)),
        "autocontrast": lambda: tv.autocontrast(images),
        "equalize": lambda: tv.equalize(images),
    }[name]()
    apart = (mine - expected.float()).abs()
    if OPERATIONS[name].apply is None:
        # Where the edge of the image crosses a pixel, torchvision weighs the fill twice.
        assert (apart > 0.6).float().mean() < 0.08
        assert (apart <= 0.6).all() or name not in ("translate_x", "translate_y")
    else:
        assert apart.max() <= 2


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n not in ("autocontrast", "equalize")])
def test_at_magnitude_zero_nothing_happens(name):
    images = images_of(3)
    mine = rand(images, draws(name, 1, 10), 0.0)
    if name == "solarize":  # the threshold 255 inverts pure white alone, as in torchvision
        assert torch.equal(mine[images < 255], images[images < 255])
    else:
        assert torch.equal(mine, images)


def test_each_image_goes_through_its_own_draw_alone():
    images = tiles(64, 24, 24)
    uniform = np.random.default_rng(3).random((64, 2 * COLUMNS), dtype=np.float32)
    together = rand(images, uniform, 9.0, ops=2)
    alone = [rand(images[i : i + 1], uniform[i : i + 1], 9.0, ops=2) for i in range(64)]
    # The last bit of a float sum may depend on the batch: one level after rounding, seldom.
    apart = (together.int() - torch.cat(alone).int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 1e-3


@pytest.mark.parametrize("size", [(8, 8, 1), (24, 40, 3)])
@pytest.mark.parametrize("kind", POLICIES)
def test_policies_keep_type_shape_and_their_input(kind, size):
    if size[2] == 1:
        images = torch.from_numpy(digits()[0][:200]).permute(0, 3, 1, 2).contiguous()
    else:
        images = tiles(200, *size[:2])
    before = images.clone()
    fields = {"policy_ops": 3, "policy_magnitude": 10.0} if kind == "rand" else {}
    uniform = np.random.default_rng(4).random((200, COLUMNS * fields.get("policy_ops", 1)), dtype=np.float32)
    changed = apply(kind, images, uniform, **fields)
    assert changed.dtype == torch.uint8
    assert changed.shape == images.shape
    assert torch.equal(images, before)
    assert (changed != images).flatten(1).any(1).float().mean() > (0.5 if size[2] == 3 else 0.3)


def test_trivial_augment_draws_all_operations_alike_and_reaches_both_ends():
    uniform = np.random.default_rng(5).random((20_000, COLUMNS), dtype=np.float32)
    drawn = np.bincount((uniform[:, 0] * len(OPERATIONS)).astype(int), minlength=14)
    assert len(OPERATIONS) == 14
    assert stats.chisquare(drawn).pvalue > 1e-3
    images = tiles(2, 60, 60)
    rotate = draws("rotate", 1, 2)
    rotate[:, 1] = (0.0, 0.9999)
    turned = apply("trivial", images, rotate)
    assert torch.equal(turned[0], images[0])
    expected = tv.rotate(images[1].float(), 135.0, interpolation=InterpolationMode.BILINEAR, fill=FILL.tolist())
    assert ((turned[1] - expected).abs() <= 0.6).float().mean() > 0.9  # all but the image's edge


def test_three_augment_draws_grey_solarised_or_blurred():
    images = tiles(30, 24, 24)
    uniform = np.zeros((30, COLUMNS), np.float32)
    uniform[:, 0] = np.repeat([0.1, 0.5, 0.9], 10)
    uniform[:, 1] = 0.5
    changed = apply("three", images, uniform)
    assert torch.equal(changed[:10], color.grayscale(images[:10]))
    assert torch.equal(changed[10:20], tv.solarize(images[10:20], 128))
    assert torch.equal(changed[20:], color.blur(images[20:], torch.full((10,), 1.05)))
