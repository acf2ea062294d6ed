"""The choice of a pretrained model: a table of machines, budgets and images."""

from __future__ import annotations

import dataclasses

import pytest

from vitreous.checkpoint.pretrained import LICENCES, ROWS
from vitreous.checkpoint.shipped import IMAGE_SIZE, SHIPPED
from vitreous.cli.verbs.finetune import configure
from vitreous.train.finetune.choice import Situation, choose
from vitreous.train.finetune.starting_point import expand_short_name

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
    ],
)
def test_the_choice(rate, memory, budget, seen, side, mode, name, size, fits):
    choice = choose(ROWS, Situation(rate, memory, budget, seen, side, mode))
    assert (choice.row.name, choice.image_size, choice.fits) == (name, size, fits)
    limit = 1800 if budget is None else (0.5 if mode == "auto" else 0.8) * budget
    assert (choice.seconds <= limit) == fits


def test_a_licence_with_conditions_a_gate_or_an_open_revision_is_never_chosen():
    rows = [dataclasses.replace(row, linear=99.0) for row in ROWS]  # each would be the best
    for rate in (1e9, CORES, GPU, 1e16):
        row = choose(rows, Situation(rate, None, None, 1000, 300)).row
        assert LICENCES[row.licence].permissive
        assert not row.gated
        assert row.is_pinned


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
