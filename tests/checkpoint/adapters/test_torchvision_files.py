"""torchvision's models, read and written, compared with torchvision."""

from __future__ import annotations

import pytest
import torch
from reference_models import BOUND, difference, random_images, randomise
from torchvision.models import VisionTransformer

from vitreous.accelerate.model import create
from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint
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
