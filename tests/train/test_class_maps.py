"""The class maps in the report of a run are those of the saved model, and keep to their part of a budget."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import vitreous
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.sources.opening import open_source
from vitreous.errors import ConfigError
from vitreous.recipes import recipe
from vitreous.train.class_maps import class_map, class_map_seconds
from vitreous.train.config import RunConfig
from vitreous.train.console import Display
from vitreous.train.run import run
from vitreous.train.setup import Setup, prepare

LOOKS_AT_REPORTS = True  # conftest.py


def silent() -> Display:
    return Display(Console(file=io.StringIO()))


def config(out: Path, **options) -> RunConfig:
    return dataclasses.replace(recipe("digits"), out=str(out), device="cpu", **options)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return prepare(config(tmp_path_factory.mktemp("setup") / "run", epochs=1), (), silent())


def test_report_shows_the_maps_of_the_saved_model(tmp_path: Path) -> None:
    asked = config(tmp_path / "run", epochs=1)
    folder = run(asked, view=silent()).folder
    page = (folder / "report.html").read_text(encoding="utf-8")
    items = [item for item in re.findall(r"<li>(.*?)</li>", page, re.DOTALL) if 'class="map"' in item]
    assert len(items) > 48
    classifier, split = vitreous.load(folder, device="cpu"), open_source(asked.data).splits["val"]
    for item in items:
        encoded = re.search(r'class="map" src="data:image/png;base64,([^"]*)"', item)[1]
        _, predicted, name = re.findall(r"<bdi>(.*?)</bdi>", item)
        values = vitreous.explain(classifier, split.image(split.names.index(name)), predicted).patches
        scaled = (values - values.min()) / (values.max() - values.min())
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as png:
            pixels = np.asarray(png.convert("RGB"), int)
        assert np.abs(pixels - 255 * mpl.colormaps["viridis"](scaled)[..., :3]).max() <= 4  # one of 256 steps


def test_maps_end_with_their_time(setup: Setup) -> None:
    info = ModelInfo(setup.data.classes, setup.pipeline)
    split = setup.data.splits["val"]
    with pytest.raises(ConfigError, match="the budget leaves no time for more"):
        class_map(setup.model, info, split, seconds=0)(0, 0)
    assert class_map(setup.model, info, split)(0, 3).target == 3


def test_estimating_their_time_changes_nothing(setup: Setup) -> None:
    setup.model.train()
    before, weights = torch.get_rng_state(), {name: each.clone() for name, each in setup.model.state_dict().items()}
    assert 0 < class_map_seconds(setup) < 60
    assert class_map_seconds(setup, budget=0.01) <= 0.01 / 20
    assert torch.equal(torch.get_rng_state(), before)
    assert setup.model.training
    assert all(torch.equal(each, weights[name]) for name, each in setup.model.state_dict().items())
