"""The fast model against the plain one: one state dict, the same answers and the same gradients."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from vit_reference import small_config, stir
from vitreous.accelerate.merging import merge_tokens
from vitreous.accelerate.model import FastVisionTransformer, accelerate, build, create
from vitreous.errors import ConfigError
from vitreous.model.attention import Attention
from vitreous.model.block import Block
from vitreous.model.config import PARTS, ViTConfig
from vitreous.model.vit import VisionTransformer

LARGE = {
    "resnet": {"image_size": (32, 48), "patch_size": 16, "stem": {"kind": "resnet", "width": 32, "layers": (1, 1, 1)}},
    "axial": {"pool": "mean"},
}
CASES: list[dict[str, object]] = [
    *({part: kind.kind} | LARGE.get(kind.kind, {}) for part, kinds in PARTS.items() for kind in kinds),
    {"attention": {"kind": "axial", "qk_norm": True}, "pool": "map", "block": {"checkpoint": True}, "depth": 3},
    {"input_norm": True, "norm": "rms", "mlp": {"kind": "gated", "norm": True}, "stem": {"bias": False}},
    {"attention": {"key_bias": False, "out_norm": True}, "mlp": {"activation": "quick-gelu"}, "pool": "map"},
    {"position": {"kind": "rope-2d", "coordinates": "centred", "first": "row", "pairs": "halves", "absolute": "cls"}},
    {"position": {"kind": "rope-mixed", "absolute": "patches"}, "registers": 2, "pool": "prefix"},
    {"position": {"kind": "relative-bias", "shared": True, "absolute": "cls"}},
    {"position": {"kind": "relative-mlp", "shared": True, "hidden": 6}, "block": "norm-after", "pool": "mean"},
    {"block": {"kind": "parallel", "layer_scale": 0.3}, "norm": "rms"},
    {"pool": {"kind": "map", "heads": 2, "mlp_dim": 10}, "mlp": {"kind": "gated"}},
    {"registers": 2, "class_token": True, "pool": "mean", "position": {"prefix": "none"}},
    {"registers": 2, "position": {"prefix": "all"}, "final_norm": "none"},
    {"pool": "map", "final_norm": "pooled", "head": {"kind": "mlp", "hidden": 7}, "mlp": {"activation": "relu"}},
    {"attention": {"qk_norm": True, "qkv_bias": False}, "block": {"layer_scale": 0.3}, "position": "relative"},
    {"position": {"kind": "rope-2d", "theta": 10.0}, "pool": {"kind": "seq", "prefix": False}, "registers": 1},
    {"stem": {"kind": "conv", "downsample": "stride"}, "position": "learned-2d", "block": {"checkpoint": True}},
    {"position": {"layers": "every"}, "registers": 1, "block": {"checkpoint": True}, "depth": 3},
    {"position": {"layers": "shared", "prefix": "none"}, "pool": "mean", "class_token": True},
    {"position": {"kind": "learned-2d", "layers": "every"}, "registers": 1, "pool": "cls-mean"},
    {"position": {"kind": "learned-2d", "layers": "shared"}, "depth": 3},
]
name_of = ", ".join


def both(case: dict[str, object]) -> tuple[VisionTransformer, FastVisionTransformer]:
    plain = stir(VisionTransformer(small_config(**case))).double()
    return plain, accelerate(copy.deepcopy(plain))  # type: ignore[arg-type, return-value]


def images_of(config: ViTConfig, scale: int = 1) -> torch.Tensor:
    height, width = config.image_size  # type: ignore[misc]
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 3, scale * height, scale * width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_are_those_of_the_plain_model(case: dict[str, object]) -> None:
    plain, fast = both(case)
    plain.eval(), fast.eval()
    for scale, output in itertools.product((1, 2), ("logits", "features", "tokens")):
        images = images_of(plain.config, scale)
        with torch.no_grad():
            expected = plain(images, output)
            for _ in range(2):  # the second time from the tables that are kept
                torch.testing.assert_close(fast(images, output), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_the_plain_model(case: dict[str, object]) -> None:
    plain, fast = both(case)
    for model in (plain, fast):
        model.train()(images_of(plain.config)).square().sum().backward()
    for (name, expected), (same, found) in zip(plain.named_parameters(), fast.named_parameters(), strict=True):
        assert name == same
        if expected.grad is None:
            assert found.grad is None or not found.grad.any(), name
        else:
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_have_one_state_dict_and_start_from_the_same_weights(case: dict[str, object]) -> None:
    config = small_config(**case)
    torch.manual_seed(3)
    plain = VisionTransformer(config)
    torch.manual_seed(3)
    fast = build(config)
    assert type(plain) is VisionTransformer
    assert type(fast) is FastVisionTransformer
    ours, theirs = plain.state_dict(), fast.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize(
    "rates",
    [
        {"dropout": 0.3},
        {"block": {"drop_path": 0.5}},
        {"patch_dropout": 0.4},
        {"patch_dropout": 0.4, "position": {"layers": "every"}, "registers": 1},
        {"patch_dropout": 0.4, "position": {"kind": "learned-2d", "layers": "shared"}},
    ],
    ids=str,
)
def test_both_draw_the_same(rates: dict[str, object]) -> None:
    plain, fast = both({"pool": "mean", "class_token": True, **rates})
    answers = []
    for model in (plain, fast):
        torch.manual_seed(5)
        answers.append(model.train()(images_of(plain.config)))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-10, atol=1e-12)


def test_create_returns_the_fast_model_and_the_class_the_plain_one() -> None:
    assert type(create("mu/16", num_classes=3, image_size=32)) is FastVisionTransformer
    model = VisionTransformer(ViTConfig(image_size=32, width=32, depth=1, heads=2, mlp_dim=64))
    assert not any(type(module).__module__.startswith("vitreous.accelerate") for module in model.modules())


@pytest.mark.parametrize("part", ["block", "attention", "head"])
def test_a_model_with_a_users_own_part_computes_the_same(part: str) -> None:
    class OwnBlock(Block):
        """A user's."""

        def forward(self, z: Tensor, context: object = None, record: object = None) -> Tensor:
            return 2 * super().forward(z, context)

    class OwnAttention(Attention):
        """A user's."""

        def forward(self, x: Tensor, context: object = None, record: object = None) -> Tensor:
            return -super().forward(x, context)

    model = VisionTransformer(small_config()).eval()
    if part == "block":
        model.blocks[0].__class__ = OwnBlock
    elif part == "attention":
        model.blocks[0].attn.__class__ = OwnAttention
    else:
        model.head = nn.Sequential(nn.Linear(24, 5), nn.ReLU())
    images = images_of(model.config).float()
    expected = model(images)
    fast = accelerate(model)
    torch.testing.assert_close(fast(images), expected)
    assert isinstance(fast, FastVisionTransformer) == (part == "head")
    if part != "head":
        with pytest.raises(ConfigError, match="classes of your own: use merge_tokens 0"):
            merge_tokens(fast, 1)


def test_both_models_refuse_an_unknown_output() -> None:
    plain, fast = both({})
    for model in (plain, fast):
        with pytest.raises(ConfigError, match="output is 'bogus', it must be logits, features, tokens"):
            model(images_of(plain.config), "bogus")


def test_a_derived_model_stays() -> None:
    class OwnModel(VisionTransformer):
        """A user's."""

    own = OwnModel(small_config())
    assert accelerate(own) is own
    assert type(own) is OwnModel
