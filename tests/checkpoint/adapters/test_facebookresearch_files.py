"""Files of facebookresearch's DINOv3, DINOv2 and MAE: equal outputs, what is left out is said, and the way back."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from reference_models import BOUND, difference, random_images, randomise
from safetensors.torch import save_file
from timm.models import save_for_hf
from torchvision.transforms import v2
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from vitreous.accelerate.model import create
from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.conversion.writing import export
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.checkpoint.opening import OpenOptions, open_with_details
from vitreous.data.config import PreprocessConfig
from vitreous.data.images.reading import read_image
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError

PERIODS = 100.0 ** (torch.arange(8) / 8)


def dinov3(entry: str, rounding: torch.dtype, depth: int = 2) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return timm's model, and its tensors as facebookresearch's files have them."""
    sizes = {"depth": depth, "embed_dim": 64, "num_heads": 2}
    model = randomise(timm.create_model(entry, num_classes=0, **sizes, global_pool="token"))
    model.rope.periods.copy_(PERIODS.to(rounding))
    state = {"rope_embed.periods": PERIODS.to(rounding), "mask_token": torch.randn(1, 64)}
    for name, tensor in model.state_dict().items():
        if name.endswith(".q_bias"):
            attn = name.removesuffix("q_bias")
            zeros, of_values = torch.zeros(64), model.state_dict()[f"{attn}v_bias"]
            state[f"{attn}qkv.bias"] = torch.cat((tensor, torch.randn(64), of_values))
            state[f"{attn}qkv.bias_mask"] = torch.cat((zeros + 1, zeros, zeros + 1))
        elif not name.endswith(".v_bias"):
            theirs = name.replace("reg_token", "storage_tokens").replace("gamma_1", "ls1.gamma")
            theirs = (
                theirs.replace("gamma_2", "ls2.gamma").replace("mlp.fc1_g", "mlp.w1").replace("mlp.fc1_x", "mlp.w2")
            )
            state[theirs.replace("mlp.fc2", "mlp.w3") if "huge" in entry else theirs] = tensor
    return model, state


def assert_same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert (after[name].dtype, after[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(after[name], tensor), name


@pytest.mark.parametrize("entry", ["vit_small_patch16_dinov3_qkvb", "vit_huge_plus_patch16_dinov3_qkvb"])
@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16])
def test_dinov3_files(tmp_path, entry, rounding):
    model, state = dinov3(entry, rounding)
    torch.save(state, tmp_path / "dinov3.pth")
    opened = open_with_details(tmp_path / "dinov3.pth", OpenOptions())
    assert opened.family == "facebookresearch"
    assert "2 heads: the periods of the rotary positions" in opened.reasons
    assert opened.info.pipeline.config.mean == (0.485, 0.456, 0.406)
    assert not opened.assumed_pipeline
    for size in ((64, 64), (48, 96)):
        images = random_images(2, *size)
        with torch.inference_mode():
            assert difference(model(images), opened.model(images)) <= BOUND


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("dinov3_vits16_pretrain_lvd1689m-08c60483.pth", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth", (0.430, 0.411, 0.296), (0.213, 0.156, 0.143)),
    ],
)
def test_images_for_dinov3_are_prepared_as_its_readme_says(tmp_path, photos, name, mean, std):
    _, state = dinov3("vit_small_patch16_dinov3_qkvb", torch.bfloat16)
    torch.save(state, tmp_path / name)
    pipeline = open_with_details(tmp_path / name, OpenOptions()).info.pipeline
    theirs = v2.Compose(
        [v2.Resize(pipeline.size), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    )
    image = read_image(next(path for path in sorted(photos.iterdir()) if "chelsea" in path.name))
    assert float((pipeline(image) - theirs(image)).abs().max()) <= 1e-5


@pytest.mark.parametrize("entry", ["vit_small_patch16_dinov3_qkvb", "vit_huge_plus_patch16_dinov3_qkvb"])
def test_dinov3_is_written_back_bit_for_bit(tmp_path, entry):
    _, state = dinov3(entry, torch.bfloat16)
    state |= {f"local_cls_norm.{kind}": torch.randn(64) for kind in ("weight", "bias")}  # as in some releases
    torch.save(state, tmp_path / "dinov3.pth")
    convert(tmp_path / "dinov3.pth", tmp_path / "own.safetensors", "vitreous")
    convert(tmp_path / "own.safetensors", tmp_path / "back.pth", "facebookresearch")
    assert_same(state, torch.load(tmp_path / "back.pth"))
    convert(tmp_path / "dinov3.pth", tmp_path / "folder", "facebookresearch")
    assert_same(state, torch.load(tmp_path / "folder" / "model.pth"))
    assert (tmp_path / "folder" / "model.json").exists()
    with pytest.raises(CheckpointError, match=r"timm cannot express .*mask_token \(--drop mask_token leaves it out\)"):
        convert(tmp_path / "dinov3.pth", tmp_path / "timm", "timm")


def test_dinov3_files_that_compute_something_else_are_refused(tmp_path):
    _, state = dinov3("vit_small_patch16_dinov3_qkvb", torch.bfloat16)
    torch.save(state | {"rope_embed.periods": 2 * PERIODS}, tmp_path / "periods.pth")
    with pytest.raises(CheckpointError, match="rotary periods other than DINOv3's"):
        open_with_details(tmp_path / "periods.pth", OpenOptions())
    name = "blocks.1.attn.qkv.bias_mask"
    for mask in (torch.ones(192), torch.rand(192)):
        torch.save(state | {name: mask}, tmp_path / "mask.pth")
        with pytest.raises(CheckpointError, match=rf"has biases of keys, or masks some biases alone \({name}\)"):
            open_with_details(tmp_path / "mask.pth", OpenOptions())


@pytest.mark.parametrize("stored", ["zero", "random"])
def test_masks_of_zeros_as_released_files_have_them_switch_all_biases_off(tmp_path, stored):
    model, state = dinov3("vit_small_patch16_dinov3_qkvb", torch.bfloat16)
    for name, tensor in state.items():
        if name.endswith(("bias_mask", "qkv.bias")):
            state[name] = torch.zeros_like(tensor) if stored == "zero" or name.endswith("mask") else tensor
    for name, parameter in model.named_parameters():
        if name.endswith(("q_bias", "v_bias")):
            parameter.data.zero_()
    torch.save(state, tmp_path / "dinov3.pth")
    opened = open_with_details(tmp_path / "dinov3.pth", OpenOptions())
    images = random_images(2, 64)
    with torch.inference_mode():
        assert difference(model(images), opened.model(images)) <= BOUND
    convert(tmp_path / "dinov3.pth", tmp_path / "own.safetensors", "vitreous")
    convert(tmp_path / "own.safetensors", tmp_path / "back.pth", "facebookresearch")
    assert_same(state, torch.load(tmp_path / "back.pth"))


def test_biases_that_were_trained_are_not_masked_by_the_zeros_of_before(tmp_path):
    _, state = dinov3("vit_small_patch16_dinov3_qkvb", torch.bfloat16)
    state |= {name: torch.zeros_like(tensor) for name, tensor in state.items() if "qkv.bias" in name}
    torch.save(state, tmp_path / "dinov3.pth")
    opened = open_with_details(tmp_path / "dinov3.pth", OpenOptions())
    opened.model.state_dict()["blocks.0.attn.qkv.bias"].fill_(0.5)
    written = export(opened, "facebookresearch").tensors
    assert written["blocks.0.attn.qkv.bias_mask"].tolist() == [1.0] * 64 + [0.0] * 64 + [1.0] * 64
    assert written["blocks.0.attn.qkv.bias"].tolist() == [0.5] * 64 + [0.0] * 64 + [0.5] * 64
    assert not written["blocks.1.attn.qkv.bias_mask"].any()


def test_blocks_keep_their_biases_in_any_order_of_the_tensors(tmp_path):
    _, state = dinov3("vit_small_patch16_dinov3_qkvb", torch.bfloat16, depth=11)
    ordered = {name: state[name] for name in sorted(state)}  # blocks.1., blocks.10., blocks.2.
    save_file(ordered, tmp_path / "dinov3.safetensors")
    convert(tmp_path / "dinov3.safetensors", tmp_path / "back.pth", "facebookresearch")
    assert_same(state, torch.load(tmp_path / "back.pth"))


def test_dinov3_of_transformers_and_of_timm_is_written_for_facebookresearch(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 2, "num_hidden_layers": 2}
    theirs = DINOv3ViTModel(DINOv3ViTConfig(**sizes, num_register_tokens=4, key_bias=False, image_size=64)).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "hf.pth", "facebookresearch")
    images = random_images(2, 64)
    written = open_with_details(tmp_path / "hf.pth", OpenOptions())
    assert written.family == "facebookresearch"
    with torch.inference_mode():
        assert difference(theirs(images).last_hidden_state[:, 0], written.model(images)) <= BOUND
    arguments = {"depth": 2, "embed_dim": 64, "num_heads": 2, "num_classes": 0, "global_pool": "token"}
    model = randomise(timm.create_model("vit_small_patch16_dinov3_qkvb", **arguments))
    save_for_hf(model, tmp_path / "timm", model_args=arguments, safe_serialization=True)
    with pytest.raises(CheckpointError, match=r"no mask token \(--add mask_token writes one of zeros\)"):
        convert(tmp_path / "timm", tmp_path / "timm.pth", "facebookresearch")
    convert(tmp_path / "timm", tmp_path / "timm.pth", "facebookresearch", OpenOptions(add=("mask_token",)))
    with torch.inference_mode():
        again = open_with_details(tmp_path / "timm.pth", OpenOptions())
        assert difference(model(images), again.model(images)) <= BOUND


def test_dinov2_is_written_back_bit_for_bit(tmp_path):
    arguments = {"img_size": 56, "depth": 2, "embed_dim": 64, "num_heads": 2}
    model = randomise(timm.create_model("vit_small_patch14_reg4_dinov2", **arguments))
    state = {name.replace("reg_token", "register_tokens"): tensor for name, tensor in model.state_dict().items()}
    state["pos_embed"] = torch.cat((torch.randn(1, 1, 64), state["pos_embed"]), 1)  # the class token has one there
    state["mask_token"] = torch.randn(1, 64)
    state = {name: tensor.half() for name, tensor in state.items()}
    torch.save(state, tmp_path / "dinov2_vits14_reg4.pth")
    convert(tmp_path / "dinov2_vits14_reg4.pth", tmp_path / "back.pth", "facebookresearch", OpenOptions(heads=2))
    assert_same(state, torch.load(tmp_path / "back.pth"))
    again = open_with_details(tmp_path / "back.pth", OpenOptions())  # the file beside it says the heads
    assert again.model.config.heads == 2
    assert again.info.pipeline.config.mean == (0.485, 0.456, 0.406)


@pytest.fixture
def mae(tmp_path):
    """Return timm's encoder, and write it with a decoder as facebookresearch does, to mae.pth."""
    arguments = {"img_size": 64, "depth": 2, "embed_dim": 64, "num_heads": 2, "num_classes": 0}
    model = randomise(timm.create_model("vit_base_patch16_224", **arguments))
    decoder = {"mask_token": torch.randn(1, 1, 32), "decoder_pos_embed": torch.randn(1, 17, 32)}
    decoder |= {"decoder_embed.weight": torch.randn(32, 64), "decoder_blocks.0.attn.qkv.weight": torch.randn(96, 32)}
    torch.save({"model": dict(model.state_dict()) | decoder, "epoch": 3}, tmp_path / "mae.pth")
    return model


def test_mae_files(tmp_path, mae):
    opened = open_with_details(tmp_path / "mae.pth", OpenOptions(heads=2))
    images = random_images(2, 64)
    with torch.inference_mode():
        assert difference(mae(images), opened.model(images)) <= BOUND
    assert any("decoder is left out" in reason for reason in opened.reasons)
    prepared = opened.info.pipeline.config
    assert (prepared.fit, prepared.crop_ratio, prepared.interpolation) == ("crop", 0.875, "bicubic")
    assert prepared.std == (0.229, 0.224, 0.225)


def test_mae_is_written_back_with_its_decoder_on_request(tmp_path, mae):
    before = torch.load(tmp_path / "mae.pth")["model"]
    keep = OpenOptions(heads=2, keep=("decoder",))
    convert(tmp_path / "mae.pth", tmp_path / "back.pth", "facebookresearch", keep)
    assert_same(before, torch.load(tmp_path / "back.pth")["model"])
    assert json.loads((tmp_path / "back.json").read_text())["heads"] == 2
    convert(tmp_path / "mae.pth", tmp_path / "own.safetensors", "vitreous", keep)
    convert(tmp_path / "own.safetensors", tmp_path / "again.pth", "facebookresearch")
    assert_same(before, torch.load(tmp_path / "again.pth")["model"])
    for family in ("timm", "huggingface"):
        with pytest.raises(CheckpointError, match=r"decoder \(--drop decoder leaves it out\)"):
            convert(tmp_path / "own.safetensors", tmp_path / family, family)
    convert(tmp_path / "mae.pth", tmp_path / "encoder.pth", "facebookresearch", OpenOptions(heads=2))
    assert_same(dict(mae.state_dict()), torch.load(tmp_path / "encoder.pth")["model"])
    encoder = open_with_details(tmp_path / "encoder.pth", OpenOptions())
    assert (encoder.model.config.heads, encoder.info.pipeline.config.crop_ratio) == (2, 0.875)


def test_what_facebookresearch_has_not_is_listed(tmp_path):
    model = create("mu/8", image_size=48, num_classes=3, registers=2)
    info = ModelInfo(("a", "b", "c"), EvalPipeline((48, 48), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3)))
    save_model(tmp_path / "own.safetensors", model, info)
    with pytest.raises(CheckpointError, match=r"facebookresearch's MAE cannot express this model: .*2 registers"):
        convert(tmp_path / "own.safetensors", tmp_path / "out.pth", "facebookresearch")
    rotary = create("mu/8", image_size=48, num_classes=3, position={"kind": "rope-2d"})
    save_model(tmp_path / "own.safetensors", rotary, info)
    with pytest.raises(CheckpointError, match=r"DINOv3 cannot express .*position rope-2d as it is set here.*a head"):
        convert(tmp_path / "own.safetensors", tmp_path / "out.pth", "facebookresearch")
    assert not (tmp_path / "out.pth").exists()
