"""State dicts of timm fit unchanged, and the same weights give timm's logits."""

from __future__ import annotations

import pytest
import torch

from vit_reference import head_of, stir
from vitreous.accelerate.model import create

timm = pytest.importorskip("timm")

SAME_IMAGES = {"num_classes": 10, "img_size": 64}
CASES = {
    "Ti/16": ("vit_tiny_patch16_224", {}, "Ti/16", {}),
    "S/16": ("vit_small_patch16_224", {"depth": 3}, "S/16", {"depth": 3}),
    "B/32": ("vit_base_patch32_224", {"depth": 2}, "B/32", {"depth": 2}),
    "rectangle": ("vit_tiny_patch16_224", {"img_size": (32, 96)}, "Ti/16", {"image_size": (32, 96)}),
    "mean": (
        "vit_tiny_patch16_224",
        {"global_pool": "avg"},
        "Ti/16",
        {"pool": "mean", "class_token": True, "final_norm": "pooled"},
    ),
    "mean without cls": (
        "vit_tiny_patch16_224",
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
        "Ti/16",
        {"pool": "mean"},
    ),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 4}, "Ti/16", {"registers": 4, "position": {"prefix": "all"}}),
    "no_embed_class": (
        "vit_tiny_patch16_224",
        {"reg_tokens": 2, "no_embed_class": True},
        "Ti/16",
        {"registers": 2, "position": {"prefix": "none"}},
    ),
    "layer scale": ("vit_tiny_patch16_224", {"init_values": 0.1}, "Ti/16", {"block": {"layer_scale": 0.1}}),
    "qk-norm": ("vit_tiny_patch16_224", {"qk_norm": True}, "Ti/16", {"attention": {"qk_norm": True}}),
    "no qkv bias": ("vit_tiny_patch16_224", {"qkv_bias": False}, "Ti/16", {"attention": {"qkv_bias": False}}),
    "map": (
        "vit_base_patch16_siglip_224",
        {"depth": 2, "act_layer": "gelu_tanh"},
        "B/16",
        {"depth": 2, "pool": "map", "mlp": {"activation": "gelu-tanh"}},
    ),
    "hybrid": (
        "vit_small_r26_s32_224",
        {"depth": 1},
        "S/32",
        {"depth": 1, "stem": {"kind": "resnet", "layers": (2, 2, 2, 2), "norm": "timm"}},
    ),
}


TOLERANCE = 2e-5  # of the largest value, in float32; the 50 convolutions of the hybrid differ by 1.04e-5 with AVX2


@pytest.mark.parametrize("case", CASES)
def test_keys_shapes_and_logits_are_timms(case: str) -> None:
    theirs_name, their_options, ours_name, our_options = CASES[case]
    theirs = stir(timm.create_model(theirs_name, **(SAME_IMAGES | their_options))).eval()
    ours = create(ours_name, **({"num_classes": 10, "image_size": 64} | our_options)).eval()  # type: ignore[operator]
    state = theirs.state_dict()
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in state.items()}
    ours.load_state_dict(state, strict=True)
    height, width = our_options.get("image_size", (64, 64))  # type: ignore[attr-defined]
    images = torch.randn(2, 3, height, width)
    with torch.inference_mode():
        expected = theirs(images)
        assert (ours(images) - expected).abs().max() < TOLERANCE * expected.abs().max()
        tokens = theirs.forward_features(images)
        assert (ours(images, "tokens") - tokens).abs().max() < TOLERANCE * tokens.abs().max()
        features = theirs.forward_head(tokens, pre_logits=True)
        assert (head_of(ours, tokens, "features") - features).abs().max() < TOLERANCE * features.abs().max()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("vit_tiny_patch16_224", "Ti/16"), ("vit_small_patch16_224", "S/16"), ("vit_base_patch32_224", "B/32")],
)
def test_whole_published_models_have_the_same_keys_in_the_same_order(theirs: str, ours: str) -> None:
    with torch.device("meta"):
        expected = timm.create_model(theirs).state_dict()
        found = create(ours).state_dict()
    assert [(k, v.shape) for k, v in found.items()] == [(k, v.shape) for k, v in expected.items()]


def test_another_resolution_gives_timms_logits() -> None:
    theirs = stir(timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True, **SAME_IMAGES)).eval()
    ours = create("Ti/16", image_size=64, num_classes=10, position={"resample": "timm"}).eval()
    ours.load_state_dict(theirs.state_dict())
    for size in ((96, 96), (48, 112)):
        images = torch.randn(1, 3, *size)
        with torch.inference_mode():
            expected = theirs(images)
            assert (ours(images) - expected).abs().max() < 1e-5 * expected.abs().max()
