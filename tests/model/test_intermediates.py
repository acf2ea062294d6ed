"""Intermediate values of one pass, of the plain and the fast model, against the float64 reference."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from vit_reference import Seen, reference, small_config, stir
from vitreous.accelerate.merging import merge_tokens
from vitreous.accelerate.model import accelerate
from vitreous.errors import ConfigError
from vitreous.model.block import Block
from vitreous.model.config import PARTS, ViTConfig
from vitreous.model.record import Record
from vitreous.model.vit import VisionTransformer

RESNET = {"stem": {"kind": "resnet", "layers": (1, 2), "width": 32}, "patch_size": (16, 8), "image_size": (32, 24)}
CASES: list[dict[str, object]] = [
    {},
    *({"position": kind.kind} for kind in PARTS["position"]),
    *({"pool": kind.kind} for kind in PARTS["pool"]),
    *({"stem": kind.kind} if kind.kind != "resnet" else RESNET for kind in PARTS["stem"]),
    {"registers": 2, "position": "relative", "attention": {"qk_norm": True}},
    {"registers": 1, "position": {"layers": "every"}, "depth": 3},
    {"position": {"kind": "learned-2d", "layers": "shared"}},
    {"registers": 2, "pool": {"kind": "map", "prefix": False}, "class_token": True, "position": "rope-2d"},
    {"registers": 1, "pool": {"kind": "seq", "prefix": False}, "attention": {"qk_norm": True, "qkv_bias": False}},
    {"final_norm": "pooled", "pool": "mean", "block": {"layer_scale": 0.3}, "head": "mlp"},
    {"attention": "axial", "pool": "mean", "depth": 3},
    {"attention": {"kind": "axial", "qk_norm": True}, "pool": "map", "position": {"layers": "every"}},
    {"input_norm": True, "norm": "rms", "mlp": {"kind": "gated", "norm": True}, "stem": {"bias": False}},
    {"attention": {"key_bias": False, "out_norm": True}, "mlp": {"activation": "quick-gelu"}, "pool": "map"},
    {"position": {"kind": "rope-2d", "coordinates": "centred", "first": "row", "pairs": "halves", "absolute": "cls"}},
    {"position": {"kind": "rope-mixed", "absolute": "patches"}, "registers": 2, "pool": "prefix"},
    {"position": {"kind": "relative-bias", "shared": True, "absolute": "cls"}},
    {"position": {"kind": "relative-mlp", "shared": True, "hidden": 6}, "block": "norm-after", "pool": "mean"},
    {"block": {"kind": "parallel", "layer_scale": 0.3}, "norm": "rms"},
    {"pool": {"kind": "map", "heads": 2, "mlp_dim": 10}, "mlp": {"kind": "gated"}},
    {"num_classes": 0, "image_size": (224, 160), "patch_size": 32},
    {"image_size": (224, 160), "patch_size": 16, "position": "sincos-2d", "depth": 1},
    {"image_size": (56, 40), "patch_size": 8, "position": "rope-2d", "heads": 6},
    {"image_size": (70, 42), "patch_size": 14, "block": {"checkpoint": True}},
]


def model_of(case: dict[str, object], fast: bool = True) -> VisionTransformer:
    model = stir(VisionTransformer(small_config(**case))).double().eval()
    return accelerate(model) if fast else model  # type: ignore[arg-type, return-value]


def images_of(config: ViTConfig) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    size = config.image_size
    return torch.randn(2, config.in_channels, *size, generator=generator, dtype=torch.float64)  # type: ignore[misc]


def reference_of(model: VisionTransformer, images: Tensor) -> tuple[Tensor, Seen]:
    """The reference's logits and what it computed, heads stacked: B x H x T x ..., one entry per block."""
    seen: Seen = {}
    logits = reference(images, {n: t.detach() for n, t in model.state_dict().items()}, model.config, seen=seen)
    H = model.config.heads
    for name in ("q", "k", "v", "share", "mixed"):
        seen[name] = [torch.stack(seen[name][i : i + H], 1) for i in range(0, len(seen[name]), H)]
    return logits, seen


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_the_reference(case: dict[str, object], fast: bool) -> None:
    model = model_of(case, fast)
    images = images_of(model.config)
    logits, seen = reference_of(model, images)
    with torch.no_grad():
        found = model.intermediates(images, attention=True)
    close = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(found.logits, logits, **close)
    assert [layer.index for layer in found.layers] == list(range(model.config.depth))
    for layer in found.layers:
        i = layer.index
        for name, value in (("before", layer.before), ("after", layer.after), ("q", layer.queries), ("k", layer.keys)):
            torch.testing.assert_close(value, seen[name][i], **close)
        for name, value in (("v", layer.values), ("mixed", layer.mixed), ("share", layer.attention)):
            torch.testing.assert_close(value, seen[name][i], **close)
    h, w = found.grid
    assert (h, w) == model.config.grid
    assert found.tokens.shape[1] == found.prefix_tokens + h * w
    if model.config.pool.attends:
        share = torch.stack([each.reshape(2, -1) for each in seen["pool_share"]], 1)  # B H T
        torch.testing.assert_close(found.pooling.attention[:, :, 0], share, **close)  # type: ignore[union-attr, index]
    else:
        assert found.pooling is None


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_are_those_of_forward_bit_for_bit(case: dict[str, object], fast: bool) -> None:
    """Recording changes nothing; only the fast model's last block computes other rows, if the class token is read."""
    model = model_of(case, fast).float()
    images = images_of(model.config).float()
    with torch.no_grad():
        found, tokens, features = model.intermediates(images), model(images, "tokens"), model(images, "features")
        assert torch.equal(found.tokens, tokens)
        if fast and model.config.pool.kind in ("cls", "prefix"):
            torch.testing.assert_close(found.features, features, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(found.features, features)
            assert torch.equal(found.logits, model(images))


@pytest.mark.parametrize(
    "case",
    [{}, {"pool": "map"}, {"pool": "seq"}, {"position": "relative"}, {"attention": "axial", "pool": "mean"}],
    ids=str,
)
def test_gradients_reach_images_and_every_value(case: dict[str, object]) -> None:
    """Gradients by attention weights follow from those by `mixed`: the reference's come from its explicit softmax."""
    model = model_of(case)
    images = images_of(model.config).requires_grad_()
    seen: Seen = {}
    logits = reference(images, {n: t.detach() for n, t in model.state_dict().items()}, model.config, seen=seen)
    by_heads = [*seen["share"], *seen.get("pool_share", [])]
    expected = torch.autograd.grad(logits[:, 1].sum(), [images, *seen["before"], *by_heads])
    found = model.intermediates(images)
    inputs = [images, *(layer.before for layer in found.layers), *(layer.mixed for layer in found.layers)]
    inputs += [found.pooling.mixed] if found.pooling else []
    got = torch.autograd.grad(found.logits[:, 1].sum(), inputs)
    close = {"rtol": 1e-8, "atol": 1e-10}
    H, L = model.config.heads, model.config.depth
    for value, grad in zip(expected[: 1 + L], got[: 1 + L], strict=True):
        torch.testing.assert_close(grad, value, **close)
    by_share = expected[1 + L :]
    for i, layer in enumerate(found.layers):
        each = torch.stack(by_share[i * H : (i + 1) * H], 1)
        torch.testing.assert_close(layer.weights_gradient(got[1 + L + i]), each, **close)
    if found.pooling:
        each = torch.stack([grad.reshape(2, -1) for grad in by_share[L * H :]], 1)
        torch.testing.assert_close(found.pooling.weights_gradient(got[-1])[:, :, 0], each, **close)
    assert len(by_share) == L * H + len(seen.get("pool_share", []))


def test_layers_are_chosen_by_number_also_from_the_end() -> None:
    model = model_of({"depth": 5})
    images = images_of(model.config)
    every = model.intermediates(images)
    some = model.intermediates(images, layers=[3, -5])
    assert [layer.index for layer in some.layers] == [3, 0]
    assert torch.equal(some.layers[0].after, every.layers[3].after)
    assert some.layers[0].attention is None
    assert model.intermediates(images, layers=[]).layers == ()
    for wrong, words in (([5], "5 blocks"), ([-6], "use -5 to 4"), ([1, -4], "block 1 twice")):
        with pytest.raises(ConfigError, match=words):
            model.intermediates(images, layers=wrong)


def test_training_mode_and_merged_tokens_are_refused_with_a_remedy() -> None:
    model = model_of({})
    images = images_of(model.config)
    with pytest.raises(ConfigError, match=r"call model\.eval\(\)"):
        model.train().intermediates(images)
    merge_tokens(model.eval(), 2)
    for layers in (None, [0], []):  # without a layer, the tokens are still merged
        with pytest.raises(ConfigError, match="merge_tokens"):
            model.intermediates(images, layers)


def test_a_block_that_ignores_the_record_is_named() -> None:
    class Silent(Block):
        def forward(self, z, context=None, record=None):  # type: ignore[no-untyped-def]
            return super().forward(z, context)

    model = model_of({}, fast=False)
    model.blocks[1].__class__ = Silent
    with pytest.raises(ConfigError, match="block 1 keeps no values"):
        model.intermediates(images_of(model.config))


@pytest.mark.parametrize("position", ["learned", "relative", "rope-2d", "learned-2d"])
def test_another_resolution_has_another_grid(position: str) -> None:
    plain = model_of({"position": position}, fast=False)
    fast = accelerate(copy.deepcopy(plain))
    images = torch.randn(2, 3, 24, 20, dtype=torch.float64)
    with torch.no_grad():
        one, other = plain.intermediates(images, attention=True), fast.intermediates(images, attention=True)
        torch.testing.assert_close(one.logits, plain(images), rtol=1e-9, atol=1e-10)
        assert torch.equal(plain.intermediates(images).logits, plain(images))  # fused, as in the pass
    assert one.grid == other.grid == (6, 5)
    for a, b in zip(one.layers, other.layers, strict=True):
        assert a.attention.shape == (2, 3, 31, 31)  # type: ignore[union-attr]
        torch.testing.assert_close(a.attention, b.attention)
        assert torch.equal(a.attention @ a.values, a.mixed)  # type: ignore[operator]


@pytest.mark.parametrize("case", CASES[:3] + CASES[-8:-6], ids=str)
def test_under_autocast_weights_are_float32_and_near_those_in_float64(case: dict[str, object]) -> None:
    model = model_of(case)
    images = images_of(model.config)
    with torch.no_grad():
        exact = model.intermediates(images, attention=True)
        with torch.autocast("cpu", torch.bfloat16):
            found = model.float().intermediates(images.float(), attention=True)
    for layer, expected in zip(found.layers, exact.layers, strict=True):
        assert layer.attention is not None
        assert layer.attention.dtype == torch.float32
        torch.testing.assert_close(layer.attention.sum(-1), torch.ones(2, 3, layer.before.shape[1]))
        torch.testing.assert_close(layer.attention.double(), expected.attention, rtol=0, atol=0.05)


def test_images_one_after_the_other_give_the_same_bits() -> None:
    """Above a number of weights a CPU does so without gradients; with them, the batch is one product."""
    q, k, v = (x.transpose(1, 2) for x in torch.randn(3, 200, 3, 4, 16).unbind(2))
    alone, together = Record(explicit=True), Record(explicit=True)
    with torch.no_grad():
        mixed = alone.attend(q, k, v, None)
    assert torch.equal(mixed, together.attend(q.requires_grad_(), k, v, None))
    assert torch.equal(alone.weights, together.weights)  # type: ignore[arg-type]
    assert together.weights.requires_grad  # type: ignore[union-attr]
