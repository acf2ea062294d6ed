"""The choice of a pretrained model: a table of machines, budgets and images."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from vitreous.checkpoint.pretrained import LICENCES, ROWS, find_row
from vitreous.checkpoint.shipped import IMAGE_SIZE, SHIPPED
from vitreous.cli.verbs.finetune import configure
from vitreous.errors import ConfigError
from vitreous.train.console import Display
from vitreous.train.finetune.choice import Situation, choose
from vitreous.train.finetune.starting_point import choice_to_resume, choose_start, expand_short_name, situation_of
from vitreous.train.recipe_file import recipe_text

LAPTOP, CORES, GPU = 3e10, 3e11, 5e13  # FLOPs per second of training
GIB = 1 << 30


@pytest.mark.parametrize(
    ("rate", "memory", "budget", "seen", "side", "mode", "name", "size", "fits"),
    [
        (CORES, 16 * GIB, None, 20 * 200, 500, "full", "dinov2-s", 224, True),
        (CORES, 16 * GIB, 600.0, 5 * 200, 500, "full", "dinov2-s", 224, True),
        (CORES, 16 * GIB, None, 20 * 2500, 500, "full", "augreg-ti", 224, True),  # more images: a cheaper model
        (CORES, 16 * GIB, None, 20 * 2500, 32, "full", "dinov2-s", 112, True),  # at half the size a better one fits
        (CORES, 16 * GIB, None, 20 * 400, 500, "linear", "dinov2-s", 224, True),
        (CORES, 16 * GIB, None, 20 * 200, 500, "linear", "dinov2-b", 224, True),
        (LAPTOP, 8 * GIB, None, 20 * 3000, 500, "full", "augreg-ti", 224, False),
        (GPU, 80 * GIB, None, 20 * 3000, 500, "full", "dinov2-l", 224, True),
        (GPU, 80 * GIB, None, 20 * 200, 500, "full", "dinov2-g", 224, True),
        (GPU, 8 * GIB, None, 20 * 200, 500, "full", "dinov2-l", 224, True),  # the giant needs 18 GB for its optimiser
        (GPU, None, 7200.0, 5 * 50_000, 500, "full", "dinov2-l", 224, True),
        (GPU, 2 * GIB, None, 20 * 200, 500, "full", "dinov2-b", 224, True),
        (CORES, 16 * GIB, 600.0, 2500, 500, "auto", "dinov2-s", 224, True),  # features in time, whatever is trained
        (CORES, 16 * GIB, 300.0, 280, 500, "auto", "dinov2-b", 224, True),
        (LAPTOP, 8 * GIB, 60.0, 3000, 500, "auto", "augreg-ti", 224, False),
        (GPU, 80 * GIB, 20.0, 200, 500, "auto", "dinov2-s", 224, True),  # the download of a larger one takes longer
        (GPU, 8 * GIB, None, 200, 500, "auto", "dinov2-l", 224, True),  # stages hold four copies of the weights
        (GPU, 8 * GIB, None, 20 * 200, 500, "linear", "dinov2-l", 224, True),
    ],
)
def test_the_choice(rate, memory, budget, seen, side, mode, name, size, fits):
    choice = choose(ROWS, Situation(rate, memory, budget, seen, side, mode))
    assert (choice.row.name, choice.image_size, choice.fits) == (name, size, fits)
    limit = 1800 if budget is None else (0.5 if mode == "auto" else 0.8) * budget
    assert (choice.seconds <= limit) == fits


def test_a_licence_with_conditions_or_a_gate_is_never_chosen():
    rows = [dataclasses.replace(row, linear=99.0) for row in ROWS]  # each would be the best
    for rate in (1e9, CORES, GPU, 1e16):
        row = choose(rows, Situation(rate, None, None, 1000, 300)).row
        assert LICENCES[row.licence].permissive
        assert not row.gated


def test_a_row_in_the_cache_needs_no_download():
    situation = Situation(GPU, 80 * GIB, 20.0, 200, 500, "auto")
    large = next(row for row in ROWS if row.name == "dinov2-l")
    assert choose(ROWS, situation).row.name == "dinov2-s"
    choice = choose(ROWS, situation, [large])
    assert choice.row is large
    assert choice.seconds < 10


def test_the_reason_names_the_limit_and_what_is_better():
    choice = choose(ROWS, Situation(CORES, 16 * GIB, 600.0, 5000, 64))
    assert "the budget of 600 s" in choice.reason
    assert "dinov2-l" in choice.reason
    assert "112 px, because the images have 64" in choice.reason


def test_the_shipped_backbone_is_tuned_at_its_size_unless_another_is_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for words, size in (([], IMAGE_SIZE), (["--image-size", "64"], 64)):
        config, explicit, _ = configure(["photos", "--from", SHIPPED, *words])
        config, explicit = expand_short_name(config, explicit)
        assert (config.tune.source, config.model.image_size) == (SHIPPED, size)
        assert "image_size" in explicit


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder `photos` to name, and what a run knows of the ten images in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    return SimpleNamespace(splits={"train": range(10)}, median_size=(300, 500))


def test_a_size_that_is_asked_for_counts_in_the_cost():
    situation = Situation(CORES, 16 * GIB, None, 20 * 200, 500)
    own, larger = (choose(ROWS, dataclasses.replace(situation, image_size=size)) for size in (None, 448))
    assert (own.row.name, own.image_size) == ("dinov2-s", 224)
    assert (larger.row.name, larger.image_size, larger.fits) == ("augreg-ti", 448, True)
    assert "dinov2-s" in larger.reason  # would not fit
    assert "px" not in larger.reason
    same = choose(ROWS, dataclasses.replace(situation, image_size=(224, 224)))
    assert (same.row, same.seconds) == (own.row, own.seconds)


@pytest.mark.parametrize(
    ("size", "said"), [(256, "14 px do not tile 256"), ((240, 320), "14 or 32 px do not tile 240x320")]
)
def test_rows_whose_patches_do_not_tile_the_size_are_left_out(size, said):
    choice = choose(ROWS, Situation(GPU, 80 * GIB, None, 20 * 200, 500, image_size=size))
    assert (choice.row.name, choice.image_size) == ("augreg-ti", size)
    assert choice.reason.endswith(f"; patches of {said} px")


def test_a_size_that_no_patches_tile_is_refused_before_a_download():
    situation = Situation(GPU, 80 * GIB, None, 20 * 200, 500, image_size=250)
    with pytest.raises(ConfigError, match="image_size is 250: patches of 14 or 16 or 32 px"):
        choose(ROWS, situation)
    assert choose(ROWS, dataclasses.replace(situation, patch_size=10)).row.name == "dinov2-g"  # resampled patches


def test_the_choice_knows_the_size_that_the_user_set(photos, monkeypatch):
    config, explicit, _ = configure(["photos", "--image-size", "256"])
    assert situation_of(config, photos, GPU, None, explicit).image_size == 256
    assert situation_of(config, photos, GPU, None, ()).image_size is None
    for name, value in {"answers": True, "cached_commit": None, "training_rate": GPU, "free_memory": 80 * GIB}.items():
        monkeypatch.setattr(f"vitreous.train.finetune.starting_point.{name}", lambda *_, value=value: value)
    view = Display(Console(file=io.StringIO(), width=400))
    chosen, _ = choose_start(config, explicit, photos, torch.device("cpu"), precision="float32", view=view)
    assert (chosen.tune.source, chosen.model.image_size) == (find_row("augreg-ti").full_id, 256)
    assert "patches of 14 px do not tile 256 px" in view.console.file.getvalue()


def begin_run(name, row, at, *words, finished=False):
    """Write what a run from a row leaves, as if it had begun at a time in seconds."""
    config, explicit, _ = configure(["photos", "--from", row, *words])
    folder = Path("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe_text(expand_short_name(config, explicit)[0]))
    os.utime(recipe, (at, at))
    if finished:
        training = {"epochs": 1, "selected_epoch": 1, "seconds": {}}
        (folder / "report.json").write_text(json.dumps({"training": training}))


def resumed(*words):
    config, _ = choice_to_resume(*configure(["photos", *words])[:2])
    return next((row.name for row in ROWS if row.full_id == config.tune.source), None)


def test_an_interrupted_run_is_resumed_although_a_later_one_from_a_named_model_is_finished(photos):
    assert resumed() is None
    begin_run("photos-1", "dinov2-s", 1000)
    begin_run("photos-2", "dinov2-b", 2000, finished=True)
    assert resumed() == "dinov2-s"
    assert resumed("--out", "runs/photos-2") == "dinov2-b"
    begin_run("photos-3", "augreg-ti", 3000, "--epochs", "3")  # not the command that is resumed
    assert resumed() == "dinov2-s"
    assert resumed("--epochs", "3") == "augreg-ti"
    begin_run("photos-1", "dinov2-s", 1000, finished=True)
    assert resumed() == "dinov2-b"  # the newest: it says that nothing is left to do
