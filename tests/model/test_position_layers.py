"""Learned positions that are added before every block: their names, their first weights, any resolution, tracing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vit_reference import reference, small_config, stir
from vitreous.accelerate.merging import merge_tokens
from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig
from vitreous.model.positions.resample import resample
from vitreous.model.vit import VisionTransformer
from vitreous.train.loop.optim import layer_factors, parameter_groups

KINDS = {"learned": ["pos_embed"], "learned-2d": ["pos_embed_row", "pos_embed_column"]}
CASES = [(kind, layers) for kind in KINDS for layers in ("every", "shared")]
LARGER = (20, 24)
each_case = pytest.mark.parametrize(("kind", "layers"), CASES)


def config_of(kind: str, layers: str, **fields: object) -> ViTConfig:
    return small_config(position={"kind": kind, "layers": layers}, **({"depth": 3, "registers": 1} | fields))


def built(kind: str, layers: str, **fields: object) -> FastVisionTransformer:
    return stir(build(config_of(kind, layers, **fields))).double().eval()  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", ["first", "every", "shared"])
def test_every_layer_but_the_first_owns_its_positions(kind: str, layers: str) -> None:
    names = [name for name in VisionTransformer(config_of(kind, layers)).state_dict() if "pos_embed" in name]
    blocks = ("blocks.1.", "blocks.2.") if layers == "every" else ()
    assert names == [owner + name for owner in ("", *blocks) for name in KINDS[kind]]
    assert VisionTransformer(config_of(kind, "first")).config == small_config(position=kind, depth=3, registers=1)


@pytest.mark.parametrize(("init", "std"), [("jax", 0.02), ("timm", 0.02), ("torch", 1.0), ("mimetic", 0.02)])
def test_every_table_is_drawn_by_the_scheme_and_apart(init: str, std: float) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(config_of("learned", "every", init=init, width=192, heads=3, registers=0))
    tables = [block.pos_embed.detach() for block in list(model.blocks)[1:]]
    for table in tables:
        assert abs(float(table.std()) / std - 1) < 0.06  # 2,496 draws: sigma is 0.014
        assert abs(float(table.mean())) < 0.1 * std  # sigma is 0.02
    assert not torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], model.pos_embed)


def test_positions_of_a_block_learn_at_the_rate_of_the_block_and_do_not_decay() -> None:
    model = build(config_of("learned-2d", "every"))
    factors = layer_factors((name for name, _ in model.named_parameters()), 0.5)
    assert factors["pos_embed_row"] == 0.5**4
    assert factors["blocks.1.pos_embed_row"] == factors["blocks.1.norm1.weight"] == 0.5**2
    decays = {name: group["weight_decay"] for group in parameter_groups(model, 0.1) for name in group["names"]}
    assert {decay for name, decay in decays.items() if "pos_embed" in name} == {0.0}


@each_case
@pytest.mark.parametrize("how", ["inference", "training"])
def test_another_grid_resamples_every_table(kind: str, layers: str, how: str) -> None:
    """The reference only knows the grid of its tables, so it gets tables that are resized one by one."""
    model = built(kind, layers, pool="mean")
    larger = config_of(kind, layers, image_size=LARGER, pool="mean")
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, table in weights.items():
        if name.endswith("pos_embed"):
            weights[name] = resample(table, (3, 4), (5, 6), "timm")
        elif name.endswith("pos_embed_row"):
            weights[name] = resample(table, (3, 1), (5, 1), "timm")
        elif name.endswith("pos_embed_column"):
            weights[name] = resample(table, (1, 4), (1, 6), "timm")
    images = torch.randn(2, 3, *LARGER, dtype=torch.float64)
    expected = reference(images, weights, larger)
    for _ in range(2):  # in inference, the second time from the tables that are kept
        with torch.set_grad_enabled(how == "training"):
            torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9)
    assert ("context", 5, 6) in {key[0] for key in model._tables} or how == "training"


@each_case
def test_a_kept_table_is_never_stale(kind: str, layers: str) -> None:
    model, images = built(kind, layers), torch.randn(2, 3, *LARGER, dtype=torch.float64)
    with torch.no_grad():
        before = model(images)
        *_, last = (parameter for name, parameter in model.named_parameters() if "pos_embed" in name)
        last.data.mul_(-1.5)
        after = model(images)
        other = build(model.config).double().eval()
        other.load_state_dict(model.state_dict())
        assert not torch.equal(before, after)
        assert torch.equal(after, other(images))
    model.train()(images).sum().backward()
    assert all(p.grad is not None and p.grad.any() for n, p in model.named_parameters() if "pos_embed" in n)


@each_case
@pytest.mark.filterwarnings("ignore:.*script_method. is deprecated:DeprecationWarning")  # torch 2.11, of itself
@pytest.mark.parametrize("size", [(12, 16), LARGER], ids=str)
def test_it_is_traced_compiled_and_differentiated_by_image(kind: str, layers: str, size: tuple[int, int]) -> None:
    model, images = built(kind, layers), torch.randn(2, 3, *size, dtype=torch.float64)
    with torch.no_grad():
        expected = model(images)
        exported = torch.export.export(model, (images,)).module()
        torch.testing.assert_close(exported(images), expected, rtol=1e-9, atol=1e-9)
        torch._dynamo.reset()  # forget the models of other tests: the number of recompilations is limited
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(images), expected, rtol=1e-9, atol=1e-9)
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def loss(w: dict[str, Tensor], image: Tensor) -> Tensor:
        return torch.func.functional_call(model, w, (image[None],)).square().sum()

    with sdpa_kernel(SDPBackend.MATH):  # torch cannot batch its fused kernel on a CPU
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, images)
    model(images).square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name].sum(0), parameter.grad, rtol=1e-6, atol=1e-8)


@each_case
def test_token_merging_is_refused(kind: str, layers: str) -> None:
    model = built(kind, layers)
    with pytest.raises(ConfigError, match=f"with position {kind} with layers {layers}: it needs the position of each"):
        merge_tokens(model, 2)
    with pytest.raises(ConfigError, match=f"position .*{kind} with layers first.* can; use merge_tokens 0"):
        merge_tokens(model, 2)
    merge_tokens(model, 0)


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"position\.layers is 'evry', .*Did you mean 'every'\?"):
        ViTConfig(position={"layers": "evry"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="position learned and learned-2d have it"):
        ViTConfig(position={"kind": "rope-2d", "layers": "every"})  # type: ignore[arg-type]
