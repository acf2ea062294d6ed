"""timm's models: equal logits, and files that are written back exactly."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from reference_models import BOUND, difference, random_images, randomise
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.conversion.writing import export
from vitreous.checkpoint.model_file import load_model, save_model
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint, open_with_details
from vitreous.errors import CheckpointError

SMALL = {"img_size": 48, "patch_size": 8, "depth": 2, "num_classes": 7, "embed_dim": 64, "num_heads": 2}
VARIANTS = {
    "plain": {},
    "rectangle": {"img_size": (32, 48)},
    "one channel": {"in_chans": 1},
    "features": {"num_classes": 0},
    "registers": {"reg_tokens": 4, "init_values": 1e-5, "no_embed_class": True},
    "registers with positions": {"reg_tokens": 2},
    "mean": {"global_pool": "avg"},
    "mean without [CLS]": {"global_pool": "avg", "class_token": False},
    "mean, registers, no [CLS]": {
        "global_pool": "avg",
        "class_token": False,
        "reg_tokens": 2,
        "no_embed_class": True,
    },
    "mean, registers with positions, no [CLS]": {"global_pool": "avg", "class_token": False, "reg_tokens": 2},
    "mean after norm": {"global_pool": "avg", "fc_norm": False},
    "mean with prefix": {"global_pool": "avg", "pool_include_prefix": True},
    "map": {"global_pool": "map", "class_token": False},
    "map beside prefix": {"global_pool": "map", "reg_tokens": 2},
    "map with prefix": {"global_pool": "map", "pool_include_prefix": True},
    "QK-norm": {"qk_norm": True, "qkv_bias": False},
    "tanh": {"act_layer": "gelu_tanh"},
    "no final norm": {"final_norm": False},
    "no positions": {"pos_embed": "none"},
    "odd MLP": {"mlp_ratio": 3.7362},
    "odd heads": {"num_heads": 4},
}


def saved(folder, **arguments):
    """A randomised model, in a folder as timm itself writes it."""
    model = randomise(timm.create_model("vit_tiny_patch16_224", **{**SMALL, **arguments}))
    save_for_hf(model, folder, model_args={**SMALL, **arguments}, safe_serialization=True)
    return model


@pytest.mark.parametrize("name", VARIANTS)
def test_round_trip_and_logits(tmp_path, name):
    theirs = saved(tmp_path / "in", **VARIANTS[name])
    images = random_images(2, *theirs.patch_embed.img_size, channels=theirs.in_chans)
    opened = open_with_details(tmp_path / "in", OpenOptions())
    with torch.inference_mode():
        assert difference(theirs(images), opened.model(images)) <= BOUND
    convert(tmp_path / "in", tmp_path / "out", "timm")
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    with torch.inference_mode():
        assert difference(theirs(images), again(images)) <= BOUND


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [
        ("vit_tiny_patch16_224", {"depth": 3}),
        ("vit_base_patch32_224", {"depth": 2}),
        ("vit_small_patch14_reg4_dinov2", {"depth": 2, "img_size": 98}),
        ("vit_small_patch16_384", {"depth": 1}),
        ("deit3_small_patch16_224", {"depth": 1}),
        ("vit_base_patch32_siglip_256", {"depth": 1}),
    ],
)
def test_published_architectures(tmp_path, entry, arguments):
    model = randomise(timm.create_model(entry, **arguments))
    save_for_hf(model, tmp_path / "hub", model_args=arguments or None, safe_serialization=True)
    images = random_images(1, *model.patch_embed.img_size)
    ours, _ = open_checkpoint(tmp_path / "hub")
    with torch.inference_mode():
        assert difference(model(images), ours(images)) <= BOUND
    torch.save(model.state_dict(), tmp_path / "bare.pth")  # the positions tell the size, the shapes the rest
    assert any("exact GELU" in line for line in open_with_details(tmp_path / "bare.pth", OpenOptions()).reasons)
    bare, _ = open_checkpoint(tmp_path / "bare.pth", OpenOptions(activation=ours.config.mlp.activation))
    with torch.inference_mode():
        assert difference(model(images), bare(images)) <= BOUND


@pytest.mark.parametrize("entry", ["test_vit", "test_vit3", "vit_base_patch16_gap_224"])
def test_conventions_of_entry_points(tmp_path, entry):
    """Their heads do not have 64 channels, and test_vit3 pools over its register: no tensor shows either."""
    model = randomise(timm.create_model(entry, depth=1))
    save_for_hf(model, tmp_path / "hub", safe_serialization=True)
    images = random_images(1, *model.patch_embed.img_size)
    ours, _ = open_checkpoint(tmp_path / "hub")
    with torch.inference_mode():
        assert difference(model(images), ours(images)) <= BOUND


@pytest.mark.parametrize(
    ("entry", "side"), [("vit_tiny_r_s16_p8_224", 64), ("vit_small_r26_s32_224", 64), ("vit_base_r50_s16_224", 32)]
)
def test_hybrids(tmp_path, entry, side):
    arguments = {"img_size": side, "embed_dim": 64, "num_heads": 2, "depth": 2, "num_classes": 5}
    model = randomise(timm.create_model(entry, **arguments))
    save_for_hf(model, tmp_path / "in", model_args=arguments, safe_serialization=True)
    images = random_images(2, side)
    opened = open_with_details(tmp_path / "in", OpenOptions())
    with torch.inference_mode():
        assert difference(model(images), opened.model(images)) <= BOUND
    done = convert(tmp_path / "in", tmp_path / "out", "timm")
    assert [each.by.split()[0] for each in done.comparisons] == ["vitreous", "timm"]
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_labels_and_pipeline_round_trip(tmp_path):
    model = saved(tmp_path / "in")
    document = json.loads((tmp_path / "in/config.json").read_text())
    document["label_names"] = ["Löwe", "crane", "crane", "a", "b", "c", "d"]
    document["pretrained_cfg"] |= {
        "crop_pct": 0.95, "crop_mode": "center", "interpolation": "bilinear", "mean": [0.1, 0.2, 0.3], "std": [1, 2, 3],
    }  # fmt: skip
    (tmp_path / "in/config.json").write_text(json.dumps(document))
    _, info = open_checkpoint(tmp_path / "in")
    assert info.classes == ("Löwe", "crane #1", "crane #2", "a", "b", "c", "d")
    assert info.pipeline.size == (48, 48)
    assert (info.pipeline.config.fit, info.pipeline.config.crop_ratio) == ("crop", 0.95)
    assert (info.pipeline.config.mean, info.pipeline.config.std) == ((0.1, 0.2, 0.3), (1, 2, 3))
    convert(tmp_path / "in", tmp_path / "out", "timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert list(again.pretrained_cfg["label_names"]) == document["label_names"]
    data = timm.data.resolve_model_data_config(again)
    assert (data["crop_pct"], data["interpolation"], data["crop_mode"]) == (0.95, "bilinear", "center")
    assert (data["input_size"], tuple(data["mean"]), tuple(data["std"])) == ((3, 48, 48), (0.1, 0.2, 0.3), (1, 2, 3))
    assert again.num_classes == model.num_classes


@pytest.mark.parametrize("kept", [1.0, 0.95])
def test_a_squash_is_that_of_timm_and_a_crop_that_is_left_out_is_said(tmp_path, kept):
    saved(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    stated = {"crop_mode": "squash", "interpolation": "bicubic", "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    document["pretrained_cfg"] |= stated | {"crop_pct": kept}
    (tmp_path / "config.json").write_text(json.dumps(document))
    opened = open_with_details(tmp_path, OpenOptions())
    assert any("crop_pct 0.95 is ignored" in reason for reason in opened.reasons) == (kept < 1)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    theirs = timm.data.create_transform((3, 48, 48), crop_pct=1.0, **stated)
    image = Image.fromarray(pixels)
    assert float((opened.info.pipeline(image) - theirs(image)).abs().max()) <= 1e-5


def test_a_temperature_that_is_left_out_is_said(tmp_path):
    saved(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "own.safetensors", "vitreous")
    model, info = load_model(tmp_path / "own.safetensors")
    save_model(tmp_path / "fitted.safetensors", model, dataclasses.replace(info, temperature=1.5))
    said = {
        (name, to): convert(tmp_path / f"{name}.safetensors", tmp_path / f"{name}-{to}", to).notes
        for name in ("own", "fitted")
        for to in ("timm", "vitreous")
    }
    assert said.pop(("fitted", "timm")) == ["the format has no place for the fitted temperature: it is left out"]
    assert not any(said.values())


def test_old_pre_logits_and_training_wrappers(tmp_path):
    model = randomise(timm.create_model("vit_tiny_patch16_224", **SMALL))
    state = model.state_dict() | {
        "pre_logits.fc.weight": torch.randn(64, 64) / 8,
        "pre_logits.fc.bias": torch.randn(64),
    }
    wrapped = {"epoch": 3, "state_dict": {f"module.{key}": tensor for key, tensor in state.items()}}
    torch.save(wrapped, tmp_path / "old.pth")
    ours, _ = open_checkpoint(tmp_path / "old.pth", OpenOptions(heads=2))
    images = random_images(2, 48)
    with torch.inference_mode():
        features = model.forward_head(model.forward_features(images), pre_logits=True)
        hidden = torch.tanh(features @ state["pre_logits.fc.weight"].t() + state["pre_logits.fc.bias"])
        assert difference(model.head(hidden), ours(images)) <= BOUND
    with pytest.raises(CheckpointError, match="--drop pre_logits"):
        convert(tmp_path / "old.pth", tmp_path / "out", "timm")
    assert not (tmp_path / "out").exists()
    convert(tmp_path / "old.pth", tmp_path / "out", "timm", OpenOptions(heads=2, drop=("pre_logits",)))
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    with torch.inference_mode():
        assert difference(model(images), again(images)) <= BOUND


def test_facebookresearch_dinov2_files(tmp_path):
    model = randomise(timm.create_model("vit_small_patch14_reg4_dinov2", img_size=56, depth=2, dynamic_img_size=True))
    state = dict(model.state_dict())
    state["register_tokens"] = state.pop("reg_token")
    state["mask_token"] = torch.randn(1, 384)
    cls_position = torch.randn(1, 1, 384)
    state["pos_embed"] = torch.cat((cls_position, state["pos_embed"]), 1)
    state["cls_token"] = state["cls_token"] - cls_position  # timm adds the two up when it loads such a file
    torch.save(state, tmp_path / "dinov2_vits14_reg4.pth")
    opened = open_with_details(tmp_path / "dinov2_vits14_reg4.pth", OpenOptions())
    for size in ((56, 56), (42, 84)):  # its authors resample the positions of these as timm does
        images = random_images(2, *size)
        with torch.inference_mode():
            assert difference(model(images), opened.model(images)) <= BOUND
    with pytest.raises(CheckpointError, match="--drop mask_token"):
        convert(tmp_path / "dinov2_vits14_reg4.pth", tmp_path / "x.pth", "torchvision")
    convert(tmp_path / "dinov2_vits14_reg4.pth", tmp_path / "own.safetensors", "vitreous")
    kept = open_with_details(tmp_path / "own.safetensors", OpenOptions()).kept
    assert torch.equal(kept["mask_token"], state["mask_token"])
    assert opened.info.pipeline.config.mean == (0.485, 0.456, 0.406)


def test_the_giant_of_facebookresearch_dinov2_has_gated_mlps_under_other_names(tmp_path):
    changes = {"img_size": 56, "depth": 2, "embed_dim": 128, "num_heads": 2}
    model = randomise(timm.create_model("vit_giant_patch14_dinov2", **changes))
    state = {
        name.replace("mlp.fc1.", "mlp.w12.").replace("mlp.fc2.", "mlp.w3."): t for name, t in model.state_dict().items()
    }
    torch.save(state | {"mask_token": torch.randn(1, 128)}, tmp_path / "giant.pth")
    opened = open_with_details(tmp_path / "giant.pth", OpenOptions())
    assert opened.model.config.mlp.kind == "gated"
    assert opened.model.config.position.resample == "dinov2"
    images = random_images(2, 56)
    with torch.inference_mode():
        assert difference(model(images), opened.model(images)) <= BOUND
    convert(tmp_path / "giant.pth", tmp_path / "own.safetensors", "vitreous")
    again = export(open_with_details(tmp_path / "own.safetensors", OpenOptions()), "timm").tensors
    assert again.keys() == {*state, "mask_token"}
    assert all(torch.equal(again[name], state[name]) for name in state)


def test_rounding_float64_must_be_permitted(tmp_path):
    model = saved(tmp_path / "in").double()
    model.head.bias.data += 1e-12
    save_file(model.state_dict(), tmp_path / "in/model.safetensors")
    with pytest.raises(CheckpointError, match=r"would round, in head.bias: --drop float64"):
        open_checkpoint(tmp_path / "in")
    open_checkpoint(tmp_path / "in", OpenOptions(drop=("float64",)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_round_trip(tmp_path, dtype):
    model = saved(tmp_path / "in").to(dtype)
    save_file(model.state_dict(), tmp_path / "in/model.safetensors")
    convert(tmp_path / "in", tmp_path / "own.safetensors", "vitreous")
    convert(tmp_path / "own.safetensors", tmp_path / "out", "timm")
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert {key: tensor.dtype for key, tensor in before.items()} == {key: t.dtype for key, t in after.items()}
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s, d: s.update(rope=torch.zeros(3)), "unexpected tensors: rope"),
        (lambda s, d: s.pop("blocks.1.mlp.fc2.bias"), "missing tensors: blocks.1.mlp.fc2.bias"),
        (lambda s, d: s.pop("blocks.0.norm1.weight"), "missing tensors: blocks.0.norm1.weight"),
        (lambda s, d: s.update({"norm.weight": torch.ones(3)}), r"norm.weight has shape \[3\], expected \[64\]"),
        (lambda s, d: s.update({"pos_embed": torch.zeros(1, 40, 64)}), "40 positions, which are not a square grid"),
        (lambda s, d: s.update({"patch_embed.proj.weight": torch.zeros(64, 3)}), "expected 4 dimensions"),
        (lambda s, d: s.update({"norm_pre.weight": torch.ones(64)}), "missing tensors: norm_pre.bias"),
        (lambda s, d: d["model_args"].update(act_layer="mish"), "activation mish"),
        (lambda s, d: d["model_args"].update(block_fn="ResPostBlock"), "block_fn ResPostBlock"),
        (lambda s, d: d["model_args"].update(norm_layer="rmsnorm"), "norm_layer rmsnorm"),
        (lambda s, d: d.update(global_pool="avgmax"), "pooling avgmax"),
        (lambda s, d: d["pretrained_cfg"].update(mean="grey"), "evaluation pipeline"),
        (lambda s, d: d.update(model_args=[1]), "configuration beside"),
    ],
)
def test_misfits_are_one_clear_error(tmp_path, spoil, message):
    saved(tmp_path)
    state, document = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    spoil(state, document)
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "licence", "crop"),
    [
        ("mae_pretrain_vit_base.pth", "CC-BY-NC-4.0", 0.875),
        ("deit_tiny_patch16_224-a1311bcf.pth", "Apache-2.0", 0.875),
        ("mine.pth", None, None),
    ],
)
def test_files_of_facebookresearch_are_known_by_their_names(tmp_path, name, licence, crop):
    """Nothing in them says where they are from: their tensors have timm's names."""
    model = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=3)
    torch.save({"model": model.state_dict()}, tmp_path / name)
    info = open_checkpoint(tmp_path / name)[1]
    assert info.provenance.get("licence") == licence
    found = info.pipeline.config
    if crop is not None:
        assert (found.fit, found.crop_ratio, found.interpolation) == ("crop", crop, "bicubic")
        assert found.mean == (0.485, 0.456, 0.406)
    else:
        assert found.fit == "squash"
