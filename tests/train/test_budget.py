"""The time that a budget reserves for the end of a run, and what counts as progress."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

from vitreous.errors import TrainingError
from vitreous.recipes import recipe
from vitreous.train.console import Display
from vitreous.train.loop.callbacks import StopWhenOver
from vitreous.train.loop.progress import Budget
from vitreous.train.run import run


class Steps:
    """Steps of given durations, reported to the callback as a Trainer does."""

    def __init__(self, monkeypatch, *, images_seen: int = 0) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.budget = Budget(started=700.0, seconds=600.0, reserve=20.0)
        self.stop = StopWhenOver(self.budget, 2475, test_share=4.0, precision="bf16")
        self.trainer = SimpleNamespace(global_step=100, should_stop=False)
        self.module = SimpleNamespace(images_seen=images_seen, extra_seconds=0.0)
        self.stop.on_train_start(self.trainer, self.module)

    def step(self, seconds: float, images: int = 512, whole: bool = True) -> None:
        self.stop.on_train_batch_start(self.trainer, self.module)
        self.budget.progress(self.trainer.global_step)
        self.now += seconds
        self.module.images_seen += images
        self.trainer.global_step += whole and images > 0
        self.stop.on_train_batch_end(self.trainer, self.module)

    def validate(self, seconds: float) -> None:
        self.stop.on_validation_start(self.trainer, self.module)
        self.now += seconds
        self.stop.on_validation_end(self.trainer, self.module)


def test_the_batch_that_a_resumed_run_skips_does_not_count_for_its_speed(monkeypatch):
    steps = Steps(monkeypatch, images_seen=5000)
    steps.step(0.1, images=0)
    steps.step(10.0)  # compiles
    assert steps.budget.reserve == 20.0
    steps.step(0.05)
    assert 20 < steps.budget.reserve < 25
    assert not steps.trainer.should_stop


def test_what_comes_before_the_first_step_is_not_progress(monkeypatch):
    steps = Steps(monkeypatch)
    steps.now += 100  # a module measures its features
    steps.stop.on_train_batch_start(steps.trainer, steps.module)
    assert steps.budget.progress(100) == 0.0


@pytest.mark.parametrize("whole", [True, False], ids=["a step", "a part of a step"])
def test_a_first_step_that_compiles_is_not_progress(monkeypatch, whole):
    steps = Steps(monkeypatch)
    steps.step(60.0, whole=whole)
    assert steps.budget.progress(101) == 0.0
    for _ in range(50):
        steps.step(1.0)
    left = 700 + 600 - steps.budget.reserve - 1060
    assert steps.budget.progress(151) == pytest.approx(50 / left)


def test_what_a_validation_does_besides_is_reserved_too(monkeypatch):
    reserves = []
    for extra in (0.0, 10.0):
        steps = Steps(monkeypatch)
        steps.stop._precision, steps.stop._test_share = "float32", 0.0  # nothing is scored after training
        steps.module.extra_seconds = extra
        for _ in range(12):
            steps.step(1.0)
        reserves.append(steps.budget.reserve)
        steps.validate(3.0)
        assert steps.budget.reserve == pytest.approx(20 + 3 + extra)
    assert reserves[1] == pytest.approx(reserves[0] + 10)


def test_the_scoring_in_float32_is_reserved_by_its_measured_time(monkeypatch):
    steps = Steps(monkeypatch)
    steps.validate(2.0)
    assert steps.budget.reserve == pytest.approx(20 + 2 + 5 * 3 * 2)  # a guess of three times
    steps.trainer.world_size = 1
    steps.module.device, steps.module.pipeline = torch.device("cpu"), SimpleNamespace(normalise=lambda images: images)
    steps.module.eval_model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000))
    steps.stop.on_validation_batch_end(steps.trainer, steps.module, None, {"images": torch.zeros(64, 3, 32, 32)}, 0)
    steps.validate(2.0)
    ratio = (steps.budget.reserve - 20 - 2) / 2 / 5
    assert ratio != 3
    assert 0.01 < ratio < 100


def test_one_slow_validation_does_not_end_the_run(monkeypatch):
    steps = Steps(monkeypatch)
    reserves = []
    for seconds in (1.0, 1.0, 5.0, 1.0, 3.0, 3.0):
        steps.validate(seconds)
        reserves.append(steps.budget.reserve)
    one, three = (20 + seconds * (1 + 3 * 5) for seconds in (1, 3))  # a last validation, and both splits in float32
    assert reserves == pytest.approx([one, one, one, one, three, three])


def test_a_few_slow_steps_at_the_start_do_not_end_the_run(monkeypatch):
    steps = Steps(monkeypatch)
    for seconds in (10.0, 30.0, 20.0):  # the machine is busy for a moment: validation at this speed takes minutes
        steps.step(seconds, images=64)
    assert not steps.trainer.should_stop
    for _ in range(3):
        steps.step(0.5, images=64)
    assert 20 < steps.budget.reserve < 20 + 16 * 2475 * 0.5 / 64
    assert not steps.trainer.should_stop


def test_steps_that_stay_slow_leave_time_for_the_validation(monkeypatch):
    steps = Steps(monkeypatch)
    while not steps.trainer.should_stop:
        steps.step(2.0)
    left = 1300.0 - steps.now
    assert steps.budget.reserve - 2 <= left <= steps.budget.reserve


def test_a_rebuilt_run_reserves_time_once(monkeypatch):
    steps = Steps(monkeypatch)
    steps.validate(2.0)
    again = StopWhenOver(steps.budget, 2475, test_share=4.0, precision="bf16")
    again.on_validation_start(steps.trainer, steps.module)
    steps.now += 2.0
    again.on_validation_end(steps.trainer, steps.module)
    assert steps.budget.reserve == pytest.approx(20 + 2 * 16)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says when a process started")
def test_a_budget_is_counted_from_the_start_of_the_process():
    code = "import time; time.sleep(0.3); from vitreous.cli.work.training import process_start as start\n"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code + "print(time.monotonic() - start())"], capture_output=True, text=True, check=True
    )
    assert 0.3 <= float(done.stdout) <= time.monotonic() - began + 0.02  # a start is rounded to a tick of the clock


def test_a_budget_that_is_used_up_before_the_first_step_is_an_error(tmp_path):
    asked = dataclasses.replace(recipe("digits"), out=str(tmp_path / "run"), budget="30s", device="cpu")
    with pytest.raises(
        TrainingError, match=r"budget of 30 s is used up before the first step: \d+ s went into start-up and reading,"
    ):
        run(asked, view=Display(Console(file=io.StringIO())), started=time.monotonic() - 60)
    assert not (tmp_path / "run" / "model.safetensors").exists()
