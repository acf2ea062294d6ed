"""`vitreous.explain`: classes, images, engines, and the map in the image's own pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError, DataError, UsageError
from vitreous.inspection.explanation import Explanation
from vitreous.inspection.maps import MAPS
from vitreous.inspection.maps.rollout import Rollout
from vitreous.model.config import ViTConfig
from vitreous.predictor import Classifier

CONFIG = ViTConfig(
    image_size=(32, 48), patch_size=8, num_classes=4, width=32, depth=2, heads=2, mlp_dim=64, init="timm"
)
FIT = PreprocessConfig(fit="pad", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1))
INFO = ModelInfo(("cat", "dog", "eel", "fox"), EvalPipeline((32, 48), 3, FIT), temperature=2.5)


def model_of() -> torch.nn.Module:
    torch.manual_seed(1)
    model = build(CONFIG).eval()
    with torch.no_grad():
        model.head.weight.normal_()
    return model


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier(model_of(), INFO, device="cpu", tta=True)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 50, 3), np.uint8))


@pytest.mark.parametrize("method", [kind.kind for kind in MAPS])
def test_every_method_explains_the_predicted_class(classifier, photo, method) -> None:
    found = vitreous.explain(classifier, photo, method=method)
    single = Classifier(classifier.model, INFO, "cpu").predict(photo)
    assert (found.label, found.method, found.grid) == (single.label, method, (4, 6))
    assert found.probability == pytest.approx(single.probability, abs=1e-5)
    assert INFO.classes[found.target] == found.label
    assert (found.patches.dtype, found.logits.shape) == (np.float32, (4,))
    assert found.image_map().shape == found.image_size == (70, 50)
    assert found.input_map().shape == found.input_size == (32, 48)


def test_a_class_is_given_by_name_or_number(classifier, photo) -> None:
    by_name, by_number = (vitreous.explain(classifier, photo, target) for target in ("eel", np.int64(2)))
    assert by_name.target == by_number.target == 2
    assert np.array_equal(by_name.patches, by_number.patches)
    assert not np.array_equal(by_name.patches, vitreous.explain(classifier, photo, "fox").patches)
    direct = MAPS[0]()(classifier.model, INFO.pipeline(photo)[None], torch.tensor([2])).values[0]
    assert np.array_equal(by_name.patches, direct.numpy())


def test_a_path_is_opened(classifier, photo, tmp_path) -> None:
    save_model(tmp_path / "model.safetensors", classifier.model, INFO)
    photo.save(tmp_path / "photo.png")
    found = vitreous.explain(tmp_path / "model.safetensors", tmp_path / "photo.png", "dog", Rollout(residual=0.2))
    expected = vitreous.explain(classifier, photo, "dog", "rollout", residual=0.2)
    np.testing.assert_allclose(found.patches, expected.patches, rtol=1e-5)
    assert found.name == str(tmp_path / "photo.png")
    assert not found.uses_class


@pytest.mark.parametrize(
    ("target", "words"),
    [("ell", "Did you mean 'eel'"), (4, "from 0 to 3"), (-1, "from 0 to 3"), (True, "target is True"), (1.0, "1.0")],
)
def test_a_class_that_does_not_exist_is_refused(classifier, photo, target, words) -> None:
    with pytest.raises(UsageError, match=words):
        vitreous.explain(classifier, photo, target)


def test_other_engines_and_unreadable_images_are_refused(photo, tmp_path) -> None:
    class OnOpenVino:  # what a classifier that asked for another engine says of itself
        model, info, device, engine = model_of(), INFO, torch.device("cpu"), "openvino"

    with pytest.raises(ConfigError, match='load the model with engine="torch"'):
        vitreous.explain(OnOpenVino(), photo)  # type: ignore[arg-type]
    with pytest.raises(DataError):
        vitreous.explain(Classifier(model_of(), INFO, "cpu"), tmp_path / "none.png")  # type: ignore[arg-type]


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("shape", [(97, 61), (40, 120), (64, 96), (17, 400)])
def test_a_place_of_the_image_is_found_in_the_input_by_the_pipeline_itself(fit: str, shape: tuple[int, int]) -> None:
    """An image whose red is its column and green its row, through the pipeline, says where each pixel came from."""
    H, W = shape
    pipeline = EvalPipeline((64, 96), 3, PreprocessConfig(fit=fit, crop_ratio=0.8, interpolation="bilinear"))  # type: ignore[arg-type]
    ramp = np.zeros((H, W, 3), np.uint8)
    ramp[..., 0] = (np.arange(W) + 0.5) / W * 250
    ramp[..., 1] = ((np.arange(H) + 0.5) / H * 250)[:, None]
    ramp[..., 2] = 255
    seen = pipeline.pixels(Image.fromarray(ramp)).astype(float)
    place = pipeline.placement(H, W)
    checked = 0
    for row in np.linspace(2, H - 2, 9):
        for column in np.linspace(2, W - 2, 9):
            r, q = place.to_input(row, column)
            if 1 < r < 63 and 1 < q < 95:
                red, green, inside = seen[int(r), int(q)]
                assert inside > 200  # no padding
                assert abs(red - column / W * 250) < 2 + 250 / W + 250 / place.resized[1]
                assert abs(green - row / H * 250) < 2 + 250 / H + 250 / place.resized[0]
                checked += 1
    assert checked > 3


def explanation(fit: str, image: tuple[int, int], patches: np.ndarray, ratio: float = 1.0) -> Explanation:
    pipeline = EvalPipeline((40, 40), 3, PreprocessConfig(fit=fit, crop_ratio=ratio))  # type: ignore[arg-type]
    return Explanation(
        patches.astype(np.float32), "random", 0, "a", 1.0, np.zeros(1, np.float32), "#0", image, (40, 40),
        pipeline.placement(*image),
    )  # fmt: skip


def test_outside_a_centre_crop_the_map_is_nan_and_inside_each_pixel_has_its_patch() -> None:
    patches = np.arange(4.0).reshape(2, 2)
    found = explanation("crop", (80, 160), patches).image_map(smooth=False)  # shown at half size: 40 columns cut off
    assert np.isnan(found[:, :40]).all()
    assert np.isnan(found[:, 120:]).all()
    assert np.array_equal(found[:, 40:120], np.kron(patches, np.ones((40, 40))))


def test_padding_is_cut_off_and_squashing_stretched_back() -> None:
    patches = np.array([[9.0, 9, 9, 9], [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]])
    padded = explanation("pad", (10, 20), patches).image_map(smooth=False)  # rows 10 to 30 of the input
    assert np.array_equal(padded, np.kron(patches[1:3], np.ones((5, 5))))
    squashed = explanation("squash", (8, 20), patches).image_map(smooth=False)
    assert np.array_equal(squashed, np.kron(patches, np.ones((2, 5))))


def test_smooth_maps_are_bilinear_as_torch_resizes() -> None:
    patches = np.random.default_rng(0).random((5, 4))
    found = explanation("squash", (40, 40), patches)
    grid = torch.from_numpy(patches)[None, None]
    expected = torch.nn.functional.interpolate(grid, (40, 40), mode="bilinear", align_corners=False)[0, 0]
    np.testing.assert_allclose(found.image_map(), expected, atol=1e-6)
    np.testing.assert_allclose(found.input_map(), expected, atol=1e-6)
