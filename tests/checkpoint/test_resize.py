"""Loading at another image or patch size: equal to the model's own resampling and to timm's, and recorded."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
import timm
import torch
from timm.layers import resample_abs_pos_embed, resample_patch_embed

import vitreous
from vitreous.accelerate.model import build, create
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint
from vitreous.checkpoint.resize import resample_patch_kernel, resize_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError
from vitreous.model.config import PARTS, ViTConfig
from vitreous.model.part import option_types
from vitreous.model.vit import VisionTransformer

POSITIONS = [kind.kind for kind in PARTS["position"]]


def small(**overrides) -> VisionTransformer:
    torch.manual_seed(0)
    model = create(
        "mu/8", **{"image_size": (32, 48), "width": 32, "num_classes": 3, "head": {"zero": False}} | overrides
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture
def file(tmp_path):
    model = small()
    half = PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(tmp_path / "m.safetensors", model, ModelInfo(("a", "b", "c"), EvalPipeline((32, 48), 3, half)))
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("method", ["google", "timm", "huggingface", "torchvision", "dinov2"])
def test_resampling_at_loading_equals_resampling_in_forward(position, method):
    (kind,) = (each for each in PARTS["position"] if each.kind == position)
    options = {"resample": method} if "resample" in option_types(kind) else {}
    if position == "learned":
        options["prefix"] = "all"
    elif "absolute" in option_types(kind):  # beside a position in attention
        options["absolute"] = "cls"
    model = small(position={"kind": position, **options}, registers=2)
    config, state, record = resize_model(model.config, model.state_dict(), (64, 40), None, None)
    other = build(config).eval()
    other.load_state_dict(state)
    images = torch.randn(2, 3, 64, 40)
    with torch.inference_mode():
        torch.testing.assert_close(other(images), model(images), rtol=1e-5, atol=1e-6)
    assert record == {"positions": {"from": [4, 6], "to": [8, 5], "method": method if options else position}}


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (16, 16), (24, 40)])
def test_positions_equal_timm_and_google(size):
    model = small(image_size=32, registers=2, position={"prefix": "all"})
    grid = (size[0] // 8, size[1] // 8)
    wanted = resample_abs_pos_embed(model.pos_embed, list(grid), [4, 4], num_prefix_tokens=3)
    _, state, _ = resize_model(model.config, model.state_dict(), size, None, "timm")
    torch.testing.assert_close(state["pos_embed"], wanted)
    _, state, _ = resize_model(model.config, model.state_dict(), size, None, "google")
    table = model.pos_embed[0, 3:].detach().numpy().reshape(4, 4, -1)
    zoomed = scipy.ndimage.zoom(table, (grid[0] / 4, grid[1] / 4, 1), order=1)
    np.testing.assert_allclose(state["pos_embed"][0, 3:].numpy().reshape(zoomed.shape), zoomed, atol=1e-6)
    assert torch.equal(state["pos_embed"][:, :3], model.pos_embed[:, :3])


@pytest.mark.parametrize("size", [(16, 16), (4, 4), (8, 12), (7, 8)])
def test_patch_kernels_equal_timm(size):
    kernel = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(
        resample_patch_kernel(kernel, size), resample_patch_embed(kernel, list(size)), rtol=1e-4, atol=1e-4
    )


def test_resized_kernel_on_resized_patch_gives_the_same_token():
    """The purpose of FlexiViT's pseudo-inverse."""
    kernel, patch = torch.randn(5, 3, 8, 8).double(), torch.randn(1, 3, 8, 8).double()
    larger = torch.nn.functional.interpolate(patch, (16, 16), mode="bicubic", antialias=True)
    before = (kernel * patch).sum((1, 2, 3))
    after = (resample_patch_kernel(kernel, (16, 16)) * larger).sum((1, 2, 3))
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)


def test_loading_at_another_size_is_recorded(file, photos, tmp_path):
    image = next(iter(sorted(photos.glob("*.png"))))
    classifier = vitreous.load(file, device="cpu", image_size=(480, 640))
    assert classifier.model.config.image_size == (480, 640)
    assert classifier.pipeline.size == (480, 640)
    assert classifier.predict(image).label in "abc"
    other = vitreous.load(file, device="cpu", image_size=64, resample="torchvision")
    assert other.model.config.position.resample == "torchvision"
    assert other.info.provenance["resampled"]["positions"] == {"from": [4, 6], "to": [8, 8], "method": "torchvision"}
    save_model(tmp_path / "again.safetensors", other.model, other.info)
    model, info = load_model(tmp_path / "again.safetensors")
    assert (model.config.position.resample, model.config.image_size) == ("torchvision", 64)
    assert info.provenance["resampled"] == other.info.provenance["resampled"]
    with pytest.raises(ConfigError, match=r"not a multiple of patch .* use an image size of 40 or 48"):
        vitreous.load(file, image_size=44)


def test_another_patch_size(file):
    model, info = open_checkpoint(file, OpenOptions(patch_size=16, image_size=(64, 96)))
    original, _ = open_checkpoint(file)
    assert model.config.grid == original.config.grid
    assert info.provenance["resampled"] == {"patches": {"from": [8, 8], "to": [16, 16]}}
    small_image = torch.randn(1, 3, 32, 48)
    with torch.inference_mode():
        twice = torch.nn.functional.interpolate(small_image, (64, 96), mode="bicubic", antialias=True)
        assert float((model(twice) - original(small_image)).abs().max()) < 1.0  # patches do not resize across borders
    with pytest.raises(ConfigError, match="resnet stem"):
        resize_model(create("R26+S/32", depth=1).config, {}, None, 16, None)


def test_source_family_chooses_the_interpolation(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", img_size=48, patch_size=8, depth=1, num_classes=3)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    ours, _ = open_checkpoint(tmp_path / "m.pth", OpenOptions(image_size=(64, 80)))
    assert ours.config.position.resample == "timm"
    model.set_input_size((64, 80))
    images = torch.randn(1, 3, 64, 80)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), model.eval()(images), rtol=1e-4, atol=1e-5)


def test_a_method_without_anything_to_resample_is_refused():
    config = ViTConfig(image_size=32, patch_size=8, width=16, depth=1, heads=2, mlp_dim=32, position="rope-2d")
    with pytest.raises(ConfigError, match="position rope-2d has nothing to resample: leave --resample out"):
        resize_model(config, {}, 64, None, "timm")
