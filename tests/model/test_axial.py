"""Axial attention: what one block may see, its cost, and what cannot go with it.

Values, gradients, recorded attention, maps, files and exports are compared with those of every other kind, in the tests
of those: the reference there masks global attention, and cuts no lines.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch

from vit_reference import small_config, stir
from vitreous.accelerate.cost import cost
from vitreous.accelerate.merging import merge_tokens
from vitreous.accelerate.model import FastVisionTransformer, accelerate, build
from vitreous.checkpoint.adapters.common import OutgoingModel
from vitreous.checkpoint.adapters.timm import write
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError
from vitreous.inspection.attention_distance import attention_distance
from vitreous.model.config import PARTS, ViTConfig
from vitreous.model.vit import VisionTransformer

AXIAL = {"attention": "axial", "pool": "mean"}  # small_config has 3 x 4 patches of 4 pixels


def images_of(height: int = 12, width: int = 16) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
@pytest.mark.parametrize("depth", [1, 2])
def test_one_block_sees_its_row_and_two_the_whole_image(depth: int, fast: bool) -> None:
    model = stir(VisionTransformer(small_config(**AXIAL, depth=depth))).double().eval()
    model = accelerate(model) if fast else model  # type: ignore[arg-type]
    assert isinstance(model, FastVisionTransformer) == fast
    images = images_of().requires_grad_()
    row, column = 1, 2
    (gradient,) = torch.autograd.grad(model(images, "tokens")[0, row * 4 + column].square().sum(), images)
    seen = gradient[0].abs().sum(0).unflatten(0, (3, 4)).unflatten(2, (4, 4)).sum((1, 3)) > 0  # by patch, 3 x 4
    expected = torch.ones(3, 4, dtype=torch.bool) if depth == 2 else torch.arange(3)[:, None].expand(3, 4) == row
    assert torch.equal(seen, expected)


def test_blocks_on_a_turned_image_are_blocks_of_the_other_direction() -> None:
    """Transposed images through column blocks give the tokens of the images through row blocks, transposed."""
    model = stir(VisionTransformer(small_config(**AXIAL, position="none"))).double().eval()
    tokens = torch.randn(2, 12, 24, dtype=torch.float64)
    turned = tokens.unflatten(1, (3, 4)).transpose(1, 2).flatten(1, 2)
    rows, columns = model.blocks[0].attn, model.blocks[1].attn
    columns.load_state_dict(rows.state_dict())
    expected = rows(tokens, (3, 4)).unflatten(1, (3, 4)).transpose(1, 2).flatten(1, 2)
    torch.testing.assert_close(columns(turned, (4, 3)), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size", [(12, 16), (8, 20), (4, 4)], ids=str)
def test_flops_are_those_of_the_shorter_lines(size: tuple[int, int]) -> None:
    """Scores and their product with the values take 4 N S D operations: S is N, the columns or the rows."""
    depth, D = 5, 24
    h, w = size[0] // 4, size[1] // 4
    N = h * w
    flops = {
        kind: cost(small_config(attention=kind, pool="mean", depth=depth, image_size=size)).flops
        for kind in ("softmax", "axial")
    }
    saved = sum(4 * N * (N - (h if index % 2 else w)) * D for index in range(depth))
    assert flops["softmax"] - flops["axial"] == saved


def test_a_grid_of_one_row_is_attention_to_all_in_even_blocks() -> None:
    fields = {"pool": "mean", "image_size": (4, 20), "depth": 1}
    both = [stir(VisionTransformer(small_config(**fields, attention=kind))).double() for kind in ("softmax", "axial")]
    images = images_of(4, 20)
    torch.testing.assert_close(both[1](images), both[0](images), rtol=1e-12, atol=1e-13)


def test_uniform_attention_has_the_mean_distance_along_its_line() -> None:
    model = build(small_config(**AXIAL)).double().eval()
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight)
    found = attention_distance(model, images_of())

    def mean_distance(count: int) -> float:
        return 4 * sum(abs(a - b) for a in range(count) for b in range(count)) / count**2

    assert found.distance == pytest.approx(torch.tensor([[mean_distance(4)] * 3, [mean_distance(3)] * 3]).numpy())
    assert found.entropy[:, 0] == pytest.approx([math.log(4), math.log(3)])


POSITIONS = [kind.kind for kind in PARTS["position"]]


@pytest.mark.parametrize("position", POSITIONS)
def test_positions_that_act_in_attention_are_refused(position: str) -> None:
    if position not in ("none", "learned", "learned-2d", "sincos-2d"):
        with pytest.raises(ConfigError, match=rf"position {position} acts on all pairs.*learned, .*attention softmax"):
            small_config(**AXIAL, position=position)
    else:
        images = images_of(16, 24)  # another resolution
        assert VisionTransformer(small_config(**AXIAL, position=position)).double()(images).isfinite().all()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pool": "cls"}, "class token: use class_token false and a pool .*mean"),
        ({"class_token": True}, "class token: use class_token false"),
        ({"registers": 2}, "registers is 2: use registers 0 or attention softmax"),
        ({"patch_dropout": 0.5}, "patch_dropout is 0.5.*whole rows and columns"),
        ({"attention": {"kind": "axial", "dropout": 1.5}}, "attention.dropout is 1.5"),
    ],
    ids=str,
)
def test_what_leaves_no_whole_lines_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ViTConfig(**(AXIAL | fields))  # type: ignore[arg-type]


def test_merging_test_time_registers_and_other_libraries_are_refused() -> None:
    model = build(small_config(**AXIAL)).eval()
    with pytest.raises(ConfigError, match="cannot be merged with attention axial"):
        merge_tokens(model, 2)
    merge_tokens(model, 0)
    assert model.merging is None
    with pytest.raises(ConfigError, match="registers is 1"):
        model.config.with_options({"registers": model.config.registers + 1})
    constants = PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3)
    pipeline = EvalPipeline((12, 16), 3, constants)
    outgoing = OutgoingModel(model.config, model.state_dict(), {}, {}, (), pipeline)
    with pytest.raises(CheckpointError, match=r"timm cannot express this model: .*axial attention"):
        write(outgoing)


@pytest.mark.parametrize(
    "rates", [{"block": {"drop_path": 0.5}}, {"attention": {"kind": "axial", "proj_dropout": 0.3}}], ids=str
)
def test_plain_and_fast_draw_the_same(rates: dict[str, object]) -> None:
    plain = stir(VisionTransformer(small_config(**(AXIAL | rates)))).double()
    fast = accelerate(copy.deepcopy(plain))  # type: ignore[arg-type]
    answers = []
    for model in (plain, fast):
        torch.manual_seed(5)
        answers.append(model.train()(images_of()))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(plain.eval()(images_of()), answers[0])
