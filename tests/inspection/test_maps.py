"""Class maps against the float64 reference, closed forms, and pytorch-grad-cam."""

from __future__ import annotations

import pytest
import torch
from checkpoints import FAMILIES, opened
from reference_maps import Reference, distance, images_of
from torch import Tensor

from vit_reference import small_config, stir
from vitreous.accelerate.merging import merge_tokens
from vitreous.accelerate.model import accelerate
from vitreous.errors import ConfigError
from vitreous.inspection.explain import map_method
from vitreous.inspection.maps import MAPS
from vitreous.inspection.maps.base import score
from vitreous.inspection.maps.rollout import roll_out
from vitreous.model.config import PARTS
from vitreous.model.vit import VisionTransformer

BOUND = 1e-5  # of the largest value
TARGETS = torch.tensor([2, 0])
OWN: list[dict[str, object]] = [
    *({"position": kind.kind, "registers": 1} for kind in PARTS["position"]),
    *({"pool": kind.kind} for kind in PARTS["pool"]),
    {"pool": "prefix", "registers": 1},
    {"pool": {"kind": "seq", "prefix": False}, "registers": 2, "class_token": True},
    {"pool": "mean", "final_norm": "pooled", "head": "mlp", "block": {"layer_scale": 0.4}},
    {"stem": "conv", "final_norm": "none"},
    {"attention": "axial", "pool": "mean", "depth": 3},
    {"block": "parallel", "norm": "rms", "attention": {"qk_norm": True}},
    {"block": "norm-after", "mlp": "gated", "input_norm": True, "pool": "mean"},
    {"attention": {"out_norm": True, "key_bias": False}, "position": {"kind": "rope-2d", "absolute": "all"}},
]


def small(case: dict[str, object], fast: bool = True) -> VisionTransformer:
    model = stir(VisionTransformer(small_config(**case))).eval()
    return accelerate(model) if fast else model  # type: ignore[arg-type, return-value]


def compare(model: VisionTransformer) -> dict[str, float]:
    """Distances of every deterministic map of both from the reference's."""
    images = images_of(model.config)
    ours = Reference(model, images, TARGETS)
    last = model.config.depth - 1

    def of(method: str, **options: object) -> Tensor:
        return map_method(method, **options)(model, images, TARGETS).values

    return {
        "gradient-attention": distance(of("gradient-attention"), ours.gradient_attention()),
        "legrad": distance(of("legrad"), ours.legrad()),
        "grad-cam": distance(of("grad-cam"), ours.grad_cam(last)),
        "grad-cam of block 0": distance(of("grad-cam", layer=0), ours.grad_cam(0)),
        "rollout": distance(of("rollout"), ours.rollout("mean", 0.5)),
        "rollout max": distance(of("rollout", fusion="max", residual=0.3), ours.rollout("max", 0.3)),
        "rollout min": distance(of("rollout", fusion="min", residual=0.9), ours.rollout("min", 0.9)),
        "attention": distance(of("attention"), ours.attention(last, list(range(model.config.heads)))),
        "attention of a head": distance(of("attention", layer=0, head=1), ours.attention(0, [1])),
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_maps_of_checkpoints_equal_the_reference(name: str, tmp_path) -> None:
    found = compare(opened(name, tmp_path))
    assert max(found.values()) < BOUND, found


@pytest.mark.parametrize("case", OWN, ids=str)
@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
def test_maps_of_every_part_equal_the_reference(case: dict[str, object], fast: bool) -> None:
    found = compare(small(case, fast))
    assert max(found.values()) < BOUND, found


@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-9])
def test_what_attention_adds_is_not_lost_where_it_is_little(scale: float) -> None:
    """As with a head that is not trained yet: the rows by which attention changes the map are scaled to sum to 1."""
    model = small({"pool": "mean"})
    with torch.no_grad():
        model.head.weight *= scale
    images = images_of(model.config)
    found = map_method("gradient-attention")(model, images, TARGETS).values
    assert distance(found, Reference(model, images, TARGETS).gradient_attention()) < BOUND


@pytest.mark.parametrize("case", [{}, {"pool": "mean"}, {"pool": "seq", "patch_size": (4, 2)}], ids=str)
def test_occlusion_equals_the_reference(case: dict[str, object]) -> None:
    model = small(case)
    images = images_of(model.config)
    for batch_size in (5, 64):
        found = map_method("occlusion", batch_size=batch_size)(model, images, TARGETS)
        assert distance(found.values, Reference(model, images, TARGETS).occlusion()) < BOUND


@pytest.mark.parametrize("case", OWN, ids=str)
def test_integrated_gradients_are_complete(case: dict[str, object]) -> None:
    """Axiom of arXiv 1703.01365: values sum to the difference of the two images' scores."""
    model = small(case).double()
    images = images_of(model.config).double()
    found = map_method("integrated-gradients", steps=200, batch_size=100)(model, images, TARGETS)
    with torch.no_grad():
        change = (model(images) - model(torch.zeros_like(images)))[torch.arange(2), TARGETS]
    torch.testing.assert_close(found.values.sum((1, 2)), change, rtol=1e-3, atol=1e-5)


def test_integrated_gradients_of_one_step_are_the_gradient_half_way() -> None:
    model = small({})
    images = images_of(model.config)
    half = (images / 2).requires_grad_()
    (gradient,) = torch.autograd.grad(score(model(half), TARGETS), half)
    expected = torch.nn.functional.avg_pool2d((images * gradient).sum(1), 4) * 16
    for batch_size in (1, 8):
        found = map_method("integrated-gradients", steps=1, batch_size=batch_size)(model, images, TARGETS)
        torch.testing.assert_close(found.values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_identity_attention_rolls_out_to_the_identity(fusion: str) -> None:
    identity = torch.eye(5).expand(2, 3, 5, 5)
    rows = torch.eye(5).expand(2, 5, 5)
    found = roll_out(rows, [identity] * 4, 0.5, fusion)  # type: ignore[arg-type]
    torch.testing.assert_close(found, rows, rtol=0, atol=0)


@pytest.mark.parametrize("residual", [0.0, 0.5, 1.0])
def test_uniform_attention_rolls_out_to_its_closed_form(residual: float) -> None:
    """(r I + (1 - r) U)^L = r^L I + (1 - r^L) U, as U U = U."""
    uniform = torch.full((2, 3, 5, 5), 1 / 5)
    rows = torch.eye(5).expand(2, 5, 5)
    kept = residual**4
    torch.testing.assert_close(roll_out(rows, [uniform] * 4, residual), kept * rows + (1 - kept) / 5)


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
@pytest.mark.parametrize("layer", [1, 2])
def test_grad_cam_equals_pytorch_grad_cam(pool: str, layer: int) -> None:
    """On the output of the block before, which is the input of this one."""
    cam = pytest.importorskip("pytorch_grad_cam", reason="pip install grad-cam", exc_type=ImportError)
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model = small({"pool": pool, "class_token": True, "registers": 2, "depth": 3}, fast=False)
    images = images_of(model.config)
    P, grid = model.config.prefix_tokens, model.config.grid

    def on_grid(tokens: Tensor) -> Tensor:
        return tokens[:, P:].unflatten(1, grid).permute(0, 3, 1, 2)

    with cam.GradCAM(model, [model.blocks[layer - 1]], reshape_transform=on_grid) as theirs:
        theirs(images, [ClassifierOutputTarget(int(k)) for k in TARGETS])
        layers = theirs.activations_and_grads
        weighted = [
            theirs.get_cam_image(images, model.blocks[layer - 1], None, a.numpy(), g.numpy(), False)
            for a, g in zip(layers.activations, layers.gradients, strict=True)
        ]
    expected = torch.from_numpy(weighted[0]).clamp(min=0).double()
    found = map_method("grad-cam", layer=layer)(model, images, TARGETS).values
    assert expected.max() > 0
    assert distance(found, expected) < BOUND


def test_the_random_control_is_its_seed_and_nothing_else() -> None:
    model = small({})
    images = images_of(model.config)
    one, same, other = (map_method("random", seed=s)(model, images).values for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert (one >= 0).all()
    assert (one < 1).all()


@pytest.mark.parametrize("kind", MAPS, ids=lambda kind: kind.kind)
def test_a_map_says_what_it_explains_and_leaves_the_model_alone(kind) -> None:
    model = small({})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = images_of(model.config)
    for disabled in (torch.no_grad, torch.inference_mode):
        with disabled():
            found = kind()(model, images)
        assert torch.equal(found.targets, found.logits.argmax(1))
        torch.testing.assert_close(found.logits, model(images).detach(), rtol=1e-5, atol=1e-6)
    two = kind()(model, images, torch.tensor([1, 3])).values
    one = kind()(model, images[1:], torch.tensor([3])).values
    if kind.kind != "random":  # each image has its own map, whatever the batch
        torch.testing.assert_close(two[1:], one, rtol=1e-4, atol=1e-6)
        assert torch.equal(two, kind()(model, images, torch.tensor([0, 0])).values) is not kind.uses_class
    assert not images.requires_grad
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("rolout", {}, ["method is 'rolout'", "Did you mean 'rollout'?"]),
        ("rollout", {"residual": 1.5}, ["residual is 1.5", "[0, 1]"]),
        ("rollout", {"fusion": "sum"}, ["fusion is 'sum'", "mean"]),
        ("rollout", {"steps": 3}, ["'steps'", "integrated-gradients has it"]),
        ("grad-cam", {"layer": 7}, ["7", "2 blocks"]),
        ("attention", {"head": 3}, ["head is 3", "heads 0 to 2"]),
        ("integrated-gradients", {"steps": 0}, ["steps is 0", "at least 1"]),
        ("occlusion", {"batch_size": 0}, ["batch_size is 0", "at least 1"]),
    ],
)
def test_wrong_options_are_refused(method: str, options: dict[str, object], words: list[str]) -> None:
    model = small({})
    with pytest.raises(ConfigError) as caught:
        map_method(method, **options)(model, images_of(model.config))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_models_that_have_no_map_are_refused() -> None:
    method, model = map_method("gradient-attention"), small({})
    images = images_of(model.config)
    for targets, words in ((torch.tensor([5, 0]), "classes 0 to 4"), (torch.tensor([1]), "one class number per image")):
        with pytest.raises(ConfigError, match=words):
            method(model, images, targets)
    with pytest.raises(ConfigError, match="no classes"):
        method(small({"num_classes": 0}), images)
    with pytest.raises(ConfigError, match=r"model\.eval"):
        method(small({}).train(), images)
    merge_tokens(model, 2)
    with pytest.raises(ConfigError, match="merge_tokens"):
        method(model, images)
