"""Everything random in training: where it acts, how often, what it preserves, and that a seed repeats it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vit_reference import embed, reference, small_config, stir
from vitreous.accelerate.model import build
from vitreous.model.config import PARTS
from vitreous.model.vit import VisionTransformer

POSITIONS = [kind.kind for kind in PARTS["position"]]
EVERY_BLOCK = [{"kind": kind, "layers": layers} for kind in ("learned", "learned-2d") for layers in ("every", "shared")]
RATES: list[dict[str, object]] = [
    {"dropout": 0.5},
    {"attention": {"dropout": 0.5}},
    {"attention": {"proj_dropout": 0.5}},
    {"block": {"drop_path": 0.5}},
    {"patch_dropout": 0.5},
]


def built(**overrides: object) -> VisionTransformer:
    return stir(VisionTransformer(small_config(**overrides))).train()  # type: ignore[return-value]


def outputs(model: torch.nn.Module, *names: str) -> dict[str, list[Tensor]]:
    """Record what the named modules return from now on."""
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    for name in names:
        model.get_submodule(name).register_forward_hook(lambda _m, _i, out, to=seen[name]: to.append(out.detach()))
    return seen


@pytest.mark.parametrize("rate", RATES, ids=str)
def test_evaluation_drops_nothing(rate: dict[str, object]) -> None:
    plain, dropping = built(), built(**rate)
    images = torch.randn(2, 3, 12, 16)
    assert torch.equal(plain.eval()(images), dropping.eval()(images))
    assert not torch.equal(plain(images), dropping.train()(images))


@pytest.mark.parametrize("rate", RATES, ids=str)
def test_a_seed_repeats_every_draw(rate: dict[str, object]) -> None:
    model, images = built(**rate), torch.randn(2, 3, 12, 16)
    answers = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        answers.append(model(images))
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


def test_dropout_stands_after_every_dense_layer_but_qkv_and_after_the_positions() -> None:
    """Appendix B.1: "after every dense layer except for the qkv-projections and directly after adding positional"."""
    model = built(dropout=0.25, head="mlp", image_size=(32, 32), width=32, heads=4)
    places = ["pos_drop", "blocks.0.attn.proj_drop", "blocks.0.mlp.fc2", "blocks.1.attn.proj_drop"]
    dense = ["blocks.0.attn.qkv", "pre_logits.fc", "head"]
    seen = outputs(model, *places, *dense)
    twice = outputs(model, "blocks.0.mlp.drop")
    torch.manual_seed(0)
    for _ in range(4):
        model(torch.randn(8, 3, 32, 32))
    for name in ("pos_drop", "blocks.0.attn.proj_drop", "blocks.1.attn.proj_drop"):
        zeros = torch.stack(seen[name]).eq(0).float().mean()
        assert abs(float(zeros) - 0.25) < 0.01, name  # 66,560 draws: sigma is 0.0017
    assert len(twice["blocks.0.mlp.drop"]) == 8  # after the first and after the second dense layer
    for out in twice["blocks.0.mlp.drop"]:
        assert abs(float(out.eq(0).float().mean()) - 0.25) < 0.02
    for name in dense:
        assert not torch.stack(seen[name]).eq(0).any(), name


def test_dropout_scales_what_stays() -> None:
    model = built(dropout=0.5)
    x = torch.ones(1, 13, 24)
    assert set(model.pos_drop(x).unique().tolist()) == {0.0, 2.0}
    # No other module drops: set all to zero but one, and its place is the only one that matters.
    drops = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Dropout)]
    assert drops == ["pos_drop", *[f"blocks.{i}.{n}" for i in range(2) for n in ("attn.proj_drop", "mlp.drop")]]


def test_the_dropout_of_the_output_projection_can_be_another() -> None:
    model = built(dropout=0.5, attention={"proj_dropout": 0.0})
    kept = {n: m.p for n, m in model.named_modules() if isinstance(m, torch.nn.Dropout)}
    assert {n for n, p in kept.items() if p == 0} == {"blocks.0.attn.proj_drop", "blocks.1.attn.proj_drop"}
    assert set(kept.values()) == {0.0, 0.5}


def test_attention_dropout_acts_on_weights_only() -> None:
    model = built(attention={"dropout": 0.9})
    images = torch.randn(2, 3, 12, 16)
    model.blocks[0].attn.qkv.weight.data[48:] = 0  # equal values: then only the sum of the weights matters
    model.blocks[0].attn.qkv.bias.data[48:] = 1
    seen = outputs(model, "blocks.0.attn.proj")
    model.blocks[0].attn.proj.weight.data = torch.eye(24)
    model.blocks[0].attn.proj.bias.data.zero_()
    torch.manual_seed(0)
    for _ in range(100):
        model(images)
    sums = torch.stack(seen["blocks.0.attn.proj"]).reshape(-1, 3, 8)
    assert (sums - sums[..., :1]).abs().max() < 1e-5  # channels of one head share their weights
    assert not torch.allclose(sums[:, 0], sums[:, 1])  # heads do not
    assert abs(float(sums.mean()) - 1) < 0.1  # the expectation is kept


def test_drop_path_grows_linearly_and_keeps_the_expectation() -> None:
    model = built(depth=5, block={"drop_path": 0.4})
    rates = [block.drop_path.rate for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert [b.drop_path.rate for b in VisionTransformer(small_config(depth=1, block={"drop_path": 0.4})).blocks] == [
        0.0
    ]  # as timm's
    block = build(small_config(depth=2, block={"drop_path": 0.4})).blocks[1].train()
    stir(block)
    z = torch.randn(1, 6, 24).expand(20_000, -1, -1)
    torch.manual_seed(0)
    with torch.no_grad():
        out = block(z) - z
        # Per image, whole branches: both dropped leaves the input as it was.
        untouched = (out.abs().amax((1, 2)) == 0).float().mean()
    assert abs(float(untouched) - 0.16) < 0.012  # 0.4 squared; sigma is 0.0026
    drawn = block.draw(torch.ones(50_000, 2, 3))
    assert drawn is not None
    assert drawn.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    assert (drawn.mean((1, 2, 3)) - 1).abs().max() < 0.015  # sigma is 0.0037
    both = (drawn != 0).all(0).float().mean()
    assert abs(float(both) - 0.36) < 0.009  # the branches are drawn apart: 0.6 squared; sigma is 0.0021
    given = torch.tensor([[0.0, 0.5, 2.5], [1.0, 0.0, 2.5]])[:, :, None, None]
    between = z[:3] + given[0] * block.attn(block.norm1(z[:3]))
    torch.testing.assert_close(block(z[:3], branch_factors=given), between + given[1] * block.mlp(block.norm2(between)))


def kept_of(model: VisionTransformer, images: Tensor, tokens: Tensor) -> list[list[int]]:
    """Which patches reached the first block, found by comparing its tokens with those of the reference."""
    weights = dict(model.state_dict())
    everything, _ = embed(images, weights, model.config)
    P = model.config.prefix_tokens
    assert torch.allclose(tokens[:, :P], everything[:, :P], atol=1e-9)
    kept = []
    for got, all_tokens in zip(tokens[:, P:], everything[:, P:], strict=True):
        far = torch.cdist(got, all_tokens)
        assert far.amin(1).max() < 1e-9
        kept.append(far.argmin(1).tolist())
    return kept


@pytest.mark.parametrize("position", [*POSITIONS, *EVERY_BLOCK], ids=str)
@pytest.mark.parametrize("registers", [0, 2])
def test_patch_dropout_is_attention_over_a_subset(position: object, registers: int) -> None:
    model = built(position=position, registers=registers, patch_dropout=0.5, pool="map", class_token=True).double()
    images = torch.randn(4, 3, 12, 16, dtype=torch.float64)
    tokens: list[Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _m, args: tokens.append(args[0].detach()))
    logits = model(images)
    kept = kept_of(model, images, tokens[0])
    assert [len(k) for k in kept] == [6] * 4
    assert all(k == sorted(set(k)) for k in kept)  # in raster order, none twice
    assert len({tuple(k) for k in kept}) > 1  # images draw apart
    expected = reference(images, dict(model.state_dict()), model.config, kept)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    model.zero_grad()
    logits.square().sum().backward()
    assert model.blocks[0].attn.qkv.weight.grad.isfinite().all()


@pytest.mark.parametrize(("share", "count"), [(0.25, 9), (0.5, 6), (0.9, 1), (0.99, 1)])
def test_patch_dropout_counts(share: float, count: int) -> None:
    model = built(patch_dropout=share, registers=3)
    assert model(torch.randn(2, 3, 12, 16), "tokens").shape[1] == 4 + count
    assert model.eval()(torch.randn(2, 3, 12, 16), "tokens").shape[1] == 4 + 12


def test_patch_dropout_is_uniform() -> None:
    model = built(patch_dropout=0.5)
    torch.manual_seed(0)
    kept = model.draw_kept_patches(torch.empty(8000, 12, 24))
    assert kept is not None
    share = kept.flatten().bincount(minlength=12) / 8000
    assert (share - 0.5).abs().max() < 0.025  # sigma is 0.0056


@pytest.mark.parametrize("position", [*POSITIONS, *EVERY_BLOCK], ids=str)
def test_checkpointing_repeats_the_draws_to_the_bit(position: object) -> None:
    options = {
        "position": position,
        "dropout": 0.1,
        "attention": {"dropout": 0.1},
        "patch_dropout": 0.4,
    }
    gradients = []
    images = torch.randn(3, 3, 12, 16)
    for on in (False, True):
        config = small_config(**options, block={"drop_path": 0.5, "checkpoint": on}, depth=3)
        model = stir(build(config)).train()
        torch.manual_seed(3)
        model(images).square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None
        assert torch.equal(gradient, gradients[1][name]), name  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_kinds_of_dropout_together_train_in_each_precision(dtype: torch.dtype) -> None:
    model = built(
        dropout=0.3,
        attention={"dropout": 0.3, "proj_dropout": 0.3},
        block={"drop_path": 0.3},
        patch_dropout=0.3,
        position="relative",
    ).to(dtype)
    loss = model(torch.randn(4, 3, 12, 16, dtype=dtype)).float().square().mean()
    loss.backward()
    assert math.isfinite(float(loss.detach()))
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
