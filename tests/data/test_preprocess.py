"""The evaluation pipeline, pixel for pixel against torchvision's transforms and closed forms."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from vitreous.data.config import PreprocessConfig
from vitreous.data.images.reading import read_image
from vitreous.data.preprocess import EvalPipeline, channel_statistics
from vitreous.errors import CheckpointError, ConfigError

FILTERS = {
    "bilinear": transforms.InterpolationMode.BILINEAR,
    "bicubic": transforms.InterpolationMode.BICUBIC,
    "lanczos": transforms.InterpolationMode.LANCZOS,
    "nearest": transforms.InterpolationMode.NEAREST,
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def images(flowers: Path, photos: Path) -> list[Image.Image]:
    paths = sorted(flowers.glob("val/*/*.jpg"))[::60] + sorted(photos.glob("*.*"))
    return [read_image(path) for path in paths]


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("size", "ratio"), [(224, 0.875), (64, 1.0), (37, 0.8)])
def test_crop_is_torchvisions_resize_and_center_crop(images, size, ratio, interpolation):
    pipeline = EvalPipeline((size, size), 3, PreprocessConfig(crop_ratio=ratio, interpolation=interpolation))
    reference = transforms.Compose(
        [transforms.Resize(int(size / ratio), FILTERS[interpolation]), transforms.CenterCrop(size)]
    )
    for image in images:
        assert (pipeline.pixels(image) == np.asarray(reference(image))).all()


def test_squash_is_torchvisions_resize_to_both_sides(images):
    pipeline = EvalPipeline((48, 80), 3, PreprocessConfig(fit="squash"))
    reference = transforms.Resize((48, 80), FILTERS["bicubic"])
    for image in images:
        assert (pipeline.pixels(image) == np.asarray(reference(image))).all()


def test_the_tensor_is_torchvisions_to_bits(images):
    pipeline = EvalPipeline((64, 64), 3, PreprocessConfig(mean=MEAN, std=STD))
    reference = transforms.Compose(
        [
            transforms.Resize(64, FILTERS["bicubic"]),
            transforms.CenterCrop(64),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    for image in images:
        assert torch.equal(pipeline(image), reference(image))


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("size", [(32, 96), (96, 32), (1, 1), (50, 50)])
def test_rectangles_and_extreme_images_have_the_requested_shape(images, fit, size):
    pipeline = EvalPipeline(size, 3, PreprocessConfig(fit=fit, crop_ratio=0.9))
    for shape in ((1, 1), (1, 3000), (3000, 1), (7, 5)):
        images = [*images, Image.new("RGB", shape, "teal")]
    for image in images:
        assert pipeline.pixels(image).shape == (*size, 3)


def test_a_wide_crop_keeps_the_whole_width():
    """An image of columns 0..63, cut to 16 x 64: rows go, columns stay."""
    ramp = Image.fromarray(np.tile(np.arange(64, dtype=np.uint8), (64, 1)))
    pixels = EvalPipeline((16, 64), 1, PreprocessConfig()).pixels(ramp)
    assert (pixels[..., 0] == np.arange(64)).all()


def test_pad_shows_the_whole_image_on_the_mean_colour():
    image = Image.new("RGB", (100, 50), (10, 20, 30))
    pixels = EvalPipeline((40, 40), 3, PreprocessConfig(fit="pad", mean=(0.2, 0.4, 0.6), std=STD)).pixels(image)
    assert (pixels[10:30] == [10, 20, 30]).all()
    assert (pixels[:10] == [51, 102, 153]).all()
    assert (pixels[30:] == [51, 102, 153]).all()
    grey = EvalPipeline((40, 40), 1, PreprocessConfig(fit="pad", mean=(0.2,), std=(1.0,))).pixels(image)
    assert set(np.unique(grey)) == {51, 18}  # 0.299 * 10 + 0.587 * 20 + 0.114 * 30


def test_a_strip_does_not_fill_the_memory():
    start = time.perf_counter()
    pipeline = EvalPipeline((224, 224), 3, PreprocessConfig())
    for shape in ((1, 60_000), (60_000, 1)):
        assert pipeline.pixels(Image.new("RGB", shape, "teal"))[0, 0].tolist() == [0, 128, 128]
    assert time.perf_counter() - start < 5  # resized whole, it would be 3 billion pixels


def test_grey_is_itu_601_and_reading_grey_as_rgb_loses_nothing(images):
    pipeline = EvalPipeline((32, 32), 1, PreprocessConfig(fit="squash"))
    for image in images:
        grey = image.convert("L")
        assert (pipeline.pixels(image) == pipeline.pixels(grey)).all()
        assert (pipeline.pixels(read_image(np.asarray(grey))) == pipeline.pixels(grey)).all()


def test_other_modes_are_converted_as_decoding_does(images):
    clear = images[0].convert("RGBA")
    clear.putalpha(0)
    pipeline = EvalPipeline((32, 32), 3, PreprocessConfig())
    assert pipeline.pixels(clear).min() == 255


def test_small_images_pass_through_untouched():
    digits = np.arange(64, dtype=np.uint8).reshape(8, 8)
    pixels = EvalPipeline((8, 8), 1, PreprocessConfig()).pixels(Image.fromarray(digits))
    assert (pixels[..., 0] == digits).all()


def test_normalise_is_the_formula_and_leaves_its_input():
    batch = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5).to(torch.uint8)
    before = batch.clone()
    result = EvalPipeline((4, 5), 3, PreprocessConfig(mean=MEAN, std=STD)).normalise(batch)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (MEAN, STD))
    torch.testing.assert_close(result, ((batch.double() / 255 - mean) / std).float(), rtol=1e-6, atol=1e-6)
    assert result.dtype == torch.float32
    assert torch.equal(batch, before)
    floats = batch.float()
    assert torch.equal(EvalPipeline((4, 5), 3, PreprocessConfig(mean=MEAN, std=STD)).normalise(floats), result)
    assert torch.equal(floats, before.float())
    same = EvalPipeline((4, 5), 3, PreprocessConfig(mean=MEAN, std=STD)).normalise_(floats)
    assert same is floats
    torch.testing.assert_close(floats, result, rtol=1e-6, atol=1e-6)


def test_normalise_says_what_does_not_fit():
    with pytest.raises(ConfigError, match="mean and std are not known"):
        EvalPipeline((4, 4), 3, PreprocessConfig()).normalise(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(ConfigError, match=r"\(1, 1, 4, 4\) does not fit \(B, 3, H, W\)"):
        EvalPipeline((4, 4), 3, PreprocessConfig()).normalise(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(ConfigError, match=r"\(1, 1, 4, 4\) does not fit \(B, 3, H, W\)"):
        EvalPipeline((4, 4), 3, PreprocessConfig()).normalise_(torch.zeros(1, 1, 4, 4))


def test_statistics_are_numpys(images):
    pipeline = EvalPipeline((32, 32), 3, PreprocessConfig())
    stack = np.stack([pipeline.pixels(image) for image in images])
    mean, std = channel_statistics(stack[n : n + 3] for n in range(0, len(stack), 3))
    np.testing.assert_allclose(mean, stack.mean((0, 1, 2)) / 255, rtol=1e-12)
    np.testing.assert_allclose(std, stack.std((0, 1, 2)) / 255, rtol=1e-9)
    assert channel_statistics(stack) == (mean, std)
    measured = pipeline.with_measured_statistics(images)
    assert (measured.config.mean, measured.config.std) == (mean, std)
    normal = measured.normalise(torch.from_numpy(stack).permute(0, 3, 1, 2))
    assert normal.mean((0, 2, 3)).abs().max() < 1e-5
    assert (normal.std((0, 2, 3)) - 1).abs().max() < 1e-3


def test_given_statistics_are_kept_and_bars_are_not_measured():
    white = [Image.new("RGB", (100, 10), "white")] * 3
    measured = EvalPipeline((20, 20), 3, PreprocessConfig(fit="pad", std=STD)).with_measured_statistics(white)
    assert measured.config.mean == (1.0, 1.0, 1.0)
    assert measured.config.std == STD
    assert measured.config.fit == "pad"


def test_statistics_of_nothing_and_of_a_constant():
    assert channel_statistics([np.full((1, 4, 4, 1), 255, np.uint8)]) == ((1.0,), (1 / 255,))
    with pytest.raises(ConfigError, match="no images"):
        channel_statistics([])


def test_it_survives_json(images):
    pipeline = EvalPipeline((32, 48), 3, PreprocessConfig("pad", 0.9, "lanczos", MEAN, STD))
    restored = EvalPipeline.from_dict(json.loads(json.dumps(pipeline.to_dict())))
    assert restored == pipeline
    assert torch.equal(restored(images[0]), pipeline(images[0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blur": 3, "zoom": 1}, "unknown blur, zoom"),
        ({"size": None}, "is invalid"),
        ({"size": [32]}, "is invalid"),
        ({"size": [0, 3]}, "size is"),
        ({"channels": 4}, "channels is 4"),
        ({"mean": [0.5]}, "mean has 1 values for 3 channels"),
        ({"std": [0.0, 1, 1]}, "std is"),
        ({"fit": "stretch"}, "fit is 'stretch', it must be crop, squash or pad"),
        ({"interpolation": "cubic"}, "interpolation is 'cubic'"),
        ({"mean": "abc"}, "is invalid"),
    ],
)
def test_an_invalid_stored_pipeline_is_refused(change, message):
    stored = EvalPipeline((32, 32), 3, PreprocessConfig(mean=MEAN, std=STD)).to_dict()
    with pytest.raises(CheckpointError, match=message):
        EvalPipeline.from_dict({**stored, **change})


def test_missing_keys_are_named():
    with pytest.raises(CheckpointError, match="missing channels, crop_ratio, fit, interpolation, mean, std"):
        EvalPipeline.from_dict({"size": [3, 3]})


def test_all_problems_come_in_one_error():
    with pytest.raises(ConfigError, match=r"size is .*channels is 2.*mean has 3 values for 2 channels"):
        EvalPipeline((0, 4), 2, PreprocessConfig(mean=MEAN))
