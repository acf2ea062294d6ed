"""Fresh weights against the libraries and closed forms that each ``init`` is named after."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from vitreous.model.config import ViTConfig
from vitreous.model.positions.sincos_2d import sincos_table
from vitreous.model.vit import VisionTransformer

INITS = ["jax", "timm", "torchvision", "torch", "mimetic"]
SHAPE = {"image_size": 64, "patch_size": 16, "num_classes": 10, "width": 192, "depth": 2, "heads": 3, "mlp_dim": 768}


def built(init: str, **overrides: object) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(**(SHAPE | {"init": init} | overrides)))  # type: ignore[arg-type]
    return {name: p.detach() for name, p in model.named_parameters()}


def alike(found: Tensor, expected: Tensor, name: str) -> None:
    """Same shape, mean, spread and kind of distribution (uniform, cut or whole normal), within sampling error."""
    assert found.shape == expected.shape, name
    if expected.numel() == 1 or float(expected.std()) == 0:
        assert torch.equal(found, expected), name
        return
    if expected.numel() > 10_000:  # without the stray weights that torch 2.11's trunc_normal_ leaves in theirs
        expected = expected[expected.abs() < 10 * expected.abs().median()]
    spread, n = float(expected.std()), expected.numel()
    error = 1 / math.sqrt(2 * n)  # of a normal's standard deviation; a uniform's is smaller
    assert float(found.std()) == pytest.approx(spread, rel=8 * error), name
    assert abs(float(found.mean() - expected.mean())) < 8 * spread / math.sqrt(n), name
    if n > 10_000:
        for share in (0.5, 0.9, 0.999):
            bounds = [float(t.abs().flatten()[:100_000].quantile(share)) for t in (found, expected)]
            assert bounds[0] == pytest.approx(bounds[1], rel=0.06), name


def is_uniform(weight: Tensor, bound: float, name: str) -> None:
    assert float(weight.abs().max()) <= bound, name
    assert float(weight.abs().max()) > 0.98 * bound, name
    assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02), name


def test_jax_is_the_closed_forms_of_flax() -> None:
    found = built("jax", pool="map", class_token=True, head="mlp", registers=2)
    D, M = 192, 768
    for i in range(2):
        for part in found[f"blocks.{i}.attn.qkv.weight"].chunk(3):  # query, key and value apart: D x D each
            is_uniform(part, math.sqrt(6 / (D + D)), "qkv")
        is_uniform(found[f"blocks.{i}.attn.proj.weight"], math.sqrt(6 / (D + D)), "proj")
        for layer in ("fc1", "fc2"):
            is_uniform(found[f"blocks.{i}.mlp.{layer}.weight"], math.sqrt(6 / (D + M)), layer)
            assert float(found[f"blocks.{i}.mlp.{layer}.bias"].std()) == pytest.approx(1e-6, rel=0.25)
        for name in ("attn.qkv.bias", "attn.proj.bias", "norm1.bias", "norm2.bias"):
            assert not found[f"blocks.{i}.{name}"].any()
        assert (found[f"blocks.{i}.norm1.weight"] == 1).all()
    for name, fan_in in (("patch_embed.proj.weight", 3 * 16 * 16), ("pre_logits.fc.weight", D)):  # LeCun, cut at 2
        std = math.sqrt(1 / fan_in)
        assert float(found[name].std()) == pytest.approx(std, rel=0.02)
        assert float(found[name].abs().max()) <= 2 * std / 0.8796256610342398
    assert not found["patch_embed.proj.bias"].any()
    assert not found["cls_token"].any()
    assert float(found["pos_embed"].std()) == pytest.approx(0.02, rel=0.06)
    assert not found["head.weight"].any()
    assert not found["head.bias"].any()
    for part in found["attn_pool.kv.weight"].chunk(2):
        is_uniform(part, math.sqrt(6 / (D + D)), "kv")
    is_uniform(found["attn_pool.q.weight"], math.sqrt(6 / (D + D)), "q")
    assert float(found["attn_pool.latent"].abs().max()) <= math.sqrt(6 / (1 + D))  # big_vision's MAPHead


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({}, {}),
        ({"registers": 4, "position": {"prefix": "all"}}, {"reg_tokens": 4}),
        ({"pool": "map"}, {"global_pool": "map", "class_token": False}),
        ({"block": {"layer_scale": 0.1}, "attention": {"qk_norm": True}}, {"init_values": 0.1, "qk_norm": True}),
    ],
)
def test_timm(options: dict[str, object], theirs: dict[str, object]) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(1)
    shape = {"img_size": 64, "num_classes": 10, "depth": 2}
    expected = dict(timm.create_model("vit_tiny_patch16_224", **shape, **theirs).named_parameters())
    found = built("timm", **options)
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        alike(found[name], parameter.detach(), name)


def test_no_weight_strays() -> None:
    """torch 2.11's trunc_normal_ puts one weight in 17 million at its far bound, 100 standard deviations out."""
    found = built("timm", width=1280, heads=20, mlp_dim=5120)
    assert sum(p.numel() for p in found.values()) > 40e6
    assert max(float(p.abs().max()) for n, p in found.items() if n.endswith("weight") and "norm" not in n) < 0.15


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_torchvision(head: str) -> None:
    from torchvision.models.vision_transformer import VisionTransformer as Theirs

    torch.manual_seed(1)
    representation = {"representation_size": 100} if head == "mlp" else {}
    expected = Theirs(64, 16, 2, 3, 192, 768, num_classes=10, **representation).state_dict()
    found = built("torchvision", **({"head": {"kind": "mlp", "hidden": 100}} if head == "mlp" else {}))
    names = {
        "patch_embed.proj": "conv_proj",
        "cls_token": "class_token",
        "pos_embed": "encoder.pos_embedding",
        "norm.": "encoder.ln.",
        "head.": "heads.head.",
        "pre_logits.fc": "heads.pre_logits",
        ".norm1": ".ln_1",
        ".norm2": ".ln_2",
        ".attn.qkv.": ".self_attention.in_proj_",
        ".attn.proj": ".self_attention.out_proj",
        ".mlp.fc1": ".mlp.0",
        ".mlp.fc2": ".mlp.3",
        "blocks.": "encoder.layers.encoder_layer_",
    }
    for name, parameter in found.items():
        theirs = name
        for ours, other in names.items():
            theirs = theirs.replace(ours, other) if not ours.endswith("norm.") or name.startswith(ours) else theirs
        alike(parameter, expected[theirs], name)
    assert len(found) == len(expected)


def test_torch_is_the_layers_own() -> None:
    found = built("torch", head="mlp")
    torch.manual_seed(1)
    for name, layer in {
        "patch_embed.proj": nn.Conv2d(3, 192, 16, 16),
        "blocks.0.attn.qkv": nn.Linear(192, 576),
        "blocks.1.mlp.fc1": nn.Linear(192, 768),
        "blocks.1.mlp.fc2": nn.Linear(768, 192),
        "pre_logits.fc": nn.Linear(192, 192),
        "head": nn.Linear(192, 10),
    }.items():
        alike(found[f"{name}.weight"], layer.weight.detach(), name)
        assert float(found[f"{name}.bias"].abs().max()) <= 1 / math.sqrt(layer.weight[0].numel())
        assert found[f"{name}.bias"].any()
    assert float(found["pos_embed"].std()) == pytest.approx(1, rel=0.06)
    assert float(found["cls_token"].std()) == pytest.approx(1, rel=0.3)


def near_identity(noise: float, identity: float, width: int = 192) -> Tensor:
    """A matrix as arXiv 2305.09828, section 4, draws it."""
    torch.manual_seed(1)
    return noise * torch.randn(width, width) / math.sqrt(width) + identity * torch.eye(width)


@pytest.mark.parametrize("heads", [1, 3])
def test_mimetic_attention_is_the_papers(heads: int) -> None:
    found = built("mimetic", heads=heads)
    for i in range(2):
        q, k, v = found[f"blocks.{i}.attn.qkv.weight"].chunk(3)
        d = 192 // heads
        strength = torch.linalg.svdvals(near_identity(0.7, 0.7))[:d]
        for queries, keys in zip(q.split(d), k.split(d), strict=True):
            product = queries.T @ keys  # 192 x 192, of rank d
            torch.testing.assert_close(torch.linalg.svdvals(product)[:d], strength, rtol=0.1, atol=0.03)
            assert float(product.trace()) > 0.3 * d  # the identity's part
            torch.testing.assert_close(queries.norm(dim=1), keys.norm(dim=1))
            if heads == 1:
                alike(product - 0.7 * torch.eye(192), near_identity(0.7, 0), "query and key")
                assert float(product.diagonal().mean()) == pytest.approx(0.7, abs=0.02)
        product = found[f"blocks.{i}.attn.proj.weight"] @ v
        alike(product + 0.4 * torch.eye(192), near_identity(0.4, 0), "value and projection")
        assert float(product.diagonal().mean()) == pytest.approx(-0.4, abs=0.02)


def test_mimetic_positions_are_sines_and_the_rest_is_as_in_jax() -> None:
    found, plain = built("mimetic", registers=2), built("jax", registers=2)
    table = sincos_table((4, 4), 192) / 2
    torch.testing.assert_close(found["pos_embed"][:, 1:], table.float())
    assert float(found["pos_embed"][:, 0].std()) == pytest.approx(0.02, rel=0.3)
    for name, parameter in plain.items():
        if name != "pos_embed" and not name.endswith(("attn.qkv.weight", "attn.proj.weight")):
            alike(found[name], parameter, name)


def test_with_zero_residual_every_block_is_the_identity_at_first() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(**(SHAPE | {"block": {"zero_residual": True}}))).eval()  # type: ignore[arg-type]
    z = torch.randn(2, 5, model.config.width)
    for block in model.blocks:
        torch.testing.assert_close(block(z), z, rtol=0, atol=1e-5)  # the second bias is drawn with 1e-6


@pytest.mark.parametrize("init", INITS)
def test_zero_head(init: str) -> None:
    for zero, expected in ((None, init in ("jax", "torchvision", "mimetic")), (True, True), (False, False)):
        for head in ("linear", "mlp"):
            found = built(init, head={"kind": head, "zero": zero}, depth=1)
            assert (not found["head.weight"].any()) == expected
            assert head == "linear" or found["pre_logits.fc.weight"].any()


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"position": "learned-2d", "stem": "conv", "pool": "seq"},
        {
            "position": "relative",
            "registers": 3,
            "pool": "map",
            "head": "mlp",
            "attention": {"qkv_bias": False, "qk_norm": True},
        },
    ],
)
def test_a_seed_repeats_every_weight_and_none_is_left_out(init: str, options: dict[str, object]) -> None:
    first, again = built(init, **options), built(init, **options)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    torch.manual_seed(1)
    other = VisionTransformer(ViTConfig(**(SHAPE | {"init": init} | options)))  # type: ignore[arg-type]
    for name, parameter in other.named_parameters():
        assert parameter.isfinite().all()
        constant = parameter.numel() == 1 or float(parameter.detach().std()) == 0
        assert constant or not torch.equal(parameter, first[name]), name
        if parameter.ndim > 1 and not name.startswith(("head", "cls_token")):
            assert not constant, name
    with torch.no_grad():
        assert other.eval()(torch.randn(2, 3, 64, 64)).isfinite().all()
