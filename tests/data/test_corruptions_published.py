"""Corruptions against `imagecorruptions`, a port of the authors' code; skipped where it is not installed.

It has the parameters of ImageNet-C only, and an elastic transform of its own, which is left out here. Kinds without
random numbers are compared pixel by pixel, the others by the mean and the root mean square of the change over many
images.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data.photos import tiles
from vitreous.data.corruptions.apply import corrupt
from vitreous.data.corruptions.sampling import line_blur

SIDE, COUNT = 160, 24


@pytest.fixture(scope="module")
def published() -> Any:
    """The module of the port, adapted to current versions of numpy and scikit-image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports pkg_resources
        module = pytest.importorskip("imagecorruptions.corruptions", reason="imagecorruptions is not installed")
        from skimage.filters import gaussian
    patch = pytest.MonkeyPatch()
    patch.setattr(np, "float_", np.float64, raising=False)
    patch.setattr(module, "gaussian", lambda image, *args, multichannel=False, **options: gaussian(
        image, *args, channel_axis=-1 if multichannel else None, **options))  # fmt: skip
    yield module
    patch.undo()


def reference(published: Any, name: str, images: Tensor, severity: int) -> Tensor:
    from PIL import Image

    function = getattr(published, name)
    results = []
    for number, image in enumerate(images):
        np.random.seed(number)  # the port uses the global generator
        results.append(np.uint8(function(Image.fromarray(image.permute(1, 2, 0).numpy()), severity)))
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2)


# Largest difference of a pixel. Truncation turns a rounding error of either side into 1 level.
EXACT = {"defocus_blur": 1, "brightness": 1, "contrast": 1, "jpeg_compression": 0}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("severity", range(1, 6))
def test_kinds_without_random_numbers_equal_the_authors_pixel_by_pixel(published, name, severity):
    images = tiles(4, SIDE, SIDE)
    seen = corrupt(images, name, severity, indices=range(4)).int()
    difference = (seen - reference(published, name, images, severity).int()).abs()
    brightened = name == "defocus_blur" and severity >= 4  # by 1 %: the sum of the port's weights is 1.01
    assert int(difference.max()) <= (4 if brightened else EXACT[name])


@pytest.mark.parametrize("angle", [-45, -17.3, 0, 30, 45])
def test_motion_blur_equals_the_authors(published, angle):
    image = tiles(1, SIDE, SIDE)[0].double().numpy()
    expected = published._motion_blur(image.transpose(1, 2, 0), 15, 8, angle).transpose(2, 0, 1)
    inner = (slice(None), slice(32, -32), slice(32, -32))  # the port repeats the pixel beside the edge
    assert np.abs(line_blur(image, 15, 8, angle) - expected)[inner].max() < 1e-3


# Relative tolerance of the root mean square of the change. Frost draws one of five textures for each image.
SIMILAR = {
    "gaussian_noise": 0.02, "shot_noise": 0.02, "impulse_noise": 0.02, "glass_blur": 0.05, "motion_blur": 0.1,
    "zoom_blur": 0.1, "snow": 0.1, "frost": 0.25, "fog": 0.15,
}  # fmt: skip


@pytest.mark.parametrize("name", SIMILAR)
@pytest.mark.parametrize("severity", range(1, 6))
def test_random_kinds_change_images_as_much_as_the_authors(published, name, severity):
    images = tiles(COUNT, SIDE, SIDE)
    seen = corrupt(images, name, severity, indices=range(COUNT)).double() - images
    expected = reference(published, name, images, severity).double() - images
    assert float(seen.square().mean().sqrt()) == pytest.approx(
        float(expected.square().mean().sqrt()), rel=SIMILAR[name]
    )
    scale = float(expected.square().mean().sqrt())
    assert abs(float(seen.mean() - expected.mean())) < max(1.5, SIMILAR[name] * scale)
