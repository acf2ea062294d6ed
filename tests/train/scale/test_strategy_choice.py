"""Whether processes share a model's weights: by what fits into memory, or as asked."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator

import pytest
from rich.console import Console

from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig
from vitreous.recipes import recipe
from vitreous.train.config import RunConfig
from vitreous.train.console import Display
from vitreous.train.scale import choice
from vitreous.train.scale.choice import choose, fits
from vitreous.train.scale.fsdp.sharded import Sharded
from vitreous.train.scale.place import Place
from vitreous.train.scale.team import Team
from vitreous.train.setup import Setup, prepare

MODEL = ViTConfig(image_size=16, patch_size=4, in_channels=1, num_classes=10, width=16, depth=2, heads=2, mlp_dim=32)


def prepared(model: ViTConfig) -> Setup:
    config: RunConfig = dataclasses.replace(recipe("digits"), model=model, device="cpu", precision="float32")
    return prepare(config, (), Display(Console(quiet=True)))


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(port)), ("OMP_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    with contextlib.closing(Team(Place(1, 1, 0, "127.0.0.1", port, local_rank=0), on_cuda=False)) as team:
        yield team


def test_auto_shards_what_does_not_fit(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = prepared(MODEL)
    monkeypatch.setattr(choice, "memory_left", lambda: 1 << 40)
    found = choose("auto", setup, team)
    assert not isinstance(found, Sharded)
    assert "all weights (ddp, about" in found.line
    assert isinstance(choose("fsdp", setup, team), Sharded)
    monkeypatch.setattr(choice, "memory_left", lambda: 1 << 10)
    found = choose("auto", setup, team)
    assert isinstance(found, Sharded)
    assert "a part of the weights (fsdp, about" in found.line
    assert "that may not fit: --model.block.checkpoint true" in found.line
    assert not isinstance(choose("ddp", setup, team), Sharded)


def test_some_memory_stays_free() -> None:
    assert fits(80, 10, 100)
    assert not fits(80, 11, 100)
    assert fits(1 << 60, 1 << 60, None)


def test_positions_of_every_block_are_refused(team: Team) -> None:
    setup = prepared(MODEL.with_options({"position": {"kind": "learned", "layers": "every"}}))
    with pytest.raises(ConfigError, match="every block has of its own: use strategy ddp, or --model"):
        choose("fsdp", setup, team)


@pytest.mark.parametrize("options", [{"device": "mps"}, {"aux": "mae"}])
def test_what_needs_one_process_is_refused(options: dict[str, str]) -> None:
    config = recipe("digits")
    if "aux" in options:
        options = {"aux": dataclasses.replace(config.aux, method="mae")}  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="strategy fsdp does not go with a teacher, aux or device mps"):
        dataclasses.replace(config, strategy="fsdp", **options)
