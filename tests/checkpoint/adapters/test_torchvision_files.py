"""torchvision's models, read and written, compared with torchvision."""

from __future__ import annotations

import pytest
import torch
from reference_models import BOUND, difference, random_images, randomise
from torchvision import models
from torchvision.models import VisionTransformer

from vitreous.accelerate.model import create
from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint, open_with_details
from vitreous.errors import CheckpointError, UsageError

SMALL = {"image_size": 48, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 128, "mlp_dim": 96}


@pytest.mark.parametrize("arguments", [{}, {"representation_size": 40}, {"num_classes": 3}], ids=str)
def test_round_trip_and_logits(tmp_path, arguments):
    theirs = randomise(VisionTransformer(**SMALL, **arguments))
    torch.save(theirs.state_dict(), tmp_path / "in.pth")
    images = random_images(2, 48)
    ours, info = open_checkpoint(tmp_path / "in.pth")
    assert ours.config.norm_eps == 1e-6
    assert (info.pipeline.config.crop_ratio, info.pipeline.config.interpolation) == (0.875, "bilinear")
    with torch.inference_mode():
        assert difference(theirs(images), ours(images)) <= BOUND
    convert(tmp_path / "in.pth", tmp_path / "own.safetensors", "vitreous")
    done = convert(tmp_path / "own.safetensors", tmp_path / "out.pth", "torchvision")
    assert [each.by.split()[0] for each in done.comparisons] == ["vitreous", "torchvision"]
    before, after = (torch.load(tmp_path / f"{side}.pth", weights_only=True) for side in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    "weights",
    [
        each
        for kind in (
            models.ViT_B_16_Weights,
            models.ViT_B_32_Weights,
            models.ViT_L_16_Weights,
            models.ViT_L_32_Weights,
            models.ViT_H_14_Weights,
        )
        for each in kind
    ],
    ids=lambda w: f"{w}",
)
def test_images_are_prepared_as_the_weights_of_torchvision_say(tmp_path, weights):
    prepared, name = weights.transforms(), weights.url.rpartition("/")[2]
    size, kind = prepared.crop_size[0], name.partition("-")[0]
    patch, width = int(kind.split("_")[2]), {"b": 768, "l": 1024, "h": 1280}[kind.split("_")[1]]
    heads = {768: 12, 1024: 16, 1280: 16}[width]
    theirs = VisionTransformer(size, patch, num_layers=1, num_heads=heads, hidden_dim=width, mlp_dim=8, num_classes=3)
    torch.save(randomise(theirs).state_dict(), tmp_path / name)
    opened = open_with_details(tmp_path / name, OpenOptions(heads=heads))
    found = opened.info.pipeline
    assert found.size == (size, size)
    assert int(size / found.config.crop_ratio) == prepared.resize_size[0]
    assert found.config.interpolation == prepared.interpolation.value
    assert [*found.config.mean, *found.config.std] == [*prepared.mean, *prepared.std]
    assert opened.info.provenance.get("licence") == ("CC-BY-NC-4.0" if "swag" in name else None)
    images = random_images(1, size)
    with torch.inference_mode():
        assert difference(theirs(images), opened.model(images)) <= BOUND


def test_names_before_version_0_13(tmp_path):
    theirs = randomise(VisionTransformer(**SMALL))
    old = {name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): tensor
           for name, tensor in theirs.state_dict().items()}  # fmt: skip
    torch.save(old, tmp_path / "old.pth")
    ours, _ = open_checkpoint(tmp_path / "old.pth")
    images = random_images(2, 48)
    with torch.inference_mode():
        assert difference(theirs(images), ours(images)) <= BOUND
    convert(tmp_path / "old.pth", tmp_path / "out.pth", "torchvision")  # torchvision itself renames them
    assert torch.load(tmp_path / "out.pth", weights_only=True).keys() == old.keys()


def test_all_unsupported_features_are_one_error(tmp_path):
    model = create(
        "Ti/16",
        depth=1,
        registers=2,
        attention={"qk_norm": True},
        block={"layer_scale": 0.1},
        position="rope-2d",
        pool="mean",
    )
    from vitreous.checkpoint.model_file import ModelInfo, save_model
    from vitreous.data.config import PreprocessConfig
    from vitreous.data.preprocess import EvalPipeline

    half = PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3)
    info = ModelInfo(tuple(map(str, range(1000))), EvalPipeline((224, 224), 3, half))
    save_model(tmp_path / "own.safetensors", model, info)
    with pytest.raises(CheckpointError, match="cannot express") as caught:
        convert(tmp_path / "own.safetensors", tmp_path / "out.pth", "torchvision")
    for what in ("position rope-2d", "pool mean", "2 registers", "QK-norm", "LayerScale"):
        assert what in str(caught.value)
    assert list(tmp_path.iterdir()) == [tmp_path / "own.safetensors"]


def test_destination_of_another_format_is_a_usage_error(tmp_path):
    torch.save(randomise(VisionTransformer(**SMALL)).state_dict(), tmp_path / "in.pth")
    with pytest.raises(UsageError, match="does not fit --to torchvision"):
        convert(tmp_path / "in.pth", tmp_path / "out.npz", "torchvision", OpenOptions())
