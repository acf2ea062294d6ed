"""Each corruption against its formula, written independently, or against the published distribution of its noise."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
import torch
from scipy import fft, ndimage, stats
from torch import Tensor
from torch.nn import functional as F

from data.photos import tiles
from vitreous.data.corruptions.apply import corrupt
from vitreous.data.corruptions.crystals import NUM_TEXTURES, frost_texture
from vitreous.data.corruptions.digital import _smooth_noise
from vitreous.data.corruptions.sampling import bilinear, line_blur

SEVERITIES = range(1, 6)
CIFAR, IMAGENET = 32, 96  # sides that use the parameters of CIFAR-10-C and of ImageNet-C


def flat(value: int, side: int, count: int = 16) -> Tensor:
    return torch.full((count, 3, side, side), value, dtype=torch.uint8)


def result(images: Tensor, name: str, severity: int) -> Tensor:
    return corrupt(images, name, severity, indices=range(len(images))).double()


@pytest.mark.parametrize(
    ("side", "sigmas"), [(CIFAR, (0.04, 0.06, 0.08, 0.09, 0.10)), (IMAGENET, (0.08, 0.12, 0.18, 0.26, 0.38))]
)
def test_gaussian_noise_has_the_published_deviation(side, sigmas):
    for severity, sigma in zip(SEVERITIES, sigmas, strict=True):
        noisy = (result(flat(128, side), "gaussian_noise", severity) + 0.5).flatten()  # + 0.5 undoes truncation
        inside = noisy[(noisy > 1) & (noisy < 255)]
        bounds = stats.truncnorm((1 - 128) / (255 * sigma), (255 - 128) / (255 * sigma), loc=128, scale=255 * sigma)
        assert abs(float(inside.mean()) - 128) < 255 * sigma * 4 / math.sqrt(len(inside))
        assert float(inside.std()) == pytest.approx(bounds.std(), rel=0.015)
        below = float((noisy < 1).double().mean())
        assert below == pytest.approx(stats.norm.cdf(1, 128, 255 * sigma), abs=0.004)


@pytest.mark.parametrize(("side", "photons"), [(CIFAR, (500, 250, 100, 75, 50)), (IMAGENET, (60, 25, 12, 5, 3))])
def test_shot_noise_is_a_poisson_count(side, photons):
    for severity, count in zip(SEVERITIES, photons, strict=True):
        noisy = result(flat(64, side), "shot_noise", severity).flatten()
        poisson = stats.poisson(64 / 255 * count)
        for level in (20, 40, 60, 63, 70, 90, 150, 254):
            largest = math.ceil((level + 1) * count / 255 - 1e-9) - 1  # count whose value is truncated to the level
            assert float((noisy <= level).double().mean()) == pytest.approx(poisson.cdf(largest), abs=0.01)


@pytest.mark.parametrize(
    ("side", "amounts"), [(CIFAR, (0.01, 0.02, 0.03, 0.05, 0.07)), (IMAGENET, (0.03, 0.06, 0.09, 0.17, 0.27))]
)
def test_impulse_noise_replaces_the_published_fraction(side, amounts):
    for severity, amount in zip(SEVERITIES, amounts, strict=True):
        noisy = result(flat(90, side), "impulse_noise", severity)
        for value, share in ((0, amount / 2), (255, amount / 2), (90, 1 - amount)):
            seen = float((noisy == value).double().mean())
            assert abs(seen - share) < 4 * math.sqrt(share * (1 - share) / noisy.numel())


@pytest.mark.parametrize(
    ("side", "disks"),
    [
        (CIFAR, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
        (IMAGENET, ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))),
    ],
)
def test_defocus_blur_is_a_convolution_with_a_smoothed_disk(side, disks):
    images = tiles(4, side, side + 8)
    for severity, (radius, sigma) in zip(SEVERITIES, disks, strict=True):
        reach = 14
        y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
        disk = (x**2 + y**2 <= radius**2).astype(np.float64)
        half = 1 if radius <= 8 else 2
        gaussian = np.exp(-(np.mgrid[-half : half + 1, -half : half + 1] ** 2).sum(axis=0) / (2 * sigma**2))
        kernel = ndimage.convolve(disk / disk.sum(), gaussian / gaussian.sum(), mode="constant")
        padded = F.pad(images.double(), (reach,) * 4, mode="reflect")
        weight = torch.from_numpy(kernel).expand(3, 1, *kernel.shape)
        expected = F.conv2d(padded, weight, groups=3)
        assert float((result(images, "defocus_blur", severity) + 0.5 - expected).abs().max()) < 0.51


def test_glass_blur_at_severity_1_of_cifar_takes_one_of_four_neighbours():
    """The blur of 0.05 pixels does nothing, and one pass steps by -1 or 0 in each direction, with equal odds."""
    rows = torch.arange(32, dtype=torch.uint8)[:, None].expand(32, 32) * 4
    images = torch.stack([rows, rows.T, rows])[None].expand(64, 3, 32, 32).contiguous()
    steps = (result(images, "glass_blur", 1) - images)[:, :2] / 4
    assert set(steps.unique().tolist()) == {-1.0, 0.0}
    inside = steps[:, :, 2:-1, 2:-1] * -2 + 0.0
    assert float(inside.mean()) == pytest.approx(1, abs=0.02)
    assert not steps[:, :, :2].any()
    assert not steps[..., :2].any()
    product = steps[:, 0, 2:, 2:] * steps[:, 1, 2:, 2:]
    assert float(product.mean()) == pytest.approx(0.25, abs=0.01)  # the two directions are independent


@pytest.mark.parametrize("angle", [-45, -20, 0, 33, 90, -135])
def test_line_blur_spreads_a_point_along_its_angle(angle):
    radius, sigma = 15, 8.0
    image = np.zeros((1, 101, 101))
    image[0, 50, 50] = 1000
    spread = line_blur(image, radius, sigma, angle)[0]
    assert spread.sum() == pytest.approx(1000, rel=1e-5)
    y, x = np.nonzero(spread)
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    mean = (weights * np.arange(2 * radius + 1)).sum() / weights.sum()  # of the half Gaussian
    moved = np.array([(spread * np.mgrid[:101, :101][axis]).sum() / spread.sum() - 50 for axis in (0, 1)])
    assert moved == pytest.approx(
        -mean * np.array([math.sin(math.radians(angle)), math.cos(math.radians(angle))]), abs=0.1
    )
    across = (x - 50) * math.sin(math.radians(angle)) - (y - 50) * math.cos(math.radians(angle))
    assert np.abs(across).max() < 0.8


@pytest.mark.parametrize(("side", "limit", "step"), [(CIFAR, 1.26, 0.01), (IMAGENET, 1.31, 0.03)])
def test_zoom_blur_averages_enlargements_by_scipy(side, limit, step):
    images = tiles(2, side, side)
    factors = np.arange(1, limit, step)
    total = images.double().numpy().copy()
    for factor in factors:
        crop = math.ceil(side / factor)
        top = (side - crop) // 2
        part = images[..., top : top + crop, top : top + crop].double().numpy()
        zoomed = ndimage.zoom(part, (1, 1, factor, factor), order=1)
        cut = (zoomed.shape[-1] - side) // 2
        total += zoomed[..., cut : cut + side, cut : cut + side]
    expected = torch.from_numpy(total / (len(factors) + 1))
    assert float((result(images, "zoom_blur", 5) + 0.5 - expected).abs().max()) < 0.51


@pytest.mark.parametrize("side", [64, 128])
def test_fog_on_a_flat_image_spans_the_range_of_the_formula(side):
    """The fractal has minimum 0 and maximum 1: v (v + 255 w p) / (v + 255 w) for value v and weight w."""
    for severity, weight in zip(
        SEVERITIES, (0.2, 0.5, 0.75, 1, 1.5) if side == 64 else (1.5, 2, 2.5, 2.5, 3), strict=True
    ):
        foggy = result(flat(200, side, 4), "fog", severity)
        assert foggy.amax(dim=(1, 2, 3)).sub(200).abs().max() <= 1
        assert foggy.amin(dim=(1, 2, 3)).sub(200 * 200 / (200 + 255 * weight)).abs().max() <= 1
        assert torch.equal(foggy[:, 0], foggy[:, 2])


def test_fog_roughness_falls_with_the_decay():
    """Each halving of the scale divides the noise by decay^2, so severity 1 (decay 2) is smoother than 5 (1.4)."""
    smooth, rough = (result(flat(255, 128, 8), "fog", severity) for severity in (1, 5))
    slope = [float(foggy.diff(dim=3).abs().mean() / foggy.std()) for foggy in (smooth, rough)]
    assert slope[1] > 1.8 * slope[0]


# Mean and standard deviation of red, green and blue of the authors' five photographs of frost, in grey levels.
PHOTOGRAPHS = (
    ((78, 149, 166), (27, 16, 15)),
    ((201, 205, 214), (21, 22, 23)),
    ((201, 205, 214), (21, 22, 23)),
    ((138, 153, 165), (28, 28, 30)),
    ((112, 123, 135), (44, 43, 42)),
)


@pytest.mark.parametrize("number", range(NUM_TEXTURES))
@pytest.mark.parametrize(("side", "reduction"), [(512, 1), (128, 5)])
def test_textures_of_frost_have_the_statistics_of_the_photographs(number, side, reduction):
    texture = frost_texture(number, side, reduction).astype(np.float64)
    mean, std = PHOTOGRAPHS[number]
    assert texture.mean(axis=(1, 2)) == pytest.approx(np.array(mean), abs=2)
    assert texture.std(axis=(1, 2)) == pytest.approx(np.array(std), rel=0.1)


def test_frost_mixes_with_the_published_weights():
    mean = np.array([photograph[0] for photograph in PHOTOGRAPHS]).mean(axis=0)
    frosted = result(flat(20, 128, 200), "frost", 5).mean(dim=(0, 2, 3)).numpy()
    assert frosted == pytest.approx(0.6 * 20 + 0.75 * mean - 0.5, abs=8)  # 8: the choice among five is random


def test_snow_on_a_flat_image_whitens_and_adds_flakes():
    """Without flakes a value v becomes k v + (1 - k) max(v, 1.5 v + 127.5)."""
    for side, kept in ((CIFAR, 0.95), (IMAGENET, 0.8)):
        snowy = result(flat(40, side, 8), "snow", 1)
        assert float(snowy.min()) == math.floor(kept * 40 + (1 - kept) * (60 + 127.5) + 1e-3)
        flakes = (snowy > snowy.min() + 3).double().mean()
        assert 0.01 < float(flakes) < 0.9
        assert torch.equal(snowy, snowy.flip(2, 3))  # the flakes are added to their copy turned by 180 degrees


@pytest.mark.parametrize(
    ("side", "added"), [(CIFAR, (0.05, 0.1, 0.15, 0.2, 0.3)), (IMAGENET, (0.1, 0.2, 0.3, 0.4, 0.5))]
)
def test_brightness_raises_the_value_of_hsv(side, added):
    images = tiles(1, side, side)
    for severity, amount in zip(SEVERITIES, added, strict=True):
        brighter = result(images, "brightness", severity)[0].permute(1, 2, 0).reshape(-1, 3)
        for pixel, seen in list(
            zip(images[0].permute(1, 2, 0).reshape(-1, 3).tolist(), brighter.tolist(), strict=True)
        )[::7]:
            hue, saturation, value = colorsys.rgb_to_hsv(*(part / 255 for part in pixel))
            expected = colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1))
            assert np.abs(np.array(seen) + 0.5 - 255 * np.array(expected)).max() < 0.51


@pytest.mark.parametrize(
    ("side", "factors"), [(CIFAR, (0.75, 0.5, 0.4, 0.3, 0.15)), (IMAGENET, (0.4, 0.3, 0.2, 0.1, 0.05))]
)
def test_contrast_scales_the_difference_from_the_mean(side, factors):
    images = tiles(4, side, side + 3)
    for severity, factor in zip(SEVERITIES, factors, strict=True):
        mean = images.double().mean(dim=(2, 3), keepdim=True)
        expected = torch.lerp(mean, images.double(), factor)
        assert float((result(images, "contrast", severity) + 0.5 - expected).abs().max()) < 0.51


def test_elastic_transform_at_severity_1_of_cifar_is_affine_within_the_published_jitter():
    rows = (torch.arange(64, dtype=torch.uint8) * 3)[:, None].expand(64, 64)
    images = torch.stack([rows.T, rows, rows])[None].expand(8, 3, 64, 64).contiguous()
    moved = result(images, "elastic_transform", 1) + 0.5
    y, x = np.mgrid[24:40, 24:40]
    grid = np.column_stack([x.ravel(), y.ravel(), np.ones(x.size)])
    jitter = 0.08 * 64
    for image in moved[:, :2, 24:40, 24:40].numpy() / 3:
        map_, residual, *_ = np.linalg.lstsq(grid, image.reshape(2, -1).T, rcond=None)
        assert np.sqrt(residual / x.size).max() < 0.15  # pixels: the truncation of values is 1/3 pixel wide
        corners = np.array([[53, 53, 1], [53, 11, 1], [11, 11, 1]])  # center 32, a third of the side (21) away
        linear = map_[:2].T
        shift = np.linalg.solve(linear, (corners @ map_ - corners[:, :2]).T)  # displacement of the output point
        assert np.abs(shift).max() < jitter + 0.6
        assert np.abs(shift).max() > 0.2 * jitter


ELASTIC = {  # of the side: amplitude, smoothness, jitter
    64: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    112: ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
}


def elastic(image: np.ndarray, amplitude: float, smoothness: float, jitter: float, seed: int) -> np.ndarray:
    """Return a grey image (H, W) after an affine map and a displacement, each with its own interpolation."""
    side = len(image)
    random = np.random.default_rng(seed)
    third = side // 3
    points = side // 2 + third * np.array([[1.0, 1], [1, -1], [-1, -1]])
    moved = points + random.uniform(-jitter, jitter, size=(3, 2))
    inverse = np.linalg.solve(np.column_stack([moved, np.ones(3)]), points)
    inverse = inverse[:, ::-1]  # of x and y; images are indexed by y and x
    image = ndimage.affine_transform(image, inverse[1::-1].T, inverse[2], order=1, mode="mirror")
    move = random.uniform(-1, 1, size=(2, side, side))
    if amplitude:
        move = [amplitude * ndimage.gaussian_filter(one, smoothness, mode="reflect", truncate=3) for one in move]
        image = ndimage.map_coordinates(image, np.mgrid[:side, :side] + np.array(move), order=1, mode="reflect")
    return image


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(("side", "over"), [(64, 1), (112, 244 / 224)])
def test_elastic_transform_changes_images_as_much_as_the_published_one(side, over, severity):
    images = tiles(160, side, side)[:, :1].contiguous()
    options = [value * over * side for value in ELASTIC[side][severity - 1]]
    expected = np.stack([elastic(one[0].double().numpy(), *options, seed) for seed, one in enumerate(images)])
    change = (result(images, "elastic_transform", severity) - images).square().mean().sqrt()
    assert float(change) == pytest.approx(np.sqrt(np.mean((expected - images[:, 0].numpy()) ** 2)), rel=0.1)


@pytest.mark.parametrize(("height", "width", "sigma"), [(40, 33, 1.2), (33, 70, 12.0), (64, 64, 49.0)])
def test_displacements_equal_scipys_gaussian_filter(height, width, sigma):
    uniform = np.random.default_rng(3).uniform(-1, 1, size=(height, width))
    expected = ndimage.gaussian_filter(uniform, sigma, mode="reflect", truncate=3)
    seen = _smooth_noise(np.random.default_rng(3), height, width, sigma)
    assert np.abs(seen - expected).max() < 2e-4


def test_bilinear_sampling_equals_scipys_with_a_mirrored_border():
    images = tiles(2, 40, 50).numpy()
    y, x = np.random.default_rng(0).uniform(-90, 130, size=(2, 2, 40, 50))
    seen = bilinear(images, y, x)
    for b in range(2):
        for c in range(3):
            expected = ndimage.map_coordinates(images[b, c].astype(np.float64), [y[b], x[b]], order=1, mode="mirror")
            assert np.abs(seen[b, c] - expected).max() < 1e-3


@pytest.mark.parametrize(("severity", "block"), [(2, 2), (5, 4)])
def test_pixelate_is_the_mean_of_blocks(severity, block):
    images = tiles(3, 96, 104)
    expected = F.avg_pool2d(images.double(), block).repeat_interleave(block, 2).repeat_interleave(block, 3)
    assert float((result(images, "pixelate", severity) - expected).abs().max()) <= 1


# Quantisation of luma, annex K.1 of the JPEG standard (ITU-T T.81).
LUMA = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)


@pytest.mark.parametrize(("side", "qualities"), [(CIFAR, (80, 65, 58, 50, 40)), (IMAGENET, (25, 18, 15, 10, 7))])
def test_jpeg_compression_quantises_the_cosine_transform(side, qualities):
    image = tiles(1, side, side)[:, 1:2].contiguous()
    blocks = image[0, 0].double().numpy().reshape(side // 8, 8, side // 8, 8) - 128
    for severity, quality in zip(SEVERITIES, qualities, strict=True):
        percent = 5000 // quality if quality < 50 else 200 - 2 * quality
        table = np.clip((LUMA * percent + 50) // 100, 1, 255)[:, None, :]
        coefficients = np.rint(fft.dctn(blocks, axes=(1, 3), norm="ortho") / table) * table
        expected = np.clip(fft.idctn(coefficients, axes=(1, 3), norm="ortho") + 128, 0, 255).reshape(side, side)
        seen = result(image, "jpeg_compression", severity)[0, 0].numpy()
        assert np.abs(seen - expected).mean() < 0.5  # libjpeg's transform works on whole numbers
        assert np.quantile(np.abs(seen - expected), 0.95) <= 2


def test_jpeg_compression_of_a_colourless_image_equals_that_of_its_luma():
    image = tiles(1, 64, 64)[:, 1:2].contiguous()
    coloured, grey = (result(one, "jpeg_compression", 5) for one in (image.expand(1, 3, 64, 64).contiguous(), image))
    assert float((coloured - grey).abs().max()) <= 1
