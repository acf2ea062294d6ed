"""What a run in stages can afford, for given times and sizes."""

from __future__ import annotations

import dataclasses

import pytest

from vitreous.model.config import ViTConfig
from vitreous.train.finetune.stages.decisions import (
    Resources,
    further_views,
    images_for_heads,
    no_time_for_a_view,
    tokens_too_large,
    tuning_modes,
)

RESOURCES = Resources(
    images=1000, classes=5, depth=12, parameters=22_000_000, step_seconds={"full": 2.0, "last-2": 0.5, "lora": 2.0},
    steps_per_epoch=10, validation_seconds=2.0, epochs=20, left=None, memory=8 << 30, has_lora=True,
    verb="finetune",
)  # fmt: skip


def modes(**changes):
    return tuning_modes(dataclasses.replace(RESOURCES, **changes))


def test_without_a_budget_each_mode_is_tried_in_turn():
    tried, skipped = modes()
    assert tried == ["last-2", "full"]
    assert skipped == {"lora": "all weights fit into memory, so adapters save nothing"}


@pytest.mark.parametrize(
    ("left", "expected", "stage", "reason"),
    [
        (75.1, ["full"], "last-2", "the budget has time for full, which trains more"),  # 3 * (1.15 * 10 * 2 + 2)
        (74.9, ["last-2"], "full", "3 epochs would take about 75.0 s, and 74.9 s of the budget are left"),
        (23.2, [], "last-2", "3 epochs would take about 23.2 s, and 23.2 s of the budget are left"),
        (-4.0, [], "full", "3 epochs would take about 75.0 s, and 0.0 s of the budget are left"),
    ],
)
def test_a_budget_takes_the_mode_that_trains_most_in_time(left, expected, stage, reason):
    tried, skipped = modes(left=left)
    assert tried == expected
    assert skipped[stage] == reason


def test_too_few_images_are_left_to_frozen_features():
    tried, skipped = modes(images=59, classes=2)
    assert tried == []
    assert set(skipped) == {"last-2", "lora", "full"}
    assert skipped["full"].startswith("59 training images of 2 classes: it takes 5 a class, and 60 in all")
    assert modes(images=60, classes=2)[0]
    assert not modes(images=60, classes=13)[0]


def test_adapters_stand_for_weights_that_do_not_fit_into_memory():
    tried, skipped = modes(parameters=1_000_000_000)
    assert tried == ["last-2", "lora"]
    assert "1,000 M weights" in skipped["full"]
    tried, skipped = modes(parameters=1_000_000_000, has_lora=False)
    assert tried == ["last-2"]
    assert "peft" in skipped["lora"]


def test_a_mode_of_which_not_one_image_fits_into_memory_is_skipped():
    tried, skipped = modes(step_seconds={"last-2": 0.5})
    assert tried == ["last-2"]
    assert skipped["full"] == "not one image of a training step fits into memory"
    assert skipped["lora"].startswith("all weights fit")
    assert modes(step_seconds={})[0] == []


def test_hours_are_not_spent_unasked():
    tried, skipped = modes(step_seconds={"full": 20.0, "last-2": 5.0, "lora": 20.0})
    assert tried == ["last-2"]
    assert skipped["full"] == "20 epochs would take about 1:17:20, more than 1:00:00: give a --budget, or --tune full"
    skipped = modes(step_seconds={"full": 20.0, "last-2": 5.0, "lora": 20.0}, verb="train")[1]
    assert skipped["full"].endswith("more than 1:00:00: give a --budget")  # train has no --tune


def test_the_answers_of_a_teacher_take_time_before_the_first_step():
    tried, skipped = modes(left=80.0, answers_seconds=10.0)
    assert tried == ["last-2"]
    assert skipped["full"] == "3 epochs would take about 85.0 s, and 80.0 s of the budget are left"
    assert "would take about 1:02:35" in modes(answers_seconds=3600.0)[1]["last-2"]


def test_a_shallow_model_has_no_last_blocks():
    tried, skipped = modes(depth=2)
    assert tried == ["full"]
    assert skipped["last-2"] == "the model has 2 blocks: full trains all"


def test_views_take_at_most_a_twentieth_of_the_time_left():
    assert further_views(9.0, None, 1.0) == 1
    assert [further_views(9.0, left, 1.0) for left in (-5, 199, 201, 500, 10_000)] == [0, 0, 1, 2, 3]
    assert no_time_for_a_view(9.0, 199.0, 1.0) == (
        "a view and its head take about 10.0 s, more than 5 % of the 199.0 s of the budget that are left"
    )
    assert "of the 0.0 s" in no_time_for_a_view(9.0, -5.0, 1.0)


def test_heads_take_as_many_images_as_the_time_left_allows():
    found = [images_for_heads(1000, seconds, 100.0) for seconds in (0.0, 69.0, 140.0, 1e6)]
    assert found == [1000, 1000, 500, 32]
    assert images_for_heads(20, 1e6, 100.0) == 20
    assert images_for_heads(1000, 0.0, -5.0) == 32


def test_tokens_are_kept_up_to_a_bound():
    config = ViTConfig(width=384, heads=6, depth=12)  # 197 tokens
    size = 2 * 197 * 384
    assert tokens_too_large(config, (1 << 30) // size, None) is None
    assert "the limit is 1 GiB" in tokens_too_large(config, (1 << 30) // size + 1, None)
    assert "the limit is 0.1 GiB" in tokens_too_large(config, 4000, int(0.6 * (1 << 30)))
