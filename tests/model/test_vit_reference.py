"""The model against a plain second implementation: values and the gradient of every parameter."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from vit_reference import head_of, reference, small_config, stir
from vitreous.accelerate.kernels import attend
from vitreous.model.config import PARTS, ViTConfig
from vitreous.model.vit import VisionTransformer

POSITIONS = [kind.kind for kind in PARTS["position"]]
POOLS = ["cls", "mean", "map", "seq"]
ONE_BY_ONE = [
    {},
    {"patch_size": (4, 2), "image_size": (8, 6)},
    {"in_channels": 1, "stem": "linear", "patch_size": (2, 4)},
    {"stem": "conv"},
    {"stem": {"kind": "conv", "downsample": "max-pool", "width": 6}},
    {"stem": {"kind": "resnet", "layers": (), "width": 32}},
    {"stem": {"kind": "resnet", "layers": (1, 2), "width": 32}, "patch_size": (16, 8), "image_size": (32, 24)},
    {"stem": {"kind": "resnet", "layers": (2,), "width": 32, "norm": "timm"}, "image_size": (12, 8)},
    {"stem": {"activation": "relu"}},
    {"head": "mlp"},
    {"head": {"kind": "mlp", "hidden": 7, "activation": "relu"}},
    {"head": {"kind": "mlp", "hidden": 33, "activation": "gelu"}},
    {"num_classes": 0},
    {"pool": "cls-mean"},
    {"pool": "cls-mean", "registers": 2, "head": "mlp"},
    {"pool": {"kind": "cls-mean", "prefix": True}, "num_classes": 0},
    {"final_norm": "pooled"},
    {"final_norm": "none"},
    {"mlp": {"activation": "gelu-tanh"}},
    {"mlp": {"activation": "relu"}},
    {"attention": {"qkv_bias": False}},
    {"attention": {"qk_norm": True}},
    {"attention": {"qk_norm": True}, "position": "relative", "registers": 1},
    {"attention": {"qk_norm": True}, "position": "rope-2d", "registers": 2, "norm_eps": 1e-3},
    {"block": {"layer_scale": 0.1}},
    *({"mlp": {"activation": activation}} for activation in ("quick-gelu", "silu")),
    {"mlp": {"norm": True}},
    {"mlp": "gated"},
    {"mlp": {"kind": "gated", "norm": True, "activation": "gelu-tanh"}, "pool": "map"},
    {"norm": "rms", "attention": {"qk_norm": True, "out_norm": True}, "mlp": {"norm": True}, "pool": "map"},
    {"attention": {"out_norm": True}},
    {"attention": {"key_bias": False}, "position": "rope-2d", "stem": {"bias": False}},
    {"attention": {"key_bias": False, "qkv_bias": False}},
    {"input_norm": True, "stem": {"kind": "linear", "bias": False}, "registers": 1},
    {"head": {"kind": "mlp", "hidden": 9, "activation": "none", "bias": False}, "num_classes": 0},
    {"pool": "mean", "final_norm": "pooled", "class_token": True},
    {"pool": "map", "final_norm": "pooled", "mlp": {"activation": "gelu-tanh"}},
    {"heads": 1, "depth": 1},
    {"heads": 6},
    {"block": {"checkpoint": True}, "position": "relative"},
]
GRID = [dict(zip(("position", "pool"), both, strict=True)) for both in itertools.product(POSITIONS, POOLS)]
PREFIX = [
    {"position": {"prefix": which}, "registers": registers, "pool": pool}
    for which, registers, pool in itertools.product(("cls", "all", "none"), (0, 3), ("cls", "mean"))
]
POOL_PREFIX = [
    {"pool": {"kind": pool, "prefix": prefix}, "class_token": True, "registers": 1}
    for pool, prefix in itertools.product(("mean", "map", "seq"), (False, True))
]
LAYERS = [  # where learned positions are added
    *(
        {"position": {"kind": kind, "layers": layers}, "registers": registers, "depth": 3}
        for kind, layers, registers in itertools.product(("learned", "learned-2d"), ("every", "shared"), (0, 2))
    ),
    {"position": {"layers": "every", "prefix": "all"}, "registers": 2, "pool": "mean", "class_token": True},
    {"position": {"layers": "every", "prefix": "none"}, "registers": 1, "block": {"layer_scale": 0.1}},
    {"position": {"layers": "shared", "prefix": "none"}, "pool": "map"},
    {"position": {"layers": "shared"}, "depth": 1},
    {"position": {"layers": "every"}, "depth": 1},
]
AXIAL = [
    {"attention": "axial", "pool": "mean"},
    {"attention": "axial", "pool": "mean", "depth": 3, "patch_size": (2, 4), "image_size": (10, 8)},
    {"attention": {"kind": "axial", "qk_norm": True, "qkv_bias": False}, "pool": "map", "position": "sincos-2d"},
    {"attention": "axial", "pool": "seq", "position": {"layers": "every"}, "block": {"layer_scale": 0.1}},
    {"attention": "axial", "pool": "mean", "position": "none", "image_size": (4, 16), "heads": 1},
]
ROPE = [
    *({"position": {"kind": "rope-2d", **each}} for each in (
        {"coordinates": "centred", "first": "row", "pairs": "halves"},
        {"coordinates": "centred", "rounding": "bfloat16", "theta": 30.0},
        {"theta": 10000.0, "first": "row", "reference": 5, "absolute": "cls"},
        {"offset": 1.0, "reference": 2, "absolute": "patches"},
        {"pairs": "halves", "absolute": "all"},
    )),
    {"position": {"kind": "rope-mixed", "absolute": "patches"}, "registers": 2},
]  # fmt: skip
RELATIVE = [
    {"position": {"kind": "relative-bias", "shared": True, "absolute": "cls"}, "registers": 1},
    {"position": {"kind": "relative-bias", "absolute": "patches"}, "pool": "mean", "attention": {"key_bias": False}},
    {"position": {"kind": "relative-mlp", "hidden": 6, "shared": True}, "pool": "mean"},
    {"position": {"kind": "relative-mlp", "hidden": 4, "absolute": "patches"}, "pool": "mean"},
    {"position": {"kind": "relative-mlp", "hidden": 5}, "block": "norm-after", "pool": "mean", "class_token": True},
]
BLOCKS = [
    {"block": "norm-after", "mlp": "gated"},
    {"block": "parallel", "norm": "rms", "input_norm": True, "attention": {"qk_norm": True}},
    {"block": {"kind": "parallel", "layer_scale": 0.3}, "pool": "mean", "registers": 1, "position": "rope-2d"},
    {"pool": "prefix", "registers": 1, "position": {"prefix": "all"}},
    {"pool": "prefix", "registers": 2, "head": "mlp"},
    {"pool": {"kind": "map", "heads": 2, "mlp_dim": 10}, "mlp": {"kind": "gated", "norm": True}},
]
CASES = ROPE + RELATIVE + BLOCKS + ONE_BY_ONE + GRID + PREFIX + POOL_PREFIX + LAYERS + AXIAL


def name_of(case: dict[str, object]) -> str:
    return ",".join(f"{key}={value}" for key, value in case.items()) or "paper"


def pictures(config: ViTConfig, batch: int = 2) -> Tensor:
    size = config.image_size
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, config.in_channels, *size, generator=generator, dtype=torch.float64)  # type: ignore[misc]


def with_gradients(config: ViTConfig) -> tuple[VisionTransformer, Tensor, Tensor, dict[str, Tensor]]:
    """A float64 model, a batch, and the reference's logits and gradients of a fixed mixture of the logits."""
    model = stir(VisionTransformer(config)).double().eval()
    images = pictures(config)
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    leaves = {name: weights[name].requires_grad_() for name, _ in model.named_parameters()}
    logits = reference(images, weights, config)
    found = torch.autograd.grad(mixture(logits), list(leaves.values()), allow_unused=True)
    gradients = {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, found, strict=True)}
    return model, images, logits.detach(), gradients  # type: ignore[return-value]


def mixture(logits: Tensor) -> Tensor:
    return (logits * torch.arange(1, logits.numel() + 1, dtype=logits.dtype).view_as(logits).cos()).sum()


def distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference, in units of the largest expected value."""
    scale = expected.abs().max().clamp(min=1e-30)
    return float((found.double() - expected).abs().max() / scale)


def worst(model: VisionTransformer, logits: Tensor, expected: Tensor, gradients: dict[str, Tensor]) -> float:
    """The largest distance over the logits and, after backward, every parameter's gradient."""
    mixture(logits.double()).backward()
    far = {"logits": distance(logits.detach(), expected)}
    largest = max(float(g.abs().max()) for g in gradients.values())
    for name, parameter in model.named_parameters():
        got = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        scale = float(gradients[name].abs().max())
        if scale < 1e-9 * largest:  # zero in exact arithmetic, as of a bias on all keys: softmax does not see it
            scale = largest
        far[name] = float((got.double() - gradients[name]).abs().max()) / scale
    return max(far.values())


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_float64_agrees_to_1e_9(case: dict[str, object]) -> None:
    config = small_config(**case)
    model, images, expected, gradients = with_gradients(config)
    assert expected.abs().max() > 1e-2
    assert worst(model, model(images), expected, gradients) < 1e-9


@pytest.mark.parametrize(
    "case", [{}, *GRID[::5], {"attention": {"qk_norm": True}}, {"stem": "conv"}, *LAYERS[:2], *AXIAL[:3]], ids=name_of
)
def test_float32_agrees_to_1e_5(case: dict[str, object]) -> None:
    model, images, expected, gradients = with_gradients(small_config(**case))
    model = model.float()
    assert worst(model, model(images.float()), expected, gradients) < 1e-5


@pytest.mark.parametrize("how", ["autocast", "pure"])
@pytest.mark.parametrize(
    "case", [{}, *GRID[::5], {"attention": {"qk_norm": True}}, {"pool": "map"}, *LAYERS[:2], *AXIAL[:3]], ids=name_of
)
def test_bfloat16_agrees_to_a_few_of_its_256_steps(case: dict[str, object], how: str) -> None:
    # bfloat16 has 8 bits: one rounding is up to 1/256, and dozens lie between a pixel and a gradient.
    model, images, expected, gradients = with_gradients(small_config(**case))
    model = model.float() if how == "autocast" else model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        logits = model(images.to(next(model.parameters()).dtype))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        fused = model(images.to(next(model.parameters()).dtype))  # without gradients the other kernel computes
    assert distance(logits.detach(), expected) < 3e-2
    assert distance(fused, expected) < 3e-2
    assert worst(model, logits, expected, gradients) < 5e-2


def written_out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    scores = torch.einsum("bhnd,bhmd->bhnm", q, k) / math.sqrt(q.shape[-1])
    e = torch.exp(scores if bias is None else scores + bias)
    return torch.einsum("bhnm,bhmd->bhnd", e / e.sum(-1, keepdim=True), v)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_both_kernels_of_attend(dtype: torch.dtype, bound: float, biased: bool, grad: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64).to(dtype).requires_grad_(grad) for n in (5, 9, 9))
    bias = torch.randn(2, 3, 5, 9, dtype=torch.float64).to(dtype) if biased else None
    exact = [t.detach().double().requires_grad_(grad) for t in (q, k, v)]
    expected = written_out(*exact, None if bias is None else bias.double())
    with torch.set_grad_enabled(grad):
        found = attend(q, k, v, bias)
    assert found.dtype == dtype
    assert distance(found.detach(), expected.detach()) < bound
    if grad:
        mixture(found.double()).backward()
        mixture(expected).backward()
        assert all(distance(a.grad, b.grad) < 2 * bound for a, b in zip((q, k, v), exact, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_dropout_zeroes_weights_and_keeps_the_expectation(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q = torch.zeros(1, 1, 4000, 4, dtype=dtype)  # all weights are 1 / 4
    k, v = torch.zeros(1, 1, 4, 4, dtype=dtype), torch.eye(4, dtype=dtype)[None, None]
    weights = attend(q, k, v, dropout=0.25)[0, 0].float()  # v shows each weight in a channel of its own
    assert set(weights.flatten().tolist()) <= {0.0, float(torch.tensor(1 / 3, dtype=dtype))}
    assert abs(float((weights == 0).float().mean()) - 0.25) < 0.02  # 16,000 draws: sigma is 0.0034
    assert torch.equal(attend(q, k, v), torch.full_like(q, 0.25))


@pytest.mark.parametrize("position", POSITIONS)
def test_linear_stem_is_the_strided_convolution(position: str) -> None:
    case = {"position": position, "patch_size": (4, 2), "image_size": (8, 12)}
    conv = stir(VisionTransformer(small_config(**case))).double()
    flat = VisionTransformer(small_config(**case, stem="linear")).double()
    flat.load_state_dict(conv.state_dict(), strict=True)
    for size in ((8, 12), (12, 20)):
        images = torch.randn(3, 3, *size, dtype=torch.float64)
        with torch.no_grad():
            assert distance(flat(images), conv(images)) < 1e-12
            assert distance(flat.patch_embed(images)[0], conv.patch_embed(images)[0]) < 1e-13


def test_features_and_head_are_the_two_halves_of_forward() -> None:
    config = small_config(head={"kind": "mlp", "hidden": 11}, registers=2)
    model = stir(VisionTransformer(config)).eval()
    images = pictures(config).float()
    tokens = model(images, "tokens")
    assert tokens.shape == (2, 1 + 2 + 12, 24)
    torch.testing.assert_close(head_of(model, tokens), model(images), rtol=0, atol=1e-5)  # forward reads one token
    features = head_of(model, tokens, "features")
    assert features.shape == (2, 11)
    torch.testing.assert_close(model.head(features), model(images), rtol=0, atol=1e-5)
