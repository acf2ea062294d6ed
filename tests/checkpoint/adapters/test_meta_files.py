"""Files of facebookresearch/dinov3 and facebookresearch/mae: equal outputs, and what is left out is said."""

from __future__ import annotations

import pytest
import timm
import torch
from reference_models import BOUND, difference, random_images, randomise

from vitreous.checkpoint.opening import OpenOptions, open_with_details
from vitreous.errors import CheckpointError


@pytest.mark.parametrize("entry", ["vit_small_patch16_dinov3_qkvb", "vit_huge_plus_patch16_dinov3_qkvb"])
@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16])
def test_dinov3_files(tmp_path, entry, rounding):
    model = randomise(timm.create_model(entry, num_classes=0, depth=2, embed_dim=64, num_heads=2, global_pool="token"))
    periods = 100.0 ** (torch.arange(8) / 8)
    model.rope.periods.copy_(periods.to(rounding))
    state = {"rope_embed.periods": periods.to(rounding), "mask_token": torch.randn(1, 64)}
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
    torch.save(state, tmp_path / "dinov3.pth")
    opened = open_with_details(tmp_path / "dinov3.pth", OpenOptions())
    assert "2 heads: the periods of the rotary positions" in opened.reasons
    assert opened.info.pipeline.config.mean == (0.485, 0.456, 0.406)
    assert not opened.assumed_pipeline
    for size in ((64, 64), (48, 96)):
        images = random_images(2, *size)
        with torch.inference_mode():
            assert difference(model(images), opened.model(images)) <= BOUND
    assert any("mask token is left out" in reason for reason in opened.reasons)
    torch.save(state | {"rope_embed.periods": 2 * periods}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="rotary periods other than DINOv3's"):
        open_with_details(tmp_path / "other.pth", OpenOptions())


def test_mae_files(tmp_path):
    arguments = {"img_size": 64, "depth": 2, "embed_dim": 64, "num_heads": 2, "num_classes": 0}
    model = randomise(timm.create_model("vit_base_patch16_224", **arguments))
    decoder = {"mask_token": torch.randn(1, 1, 32), "decoder_pos_embed": torch.randn(1, 17, 32)}
    decoder |= {"decoder_embed.weight": torch.randn(32, 64), "decoder_blocks.0.attn.qkv.weight": torch.randn(96, 32)}
    torch.save({"model": dict(model.state_dict()) | decoder}, tmp_path / "mae.pth")
    opened = open_with_details(tmp_path / "mae.pth", OpenOptions(heads=2))
    images = random_images(2, 64)
    with torch.inference_mode():
        assert difference(model(images), opened.model(images)) <= BOUND
    assert any("decoder is left out" in reason for reason in opened.reasons)
    prepared = opened.info.pipeline.config
    assert (prepared.fit, prepared.crop_ratio, prepared.interpolation) == ("crop", 0.875, "bicubic")
    assert prepared.std == (0.229, 0.224, 0.225)
