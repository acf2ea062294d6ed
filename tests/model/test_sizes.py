"""Parameter counts, FLOPs and memory against published figures, closed forms, timm and what torch really keeps."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vit_reference import small_config
from vitreous.accelerate.cost import cost
from vitreous.accelerate.model import build, create
from vitreous.errors import ConfigError, UsageError
from vitreous.model.config import ViTConfig
from vitreous.model.sizes import SIZES, config_of
from vitreous.model.vit import VisionTransformer

count = functools.cache(cost)
TUTORIAL = {"final_norm": "none", "head": {"kind": "mlp", "hidden": 512}, "num_classes": 100}


@pytest.mark.parametrize(
    ("name", "overrides", "parameters"),
    [
        ("Ti/16", {}, 5_717_416),
        ("S/16", {}, 22_050_664),
        ("S/32", {}, 22_878_952),
        ("B/16", {}, 86_567_656),
        ("B/32", {}, 88_224_232),
        ("B/16", {"image_size": 384}, 86_859_496),
        ("L/16", {}, 304_326_632),
        ("H/14", {}, 632_045_800),
        ("256x6", TUTORIAL, 3_374_948),
        ("256x24", TUTORIAL, 12_862_820),
    ],
)
def test_published_parameter_counts(name: str, overrides: dict[str, object], parameters: int) -> None:
    assert count(config_of(name, **overrides)).parameters == parameters


@pytest.mark.parametrize(
    ("name", "overrides", "millions", "rel"),
    [  # as printed in the source; the last figure is how far it rounds
        ("g/14", {"num_classes": 0}, 1011, 1e-3),  # arXiv 2106.04560, table 2
        ("G/14", {"num_classes": 0}, 1843, 1e-3),
        ("So400m/14", {"num_classes": 0, "pool": "map"}, 428, 2e-3),  # arXiv 2305.13035, with its MAP head
        ("256x7", {"pool": "seq", "num_classes": 10}, 3.7, 2e-2),  # arXiv 2104.05704: CVT-7/4 has 3.7 M
        ("192x9", {"num_classes": 100}, 2.7, 1e-2),
    ],
)
def test_sources_agree_on_other_sizes(name: str, overrides: dict[str, object], millions: float, rel: float) -> None:
    assert count(config_of(name, **overrides)).parameters / 1e6 == pytest.approx(millions, rel=rel)


@pytest.mark.parametrize(("name", "giga"), [("g/14", 533.1), ("G/14", 965.3)])
def test_flops_of_the_giants(name: str, giga: float) -> None:
    assert count(config_of(name, num_classes=0)).flops / 1e9 == pytest.approx(giga, rel=3e-3)  # 2106.04560, table 2


@pytest.mark.parametrize(
    ("name", "figures"),
    [  # depth, width, MLP, heads as printed in the row's source
        ("mu", (1, 32, 128, 2)),
        ("Ti", (12, 192, 768, 3)),
        ("S", (12, 384, 1536, 6)),
        ("M", (12, 512, 2048, 8)),
        ("B", (12, 768, 3072, 12)),
        ("L", (24, 1024, 4096, 16)),
        ("H", (32, 1280, 5120, 16)),
        ("g", (40, 1408, 6144, 16)),
        ("G", (48, 1664, 8192, 16)),
        ("So400m", (27, 1152, 4304, 16)),
        ("192x9", (9, 192, 384, 12)),
        ("256x6", (6, 256, 512, 8)),
        ("256x7", (7, 256, 512, 4)),
        ("256x24", (24, 256, 512, 8)),
        ("384x7", (7, 384, 384, 12)),
    ],
)
def test_rows_of_the_table(name: str, figures: tuple[int, ...]) -> None:
    size = SIZES[name]
    assert (size.depth, size.width, size.mlp_dim, size.heads) == figures
    assert size.source


@pytest.mark.parametrize("name", sorted(set(SIZES) - {"L", "H", "g", "G"}))  # those are counted above
def test_every_size_builds_and_costs(name: str) -> None:
    config = config_of(name)
    found = count(config)
    assert found.tokens == config.tokens
    assert min(found.parameters, found.flops, found.activation_bytes) > 0
    assert name == "mu" or config.head_dim >= 16


def closed_form(c: ViTConfig) -> int:
    """Two operations per multiply-add: patches, then per block qkv, scores, mixture, projection and MLP; the head."""
    n, N, D, (h, w) = c.grid[0] * c.grid[1], c.tokens, c.width, c.patch_size
    block = N * D * 3 * D + 2 * N * N * D + N * D * D + 2 * N * D * c.mlp_dim
    return 2 * (n * h * w * c.in_channels * D + c.depth * block + D * c.num_classes)


@pytest.mark.parametrize("overrides", [{}, {"registers": 3}, {"pool": "mean", "in_channels": 1}, {"stem": "linear"}])
def test_flops_are_the_closed_form(overrides: dict[str, object]) -> None:
    config = small_config(patch_size=(4, 2), **overrides)
    assert cost(config).flops == closed_form(config)
    # What training leaves out or computes twice does not change what a forward pass costs.
    again = small_config(patch_size=(4, 2), patch_dropout=0.5, block={"checkpoint": True}, dropout=0.1, **overrides)
    assert cost(again).flops == closed_form(config)


@pytest.mark.parametrize("name", ["Ti/16", "B/32"])
def test_flops_are_what_torch_counts_in_timm(name: str) -> None:
    timm = pytest.importorskip("timm")
    theirs = {"Ti/16": "vit_tiny_patch16_224", "B/32": "vit_base_patch32_224"}[name]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        timm.create_model(theirs).eval()(torch.empty(1, 3, 224, 224))
    assert count(config_of(name)).flops == counter.get_total_flops()


def test_flops_of_b16_are_the_published_17_6_billion_multiply_adds() -> None:
    assert count(config_of("B/16")).flops / 2e9 == pytest.approx(17.58, abs=0.02)  # torchvision's vit_b_16: 17.56
    assert cost(config_of("B/16"), 384).flops / 2e9 == pytest.approx(55.5, abs=0.1)  # timm's results table
    assert cost(config_of("B/16"), 384) == cost(config_of("B/16", image_size=384))
    assert cost(config_of("B/16"), (224, 448)).tokens == 14 * 28 + 1


def kept_bytes(run: Callable[[], object], own: set[int]) -> int:
    """Bytes of distinct storages that autograd saves during ``run``, parameters not counted."""
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda t: t):
        run()
    return sum(s.nbytes() for address, s in storages.items() if address not in own)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"position": "relative", "attention": {"qk_norm": True}},
        {"dropout": 0.1, "block": {"layer_scale": 0.1}},
        {"pool": "map"},
    ],
)
def test_activation_memory_is_what_a_real_step_keeps(overrides: dict[str, object]) -> None:
    config = small_config(**overrides)
    model = build(config).train()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with sdpa_kernel(SDPBackend.MATH):
        image = torch.randn(1, 3, 12, 16)
        logits: list[torch.Tensor] = []  # alive until counted, so that no address is used twice
        real = kept_bytes(lambda: logits.append(model(image)), own)
    assert cost(config).activation_bytes == pytest.approx(real, rel=0.03)


def test_checkpointing_keeps_fewer_bytes_and_the_same_gradients() -> None:
    plain, frugal = (
        build(small_config(depth=4, dropout=0.2, block={"drop_path": 0.3, "checkpoint": on})).train()
        for on in (False, True)
    )
    frugal.load_state_dict(plain.state_dict())
    images = torch.randn(3, 3, 12, 16)
    kept = []
    for model in (plain, frugal):
        torch.manual_seed(5)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        logits: list[torch.Tensor] = []
        kept.append(kept_bytes(lambda m=model, out=logits: out.append(m(images)), own))  # type: ignore[misc]
        logits[0].square().sum().backward()
    assert kept[1] < kept[0] / 3
    pairs = zip(plain.named_parameters(), frugal.named_parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for (_, a), (_, b) in pairs)  # type: ignore[arg-type]
    small, large = cost(frugal.config).activation_bytes, cost(plain.config).activation_bytes
    assert 4 * 13 * 24 * 4 < small < large / 3  # at least the input of each of the four blocks


def test_names_and_overrides() -> None:
    assert config_of("B/32").patch_size == 32
    assert config_of("H").patch_size == 14
    assert config_of("128x6/8", image_size=64).grid == (8, 8)
    assert config_of("B/16", patch_size=8).patch_size == 8
    model = create("mu/16", num_classes=10, image_size=32)
    assert isinstance(model, VisionTransformer)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize(
    ("name", "overrides", "parts"),
    [
        ("b/16", {}, ["'b'", "Did you mean 'B/16'?", "Known: mu, Ti"]),
        ("S16", {}, ["'S16'", "Did you mean 'S/16'?"]),
        ("ViT-B-32", {}, ["Did you mean 'B/32'?"]),
        ("vit_small_patch16_224.augreg_in21k", {}, ["Did you mean 'S/16'?"]),
        ("R50-B/16", {}, ["Did you mean 'R50+B'?"]),
        ("So400/14", {}, ["'So400'", "Did you mean 'So400m'?"]),
        ("base", {}, ["'base'", "Did you mean 'B'?", "Known:"]),
        ("B/x", {}, ["'B/x'", "patch size in pixels", "B/16"]),
        ("B/0", {}, ["'B/0'", "patch size in pixels"]),
        ("B/", {}, ["'B/'", "patch size in pixels"]),
        ("B/-16", {}, ["'B/-16'"]),
        ("B/16", {"pach_size": 8}, ["'pach_size'", "Did you mean 'patch_size'?"]),
        ("B/16", {"pach_size": 8, "drop_pth": 0.1}, ["'pach_size'", "'patch_size'", "'drop_pth'", "'block.drop_path'"]),
    ],
)
def test_misspelt_sizes_and_options(name: str, overrides: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        config_of(name, **overrides)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"image_size": 225}, ["225", "16", "224 or 240", "9 or 15"]),
        ({"image_size": (224, 230)}, ["image width 230", "224 or 240", "10 or 23"]),
        ({"image_size": 1}, ["image size of 16", "patch size of 1"]),
        ({"width": 100, "heads": 12}, ["width 100", "heads 12", "use 5 or 10 heads"]),
        ({"width": 0}, ["width is 0", "at least 1"]),
        ({"patch_size": 0}, ["patch_size is 0", "at least 1"]),
        ({"in_channels": -1, "depth": 0}, ["in_channels is -1", "depth is 0"]),
        ({"position": "rope-2d", "width": 36, "heads": 6}, ["rope-2d", "multiple of 4", "6"]),
        ({"position": "sincos-2d", "width": 30, "heads": 5}, ["sincos-2d", "multiple of 4", "30"]),
        ({"class_token": False}, ["pool cls", "class_token", "mean, map or seq"]),
        ({"stem": "conv", "patch_size": 14}, ["stem conv", "2, 4, 8, 16 or 32", "14"]),
        ({"stem": {"kind": "conv", "width": 0}, "patch_size": 4}, ["stem.width is 0", "at least 1"]),
        ({"stem": "resnet", "patch_size": 8}, ["resnet", "multiples of 16", "8"]),
        ({"dropout": 1.0}, ["dropout is 1.0", "[0, 1)"]),
        ({"attention": {"dropout": -0.1}}, ["attention.dropout is -0.1"]),
        ({"attention": {"proj_dropout": 1.0}}, ["attention.proj_dropout is 1.0", "[0, 1)"]),
        ({"block": {"drop_path": float("nan")}}, ["drop_path is nan"]),
        ({"registers": -1}, ["registers (-1)", "negative"]),
        ({"num_classes": -2}, ["num_classes (-2)", "negative"]),
        ({"head": {"kind": "mlp", "hidden": 0}}, ["head.hidden is 0", "at least 1"]),
        ({"norm_eps": 0.0}, ["norm_eps is 0.0", "above 0"]),
        ({"pool": "avg"}, ["pool is 'avg'", "cls, mean, cls-mean, prefix, map, seq"]),
        ({"pool": "cls-mean", "class_token": False}, ["pool cls-mean reads the class token"]),
        ({"pool": "cls-mean", "final_norm": "pooled"}, ["no norm after it", "final_norm tokens"]),
        ({"position": "sincos"}, ["position is 'sincos'", "Did you mean 'sincos-2d'?"]),
        ({"init": "flax"}, ["init is 'flax'", "jax, timm, torchvision, torch or mimetic"]),
    ],
)
def test_configurations_that_contradict_themselves(fields: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ViTConfig(**fields)  # type: ignore[arg-type]
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_all_problems_come_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        ViTConfig(image_size=225, width=100, dropout=2.0, class_token=False, pool="avg")  # type: ignore[arg-type]
    text = str(caught.value)
    assert all(part in text for part in ("image size 225", "heads 12", "dropout is 2.0", "'avg'"))
    assert "\n" not in text


@pytest.mark.parametrize(
    ("images", "parts"),
    [
        (torch.zeros(2, 1, 12, 16), ["(2, 1, 12, 16)", "(B, 3, H, W)"]),
        (torch.zeros(3, 12, 16), ["(3, 12, 16)", "(B, 3, H, W)"]),
        (torch.zeros(2, 12, 16, 3), ["(2, 12, 16, 3)", "(B, 3, H, W)"]),
        (torch.zeros(1, 3, 13, 16), ["13 x 16", "4 x 4"]),
        (torch.zeros(1, 3, 0, 16), ["0 x 16"]),
        (torch.zeros(1, 3, 12, 16, dtype=torch.uint8), ["torch.uint8", "normalised"]),
    ],
)
@pytest.mark.parametrize("stem", ["patch", "linear", "conv"])
def test_images_that_do_not_fit(images: torch.Tensor, parts: list[str], stem: str) -> None:
    model = build(small_config(stem=stem))
    with pytest.raises(ConfigError) as caught:
        model(images)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_lists_from_yaml_are_tuples_and_configurations_hash() -> None:
    config = ViTConfig(image_size=[224, 448], patch_size=[16, 32])  # type: ignore[arg-type]
    assert config.grid == (14, 14)
    assert hash(config) == hash(ViTConfig(image_size=(224, 448), patch_size=(16, 32)))


def test_building_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cost(config_of("Ti/16", block={"drop_path": 0.1}, patch_dropout=0.3, registers=2))
