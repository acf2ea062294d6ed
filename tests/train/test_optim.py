"""The optimisers and schedules against torch's own classes and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vitreous.accelerate.model import build
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer
from vitreous.train.config import OptimConfig
from vitreous.train.loop import optim
from vitreous.train.loop.optim import (
    MuonWithAdamW,
    build_optimizer,
    layer_factors,
    parameter_groups,
    schedule,
    set_learning_rate,
)


def tiny(**options) -> VisionTransformer:
    torch.manual_seed(0)
    return build(
        ViTConfig(**{"image_size": 8, "patch_size": 4, "num_classes": 5, "width": 16, "depth": 2, "heads": 2,
                     "mlp_dim": 24, **options})
    )  # fmt: skip


def test_one_cycle_equals_torchs_scheduler_at_every_step():
    steps, warmup = 500, 0.3
    config = OptimConfig(schedule="one-cycle", warmup=warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    # torch puts the peak at step pct_start * total - 1; ours is at a fraction of the way from first to last.
    same_peak = (warmup * (steps - 1) + 1) / steps
    reference = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=steps, pct_start=same_peak, cycle_momentum=False
    )
    for step in range(steps):
        assert schedule(config, step / (steps - 1)) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        if step < steps - 1:
            reference.step()


def test_one_cycle_in_a_run_follows_torchs_within_a_step():
    steps = 2000
    config = OptimConfig(schedule="one-cycle", warmup=0.3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=steps, cycle_momentum=False)
    steepest = math.pi / 2 / (0.3 * steps)  # change of half a cosine in one step
    for step in range(steps):
        assert abs(schedule(config, (step + 0.5) / steps) - optimizer.param_groups[0]["lr"]) < steepest
        optimizer.step()
        if step < steps - 1:
            reference.step()


@pytest.mark.parametrize("progress", [0.0, 0.05, 0.1, 0.3, 0.55, 0.9, 1.0])
def test_the_other_schedules_have_closed_forms(progress):
    rest = (progress - 0.1) / 0.9
    warm = progress / 0.1 if progress < 0.1 else None
    expected = {
        "cosine": 0.05 + 0.95 * (1 + math.cos(math.pi * rest)) / 2,
        "linear": 1 - 0.95 * rest,
        "constant": 1.0,
    }
    for name, value in expected.items():
        config = OptimConfig(schedule=name, warmup=0.1, final_lr=0.05)
        assert schedule(config, progress) == pytest.approx(value if warm is None else warm, abs=1e-12)


@pytest.mark.parametrize("name", ["cosine", "linear", "one-cycle", "constant"])
def test_no_warm_up_starts_at_the_peak_and_progress_is_clipped(name):
    config = OptimConfig(schedule=name, warmup=0.0)
    assert schedule(config, 0.0) == 1.0
    assert schedule(config, 1.7) == schedule(config, 1.0)
    assert schedule(config, -0.2) == schedule(config, 0.0)


@pytest.mark.parametrize("options", [
    {}, {"pool": "map", "registers": 3, "block": {"layer_scale": 0.1}},
    {"stem": "conv", "pool": "seq", "attention": {"qk_norm": True}},
    {"position": "relative"}, {"position": "learned-2d", "head": "mlp"},
])  # fmt: skip
def test_only_the_matrices_of_linear_and_convolution_layers_decay(options):
    model = tiny(**options)
    groups = parameter_groups(model, 0.1)
    decaying = {n for g in groups if g["weight_decay"] == 0.1 for n in g["names"]}
    kept = {n for g in groups if g["weight_decay"] == 0.0 for n in g["names"]}
    assert decaying | kept == {n for n, _ in model.named_parameters()}
    assert not decaying & kept
    assert "blocks.0.attn.qkv.weight" in decaying
    assert "blocks.1.mlp.fc2.weight" in decaying
    words = ("bias", "norm", "pos_embed", "cls_token", "reg_token", "latent", "gamma")
    assert [n for n in decaying if any(word in n for word in words)] == []
    assert all(dict(model.named_parameters())[n].ndim >= 2 for n in decaying)


def test_blocks_of_a_resnet_stem_have_the_rate_of_the_stem():
    model = tiny(stem={"kind": "resnet", "layers": (1, 3), "width": 32}, patch_size=8, image_size=16)
    factors = layer_factors((name for name, _ in model.named_parameters()), 0.5)
    stem = {name: factor for name, factor in factors.items() if name.startswith("patch_embed.")}
    assert any(".blocks.2." in name for name in stem)  # more than the encoder has
    assert set(stem.values()) == {factors["cls_token"]} == {0.5**3}
    assert [factors[f"blocks.{index}.attn.qkv.weight"] for index in range(2)] == [0.5**2, 0.5]


def test_muon_trains_the_blocks_matrices_and_equals_both_of_torchs_optimisers():
    ours, theirs = tiny(), tiny()
    config = OptimConfig(name="muon", lr=1e-3, muon_lr=0.02, weight_decay=0.1)
    optimizer = build_optimizer(ours, config)
    named = dict(theirs.named_parameters())
    hidden = [n for n, p in named.items() if n.startswith("blocks.") and p.ndim == 2]
    assert len(hidden) == 2 * 4
    references = [
        torch.optim.Muon([named[n] for n in hidden], lr=0.02, momentum=0.95, weight_decay=0.1),
        torch.optim.AdamW([named["patch_embed.proj.weight"], named["head.weight"]], lr=1e-3, weight_decay=0.1,
                          fused=True),
        torch.optim.AdamW([p for n, p in named.items() if p.ndim < 2 or "token" in n or "pos" in n], lr=1e-3,
                          weight_decay=0.0, fused=True),
    ]  # fmt: skip
    images, labels = torch.randn(6, 3, 8, 8), torch.arange(6) % 5
    for _ in range(4):
        for model, optimizers in ((ours, [optimizer]), (theirs, references)):
            nn.functional.cross_entropy(model(images), labels).backward()
            for each in optimizers:
                with torch.autocast("cpu", torch.bfloat16):  # Newton-Schulz in bfloat16, as torch's always is
                    each.step()
                each.zero_grad()
    for name, value in ours.named_parameters():
        torch.testing.assert_close(value, named[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"stem": "conv", "patch_size": 4}])
def test_muon_can_train_the_stem_with_a_row_for_each_filter(options):
    model = tiny(**options)
    stem = {n: p for n, p in model.patch_embed.named_parameters() if p.ndim == 4}
    assert set(stem) == {"proj.weight"} | ({"backbone.0.0.weight", "backbone.1.0.weight"} if options else set())
    filters = {n: nn.Parameter(p.detach().flatten(1).clone()) for n, p in stem.items()}
    optimizer = build_optimizer(model, OptimConfig(name="muon", muon_lr=0.02, weight_decay=0.1, muon_stem=True))
    torchs = torch.optim.Muon(filters.values(), lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(3):
        nn.functional.cross_entropy(model(torch.randn(6, 3, 8, 8)), torch.arange(6) % 5).backward()
        for name, matrix in filters.items():
            matrix.grad = stem[name].grad.flatten(1).clone()
        for each in (optimizer, torchs):
            with torch.autocast("cpu", torch.bfloat16):
                each.step()
            each.zero_grad()
    for name, matrix in filters.items():
        torch.testing.assert_close(stem[name].flatten(1), matrix, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_muon_orthogonalises_in_the_precision_of_the_step(shape):
    """Newton-Schulz keeps the singular vectors, and applies its polynomial to each singular value."""
    stack = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(stack.double(), full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    found = optim.orthogonalise(stack)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, (left @ (values[..., None] * right)).float(), rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert optim.orthogonalise(stack).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
def test_a_restored_state_continues_identically(name, tmp_path):
    def run(model, optimizer, steps):
        for step in steps:
            images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(step))
            set_learning_rate(optimizer, schedule(OptimConfig(), step / 6))
            nn.functional.cross_entropy(model(images), torch.arange(6) % 5).backward()
            optimizer.step()
            optimizer.zero_grad()

    config = OptimConfig(name=name)
    whole = tiny()
    run(whole, build_optimizer(whole, config), range(6))
    first = tiny()
    optimizer = build_optimizer(first, config)
    run(first, optimizer, range(3))
    torch.save((first.state_dict(), optimizer.state_dict()), tmp_path / "state.pt")
    weights, state = torch.load(tmp_path / "state.pt", weights_only=True)
    second = tiny()
    second.load_state_dict(weights)
    optimizer = build_optimizer(second, config)
    optimizer.load_state_dict(state)
    run(second, optimizer, range(3, 6))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


def test_muon_and_adamw_have_their_own_peaks_and_one_factor():
    model = tiny()
    optimizer = build_optimizer(model, OptimConfig(name="muon", lr=1e-3, muon_lr=0.02))
    assert isinstance(optimizer, MuonWithAdamW)
    set_learning_rate(optimizer, 0.5)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [5e-4, 0.01]


def test_frozen_parameters_are_left_out():
    model = tiny()
    model.patch_embed.requires_grad_(False)
    names = {n for g in parameter_groups(model, 0.1) for n in g["names"]}
    assert not any(n.startswith("patch_embed") for n in names)
    assert "head.weight" in names


def test_adam_is_adam():
    model = VisionTransformer(ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, mlp_dim=32))
    optimizers = {name: build_optimizer(model, OptimConfig(name=name)) for name in ("adam", "adamw")}
    assert type(optimizers["adam"]) is torch.optim.Adam
    assert type(optimizers["adamw"]) is torch.optim.AdamW
