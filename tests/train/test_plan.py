"""A plan predicts what a run needs."""

from dataclasses import replace
from pathlib import Path

import pytest

from vitreous.accelerate.cost import cost
from vitreous.data.config import AugmentConfig
from vitreous.errors import ConfigError
from vitreous.machine.peak_memory import MemoryMeter
from vitreous.recipes import recipe
from vitreous.recipes.pretraining import pretraining_recipe
from vitreous.train.config import RunConfig
from vitreous.train.planning import trials
from vitreous.train.planning.plan import plan


@pytest.fixture(autouse=True)
def few_steps(monkeypatch, tmp_path):
    """Few steps, in an empty working directory, where any file that is written shows."""
    monkeypatch.setattr(trials, "_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)


def small(**changes: object) -> RunConfig:
    config = recipe("digits")
    model = replace(config.model, width=32, depth=2, heads=2, mlp_dim=64)
    optim = replace(config.optim, name="adamw")
    return replace(config, model=model, optim=optim, device="cpu", precision="float32", epochs=3, **changes)


def test_figures_follow_from_the_data_and_the_model():
    planned = plan(small(ema=0.99))
    train, val = planned.pictures["train"], planned.pictures["val"]
    assert sum(planned.pictures.values()) == 1797
    assert planned.steps_per_epoch == train // 64
    assert (planned.batch_size, planned.parts, planned.epochs) == (64, 1, 3)
    model = replace(small().model, num_classes=10)
    each = cost(model)
    assert planned.parameters == each.parameters
    forward, seen = each.flops, 3 * planned.steps_per_epoch * 64
    # Backward is two forwards, but for the first layer, whose input has no gradient.
    assert 2.8 * forward * seen < planned.total_flops - 3 * val * forward < 3.02 * forward * seen
    # Weights, gradients, two moments, the average.
    assert planned.memory.weights == pytest.approx(5 * 4 * each.parameters, rel=0.02)
    assert planned.epoch_seconds >= planned.steps_per_epoch * planned.step_spread[0] / 2
    assert planned.step_spread[0] <= planned.step_seconds <= planned.step_spread[1]
    assert planned.total_seconds > planned.start_seconds + 3 * planned.epoch_seconds
    assert list(Path().iterdir()) == []


def test_steps_that_fill_no_epoch_end_with_a_whole_validation():
    planned = plan(small(steps=2))
    assert planned.epochs == 2 / planned.steps_per_epoch < 1
    forward = cost(replace(small().model, num_classes=10)).flops
    of_steps = planned.total_flops - planned.pictures["val"] * forward
    assert 2.8 * forward * 2 * 64 < of_steps < 3.02 * forward * 2 * 64


def test_a_budget_says_how_many_epochs_fit():
    planned = plan(small(budget="10h"))
    assert planned.total_seconds == 36000
    assert planned.epochs * planned.epoch_seconds == pytest.approx(36000, rel=0.05)


def test_phases_of_different_cost_count_by_their_lengths(monkeypatch):
    """Half of the steps, with a budget half of the time, use a quarter of the tokens."""
    model = replace(small().model, patch_size=2, num_classes=10)
    growing = AugmentConfig(small_first=(0.5,), small_until=0.5)
    counted, whole = (plan(replace(small(), model=model, augment=a)) for a in (growing, AugmentConfig()))
    tokens = whole.total_flops - counted.total_flops
    assert tokens == pytest.approx(0.5 * 0.75 * whole.total_flops, rel=0.15)
    assert counted.memory.weights == whole.memory.weights
    # Times of an idle machine: in equal times, four of five steps are of the first phase.
    monkeypatch.setattr(trials.Trials, "time_phases", lambda self: [[0.1, 0.1, 0.1], [0.4, 0.4, 0.4]])
    timed = plan(replace(small(), model=model, augment=growing, budget="10h"))
    each, half_each, all_each = (of.total_flops / (of.epochs * of.steps_per_epoch) for of in (timed, counted, whole))
    assert (all_each - each) / (all_each - half_each) == pytest.approx(0.8 / 0.5, rel=0.001)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports the memory of a process")
def test_a_step_that_does_not_fit_is_split_as_in_a_run(monkeypatch):
    roomy = plan(small(batch_size=512))
    assert roomy.parts == 1
    assert 512 <= roomy.largest_batch <= roomy.pictures["train"]
    assert 0 < roomy.memory.activations < roomy.memory.total
    monkeypatch.setattr(MemoryMeter, "left", lambda self: roomy.memory.activations // 2)
    tight = plan(small(batch_size=512))
    assert tight.parts > 1
    assert tight.largest_batch < 512


def test_the_largest_batch_is_what_growth_leaves_room_for(monkeypatch):
    tried = []

    class Grows(trials.Trials):
        def probe(self, size: int) -> None:
            tried.append(size)
            self.record_growth(size, 1_000_000 * size + 5_000_000)

    monkeypatch.setattr(MemoryMeter, "left", lambda self: 500_000_000)
    monkeypatch.setattr("vitreous.train.planning.plan.Trials", Grows)
    monkeypatch.setattr(Grows, "time_phases", lambda self: [[0.1, 0.2, 0.3]])
    planned = plan(small())
    assert planned.largest_batch == pytest.approx((0.9 * 500 - 5), abs=1)
    assert max(tried) < planned.largest_batch
    assert not planned.checked


@pytest.mark.parametrize("method", ["mae", "visreg"])
def test_a_pretraining_run_is_planned_with_its_decoder_or_views(method, monkeypatch):
    monkeypatch.delattr("vitreous.train.planning.plan.scoring_seconds")  # its weights are not scored
    config = pretraining_recipe(method, "digits")
    model = replace(config.model, width=32, depth=2, heads=2, mlp_dim=64)
    planned = plan(replace(config, model=model, device="cpu", precision="float32", epochs=3, batch_size=64))
    assert planned.epochs == 3
    assert planned.total_seconds > planned.start_seconds + 2 * planned.epoch_seconds
    each = cost(replace(model, num_classes=0))
    assert planned.memory.weights > 1.2 * 4 * 4 * each.parameters  # with a decoder or a projector beside the model
    # The encoder of mae sees a quarter of the patches; visreg sees several crops of an image.
    assert planned.total_flops > {"mae": 0.7, "visreg": 3.0}[method] * each.flops * 3 * planned.pictures["train"]
    assert planned.advice == ()
    assert list(Path().iterdir()) == []


def test_a_plan_refuses_what_a_run_refuses():
    with pytest.raises(ConfigError, match="num_classes is 3"):
        plan(replace(small(), model=replace(small().model, num_classes=3)), explicit={"num_classes"})
