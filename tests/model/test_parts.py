"""A configuration is made of parts: how they are named, chosen, checked and added."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from vit_reference import small_config
from vitreous.accelerate.model import build
from vitreous.errors import ConfigError
from vitreous.model import config as config_module
from vitreous.model.attention import AttentionConfig
from vitreous.model.block import BlockConfig
from vitreous.model.config import PARTS, ViTConfig
from vitreous.model.heads import Head
from vitreous.model.mlp import MlpConfig
from vitreous.model.part import Part, Shape, kinds_of, option_types, pair
from vitreous.model.pools import POOLS, Pool
from vitreous.model.positions import Learned, Position, Rope2d
from vitreous.model.stems import Stem
from vitreous.model.vit import VisionTransformer

KINDS = [(part, kind) for part, kinds in PARTS.items() for kind in kinds]


@pytest.mark.parametrize(("part", "kind"), KINDS, ids=str)
def test_a_kind_is_chosen_by_name_by_mapping_or_as_an_object(part: str, kind: type[Part]) -> None:
    fit = {"resnet": {"patch_size": 16}, "axial": {"pool": "mean"}}.get(kind.kind, {})
    by_name = ViTConfig(**{part: kind.kind}, **fit)  # type: ignore[arg-type]
    assert getattr(by_name, part) == kind()
    assert by_name == ViTConfig(**{part: kind()}, **fit) == ViTConfig(**{part: {"kind": kind.kind}}, **fit)  # type: ignore[arg-type]
    assert ViTConfig(**by_name.to_dict()) == by_name
    assert hash(by_name) == hash(ViTConfig(**by_name.to_dict()))


@pytest.mark.parametrize(("part", "kind"), KINDS, ids=str)
def test_a_kind_says_what_it_is(part: str, kind: type[Part]) -> None:
    """The command line shows the first paragraph of a kind's docstring, and what it says of each option."""
    text = " ".join(str(kind.__doc__).split())
    assert text.startswith(f"`{kind.kind}`")
    documented = " ".join(base.__doc__ or "" for base in kind.__mro__)
    assert all(f"{option}: " in documented for option in option_types(kind))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"position": "rope"}, ["position is 'rope'", "Did you mean 'rope-2d'?", "sincos-2d"]),
        ({"position": {"kind": "rope-2d", "thta": 3.0}}, ["position rope-2d", "'thta'", "Did you mean 'theta'?"]),
        (
            {"position": {"kind": "learned", "theta": 3.0}},
            ["position learned", "'theta'", "position rope-2d and rope-mixed have it"],
        ),
        ({"position": {"kind": "rope-2d", "theta": "3"}}, ["theta is '3'", "a number"]),
        ({"position": {"kind": "rope-2d", "theta": -1.0}}, ["position.theta is -1.0", "above 0"]),
        ({"position": {"resample": "tim"}}, ["resample is 'tim'", "Did you mean 'timm'?"]),
        ({"stem": {"kind": "resnet", "layers": "abc"}}, ["layers is 'abc'", "a list of numbers"]),
        ({"position": [1]}, ["position is '[1]'"]),
        ({"stem": {"width": 8}}, ["stem patch has no option 'width'", "stem conv and resnet have it"]),
        ({"stem": {"width": 8, "lyers": 1}}, ["no option 'width'", "; stem patch has no option 'lyers'"]),
        ({"attention": {"dropout": "a", "qk_norm": 2}}, ["attention.dropout is 'a'", "attention.qk_norm is 2"]),
        ({"block": {"layer_scale": math.nan}}, ["block.layer_scale is nan"]),
        ({"position": {"resample": "tim"}}, ["position.resample is 'tim'"]),
        ({"width": "x", "position": "nope", "init": "jx"}, ["width is 'x'", "position is 'nope'", "init is 'jx'"]),
        ({"init": ["jax"], "dropout": 2.0}, ["init is '['jax']'", "dropout is 2.0"]),
        ({"head": 3}, ["head is '3'"]),
    ],
)
def test_what_is_no_part_is_refused(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ViTConfig(**fields)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_part_that_is_made_alone_says_its_kind() -> None:
    with pytest.raises(ConfigError, match=r"^rope-2d theta is '3', it must be a number$"):
        Rope2d(theta="3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("dropouts", "'dropout'"),  # a field of the model comes before one of a part
        ("widths", "'width'"),
        ("drop_path", "'block.drop_path'"),
        ("block.droppath", "'block.drop_path'"),
        ("activations", "'stem.activation' or 'mlp.activation' or 'head.activation'"),
    ],
)
def test_an_unknown_option_suggests_every_owner_of_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ViTConfig().with_options({name: 1})
    assert str(caught.value) == f"a model has no option '{name}'. Did you mean {nearest}?"


def test_all_problems_of_changed_options_come_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        ViTConfig().with_options({"position": "nope", "pool": "nope", "width": "x", "qk_norms": True})
    said = ["position is 'nope'", "pool is 'nope'", "width is 'x'", "Did you mean 'attention.qk_norm'?"]
    assert all(words in str(caught.value) for words in said), str(caught.value)
    with pytest.raises(ConfigError) as caught:  # the class token suits the pool that is meant, not the present one
        ViTConfig().with_options({"pool": "maap", "class_token": False})
    assert "class_token" not in str(caught.value)


def test_options_change_the_part_that_is_there_and_another_kind_begins_anew() -> None:
    config = ViTConfig(position=Rope2d(theta=50.0))
    assert config.with_options({"position": {"theta": 10.0}}).position == Rope2d(theta=10.0)
    assert config.with_options({"position": {"kind": "rope-2d"}}).position == Rope2d(theta=50.0)
    assert config.with_options({"position": "learned"}).position == Learned()
    with pytest.raises(ConfigError, match=r"Did you mean 'block\.drop_path'"):
        config.with_options({"drop_path": 0.1})


def test_theta_is_the_base_of_the_frequencies() -> None:
    images = torch.randn(2, 3, 12, 16)
    answers = []
    for theta in (100.0, 10.0):
        torch.manual_seed(0)
        model = VisionTransformer(small_config(position=Rope2d(theta=theta))).eval()
        with torch.no_grad():
            answers.append(model(images))
    assert not torch.allclose(answers[0], answers[1])


@dataclass(frozen=True)
class Checkerboard(Position):
    """`checkerboard`: one learned vector for black fields and one for white ones, written as a contributor would.

    Args:
        gain: Factor of the vectors.
    """

    kind = "checkerboard"
    has_embedding = True
    gain: float = 1.0

    def parameters(self, shape: Shape) -> dict[str, Tensor]:
        return {"pos_embed_colour": torch.zeros(2, shape.width)}

    def initialise(self, module: nn.Module, std: float) -> None:
        if hasattr(module, "pos_embed_colour"):
            nn.init.normal_(module.pos_embed_colour, std=std)  # type: ignore[arg-type]

    def embedding(self, model: nn.Module, shape: Shape, grid: tuple[int, int]) -> Tensor:
        colours = (torch.arange(grid[0])[:, None] + torch.arange(grid[1])).flatten() % 2
        patches = self.gain * model.pos_embed_colour[colours]  # type: ignore[index]
        return torch.cat((patches.new_zeros(shape.prefix_tokens, shape.width), patches))[None]


def test_a_new_position_is_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(config_module.PARTS, "position", (*PARTS["position"], Checkerboard))
    config = small_config(position={"kind": "checkerboard", "gain": 2.0})
    assert config.to_dict()["position"] == {"kind": "checkerboard", "gain": 2.0}
    torch.manual_seed(0)
    plain, images = VisionTransformer(config), torch.randn(2, 3, 12, 16)
    assert plain.state_dict()["pos_embed_colour"].std() > 0
    fast = build(config)
    fast.load_state_dict(plain.state_dict())
    for size in ((12, 16), (20, 24)):
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(fast.eval()(images), plain.eval()(images))
    plain.train()(images).sum().backward()
    assert plain.pos_embed_colour.grad is not None
    with pytest.raises(ConfigError, match=r"it must be one of .*learned, .*checkerboard"):
        ViTConfig(position="chess")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("part", "base"),
    [
        ("stem", Stem),
        ("position", Position),
        ("attention", AttentionConfig),
        ("mlp", MlpConfig),
        ("block", BlockConfig),
        ("pool", Pool),
        ("head", Head),
    ],
)
def test_tables_list_every_kind(part: str, base: type[Part]) -> None:
    """Also one that extends another kind, and that ``__subclasses__`` of the base alone would miss."""
    defined = [kind for kind in (base, *kinds_of(base)) if kind.__module__.startswith("vitreous.model.")]
    assert set(PARTS[part]) == {kind for kind in defined if "kind" in vars(kind)}
    assert len({kind.kind for kind in PARTS[part]}) == len(PARTS[part])


def test_a_pool_that_needs_no_class_token_is_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"class_token is off: use pool mean, map or seq$"):
        ViTConfig(class_token=False)
    monkeypatch.setattr(config_module, "POOLS", POOLS[:-1])
    with pytest.raises(ConfigError, match=r"class_token is off: use pool mean or map$"):
        ViTConfig(class_token=False)


@pytest.mark.parametrize("size", [(), (16,), (16, 16, 3)])
def test_a_size_is_one_number_or_two(size: tuple[int, ...]) -> None:
    assert pair(16) == pair((16, 16)) == (16, 16)
    with pytest.raises(ConfigError, match="it must be one number or a height and a width"):
        pair(size)  # type: ignore[arg-type]
    for field in ("image_size", "patch_size"):
        for written in (size, list(size)):
            with pytest.raises(ConfigError, match=f"{field} is .* a list of 2 numbers"):
                ViTConfig(**{field: written})  # type: ignore[arg-type]


def test_configurations_stay_small() -> None:
    """A field of the whole model is one that no part could own."""
    assert len(dataclasses.fields(ViTConfig)) <= 24


@pytest.mark.parametrize("kind", PARTS["position"], ids=lambda kind: kind.kind)
def test_learned_positions_are_known_by_their_names(kind: type[Position]) -> None:
    names = kind().parameters(ViTConfig())
    assert [name for name in names if not name.startswith("pos_embed")] == []
