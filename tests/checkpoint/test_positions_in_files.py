"""Files of models whose positions are added before every block: written, resized, and refused to other families."""

from __future__ import annotations

import pytest
import torch

from vit_reference import stir
from vitreous.accelerate.model import build
from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint
from vitreous.checkpoint.resize import resize_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig

CASES = [(kind, layers) for kind in ("learned", "learned-2d") for layers in ("every", "shared")]
DESTINATIONS = {"google": "m.npz", "timm": "timm", "huggingface": "hf", "torchvision": "m.pth"}
each_case = pytest.mark.parametrize(("kind", "layers"), CASES)


def model_of(kind, layers, **fields):
    small = {"image_size": 32, "patch_size": 8, "num_classes": 3, "width": 32, "depth": 3, "heads": 2, "mlp_dim": 64}
    return stir(build(ViTConfig(**(small | fields), position={"kind": kind, "layers": layers}))).eval()


def saved(folder, model):
    half = PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(folder / "own.safetensors", model, ModelInfo(("a", "b", "c"), EvalPipeline((32, 32), 3, half)))
    return folder / "own.safetensors"


@each_case
def test_a_model_file_keeps_every_table(kind, layers, tmp_path):
    model = model_of(kind, layers)
    again, _ = load_model(saved(tmp_path, model))
    images = torch.randn(2, 3, 32, 32)
    assert again.config == model.config
    with torch.inference_mode():
        assert torch.equal(again.eval()(images), model(images))


@each_case
@pytest.mark.parametrize("method", ["google", "timm", "huggingface", "torchvision", "dinov2"])
def test_resizing_at_loading_equals_resampling_in_forward(kind, layers, method):
    model = model_of(kind, layers, registers=2)
    model = build(model.config.with_options({"position": {"resample": method}})).eval()
    stir(model)
    config, state, record = resize_model(model.config, model.state_dict(), (64, 40), None, None)
    other = build(config).eval()
    other.load_state_dict(state)
    images = torch.randn(2, 3, 64, 40)
    with torch.inference_mode():
        torch.testing.assert_close(other(images), model(images), rtol=1e-5, atol=1e-6)
    assert record == {"positions": {"from": [4, 4], "to": [8, 5], "method": method}}


@pytest.mark.parametrize("layers", ["every", "shared"])
@pytest.mark.parametrize("family", DESTINATIONS)
def test_other_families_cannot_express_them(family, layers, tmp_path):
    source = saved(tmp_path, model_of("learned", layers))
    words = rf"cannot express .*positions added before every block \(position.layers {layers}\)"
    with pytest.raises(CheckpointError, match=words):
        convert(source, tmp_path / DESTINATIONS[family], family)
    assert list(tmp_path.iterdir()) == [source]


def test_the_position_of_the_class_token_cannot_move_to_the_token(tmp_path):
    """With other layers than `first`, blocks add it as well."""
    source = saved(tmp_path, model_of("learned", "shared"))
    with pytest.raises(CheckpointError, match="there is no cls_position to drop"):
        open_checkpoint(source, OpenOptions(drop=("cls_position",)))
