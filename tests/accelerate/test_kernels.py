"""Each product that is written out for bfloat16 on a CPU against the same in float64: values and every gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit_reference import head_of
from vitreous.accelerate import kernels
from vitreous.accelerate.kernels import LayerNorm, Linear, attend, project_heads, split_heads
from vitreous.accelerate.model import build
from vitreous.model.config import ViTConfig

BF16 = torch.bfloat16
ROUNDING = 2**-7  # of a bfloat16 result, relative to the largest: two roundings and a bit


def close(found: Tensor | None, wanted: Tensor | None, bound: float = ROUNDING) -> None:
    assert found is not None
    assert wanted is not None
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max() <= bound * wanted.abs().max()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_linear(bias: bool, autocast: bool) -> None:
    torch.manual_seed(0)
    layer, exact = Linear(24, 40, bias=bias), nn.Linear(24, 40, bias=bias).double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(3, 7, 24).to(BF16).float().requires_grad_()
    z, grad = x.detach().double().requires_grad_(), torch.randn(3, 7, 40).to(BF16)
    if autocast:
        with torch.autocast("cpu", BF16):
            y = layer(x)
    else:
        y = layer.to(BF16)(x.to(BF16))
        exact.load_state_dict(layer.state_dict())  # what rounding left of them
    assert y.dtype == BF16
    y.backward(grad)
    exact(z).backward(grad.double())
    close(y, exact(z))
    close(x.grad, z.grad)
    for parameter, reference in zip(layer.parameters(), exact.parameters(), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype
        close(parameter.grad, reference.grad)


def test_frozen_weights_get_no_gradient_and_inputs_still_do() -> None:
    layer = Linear(8, 8).requires_grad_(False)
    x = torch.randn(2, 8, requires_grad=True)
    with torch.autocast("cpu", BF16):
        layer(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in layer.parameters())


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_layer_norm_sums_its_gradients_exactly_where_torch_loses_a_tenth(offset: float) -> None:
    torch.manual_seed(0)
    norm, exact = LayerNorm(64, eps=1e-6), nn.LayerNorm(64, eps=1e-6).double()
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    exact.load_state_dict(norm.state_dict())
    x = (torch.randn(4096, 64) + offset).to(BF16).requires_grad_()
    z, grad = x.detach().double().requires_grad_(), torch.randn(4096, 64).to(BF16)
    norm(x).backward(grad)
    exact(z).backward(grad.double())
    close(norm(x), exact(z))
    close(x.grad, z.grad)
    close(norm.weight.grad, exact.weight.grad, 3e-2)
    close(norm.bias.grad, exact.bias.grad)


def test_layer_norm_reads_what_is_not_contiguous() -> None:
    x = torch.randn(3, 5, 16).to(BF16)
    norm = LayerNorm(16)
    part = x[:, :1].detach().requires_grad_()
    norm(part).sum().backward()
    close(norm(x[:, :1]), F.layer_norm(x[:, :1].double(), (16,)))


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("queries", [None, 1])
def test_attention_and_heads(queries: int | None, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if long:  # by the fused kernel
        monkeypatch.setattr(kernels, "_LONG", 9)
    torch.manual_seed(0)
    qkv = torch.randn(2, 9, 3 * 32).to(BF16).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    grad = torch.randn(2, 4, queries or 9, 8).to(BF16)
    q, k, v = split_heads(qkv, 3, 4)
    p, m, u = exact.view(2, 9, 3, 4, 8).permute(2, 0, 3, 1, 4)
    for found, wanted in ((q, p), (k, m), (v, u)):
        assert torch.equal(found.double(), wanted)
    y = attend(q[:, :, :queries], k, v)
    z = attend(p[:, :, :queries], m, u)
    assert z.dtype == torch.float64
    assert y.dtype == BF16
    y.backward(grad)
    z.backward(grad.double())
    close(y, z)
    close(qkv.grad, exact.grad, 2 * ROUNDING)


@pytest.mark.parametrize("bias", [True, False])
def test_an_exported_projection_is_a_product_for_each_part(bias: bool) -> None:
    class Heads(nn.Module):
        def __init__(self, projection: nn.Module) -> None:
            super().__init__()
            self.projection = projection

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return project_heads(x, self.projection, 3, 4)

    def exported(projection: nn.Module) -> torch.export.ExportedProgram:
        return torch.export.export(Heads(projection), (x,))

    torch.manual_seed(0)
    x = torch.randn(2, 9, 32)
    plain, adapted = Linear(32, 96, bias=bias), Linear(32, 96, bias=bias)
    adapted.__class__ = type("Adapted", (Linear,), {"forward": lambda self, x: 2 * Linear.forward(self, x)})
    for projection, products in ((plain, 3), (adapted, 1)):
        program, expected = exported(projection), Heads(projection)(x)
        targets = [str(node.target) for node in program.graph.nodes]
        assert targets.count("aten.linear.default") == products
        for found, wanted in zip(program.module()(x), expected, strict=True):
            torch.testing.assert_close(found, wanted)


SMALL = ViTConfig(image_size=16, patch_size=4, width=32, depth=3, heads=2, mlp_dim=64, num_classes=5)


@pytest.mark.parametrize(
    "options",
    [
        {"block": {"layer_scale": 0.1}},
        {},
        {"stem": "linear", "pool": "mean"},
        {"attention": {"qk_norm": True}, "position": "rope-2d"},
        {"registers": 2, "pool": "map"},
    ],
    ids=str,
)
def test_a_step_under_autocast_has_the_gradients_of_float64(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, **options)  # type: ignore[arg-type]
    model, exact = build(config), build(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    exact.load_state_dict(model.state_dict())
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    with torch.autocast("cpu", BF16):
        logits = model(images)
        assert model(images, "tokens").dtype == BF16  # the residual stream
    F.cross_entropy(logits.float(), labels).backward()
    F.cross_entropy(exact(images.double()), labels).backward()
    close(logits, exact(images.double()), 3e-2)
    for (name, parameter), reference in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert parameter.grad is not None, name
        assert reference.grad is not None
        if reference.grad.norm() > 1e-8:
            assert (parameter.grad - reference.grad).norm() <= 3e-2 * reference.grad.norm(), name


@pytest.mark.parametrize("position", ["learned", "rope-2d", "relative"])
def test_the_class_token_alone_comes_out_as_beside_all_others(position: str) -> None:
    torch.manual_seed(0)
    model = build(dataclasses.replace(SMALL, position=position, registers=1)).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(model(images), head_of(model, model(images, "tokens")), rtol=0, atol=1e-12)
