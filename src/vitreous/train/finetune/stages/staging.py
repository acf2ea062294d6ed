"""One process's work on a run in stages: what the stages share, and the journal that a resume reads.

The journal, `stages.ckpt`, holds the outcomes of the stages that are done, with their models, and the time used. The
training of a stage has checkpoints of its own in `stages/MODE/`, which are those of any run.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.accelerate.model import build
from vitreous.errors import CheckpointError
from vitreous.machine.threads import one_thread
from vitreous.model.config import ViTConfig
from vitreous.runs.folder import STAGES, RunDir
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.config import OptimConfig, parse_duration
from vitreous.train.console import Display
from vitreous.train.finetune.stages.outcome import Candidate, Outcome, best_of
from vitreous.train.finetune.stages.writers import ending_seconds, seconds_of_test, writer_of
from vitreous.train.finetune.trainable import choose_trained
from vitreous.train.results import SelectedWeights
from vitreous.train.resume.signals import Signals
from vitreous.train.resume.state import check_identity, identity, report_mismatch
from vitreous.train.setup import Setup

__all__ = ["Staging", "selected_weights", "variant", "whole_state"]

_REPORT, _REPORT_SHARE = 10.0, 0.4  # seconds for the report and late imports until measured; at most of what is left
_KEPT_EVERY = 5.0  # seconds after which the time used is written while features are computed
_FIELDS = (
    *("stage", "seconds", "detail", "correct", "images", "skipped"),
    *("mean_ap", "macro_f1", "log_loss", "trained", "strength", "history"),
)


@dataclass(eq=False)
class Staging:
    """What the stages of a run share."""

    setup: Setup
    run_dir: RunDir
    view: Display
    signals: Signals
    started: float  # time.monotonic() at the start of the command
    used_before: float = 0.0  # seconds that earlier processes used
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # wall-clock time by phase
    map_seconds: float = math.inf  # of the class maps of the report
    reporting: float = 0.0  # reserved for the report and the exit
    exit_seconds: float = 0.0  # of these, for the exit
    testing: float = 0.0  # reserved for the test split
    keeps_features: bool = False  # whether those computed so far are kept for a second run
    head_images: int | None = None  # training images that heads are fitted to; None until the first one

    @classmethod
    def open(
        cls, setup: Setup, run_dir: RunDir, view: Display, signals: Signals, *, started: float, exit_seconds: float
    ) -> Staging:
        """Restore the journal of a run to resume; with a budget, reserve time for the test split and the report."""
        staging = cls(setup, run_dir, view, signals, started, exit_seconds=exit_seconds)
        if run_dir.has_run:
            staging._restore()
        if (budget := staging.budget) is not None:
            left = max(0.0, budget - staging.used)
            staging.reporting = exit_seconds + min(_REPORT, _REPORT_SHARE * left)
            staging.testing = seconds_of_test(setup)
        return staging

    def measure_report(self) -> None:
        """Measure the report's time in place of a guess. That takes seconds, so the first head comes before."""
        if (budget := self.budget) is not None:
            self.map_seconds, report = ending_seconds(self.setup, budget)
            self.reporting = self.exit_seconds + report

    @property
    def budget(self) -> float | None:
        """Seconds for the whole command."""
        budget = self.setup.config.budget
        return parse_duration(budget) if budget is not None else None

    @property
    def used(self) -> float:
        """Seconds that the run has used in all processes."""
        return self.used_before + time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Seconds left for stages; None without a budget. The clock of a training reserves the test split by itself."""
        return None if self.budget is None else self.budget - self.used - self.reporting - self.testing

    @property
    def reserved(self) -> str:
        """What is left for the end of a run with a budget, in words."""
        what = "the test split and the report" if self.testing else "the report"
        return f"{self.reporting + self.testing:.0f} s are reserved for {what}"

    @property
    def best(self) -> Outcome | None:
        """The stage with the best model so far."""
        return best_of(self.outcomes, self.setup.config.select)

    def best_before(self, stage: str) -> Outcome | None:
        """Return the stage with the best model before a stage, or so far if that is not done."""
        earlier = itertools.takewhile(lambda outcome: outcome.stage != stage, self.outcomes)
        return best_of(list(earlier), self.setup.config.select)

    def done(self, stage: str) -> Outcome | None:
        """Return the outcome of a stage if it is done, or was skipped."""
        return next((each for each in self.outcomes if each.stage == stage), None)

    def record(self, *outcomes: Outcome) -> None:
        """Add and print outcomes, write the model if one is the best so far, and write the journal."""
        before = self.best
        for outcome in outcomes:
            self.outcomes.append(outcome)
            self.view.line("stage", outcome.describe())
            if outcome.skipped is None:
                self.seconds[outcome.stage] = outcome.seconds
        best = self.best
        if best is not before and best is not None and best.candidate is not None:
            selected = selected_weights(self.setup, best.candidate)
            writer = writer_of(self.setup)(variant(self.setup, best.candidate), self.run_dir.path)
            writer.save_calibrated(selected)
        self._write()

    def keeping_time(self, progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """Return a progress function that also writes the time used every few seconds.

        A run that is killed before its first head has used a part of its budget too.
        """
        written = time.monotonic()

        def show(done: int, total: int) -> None:
            nonlocal written
            progress(done, total)
            if self.budget is not None and time.monotonic() - written > _KEPT_EVERY:
                self._write()
                written = time.monotonic()

        return show

    def discard_if_empty(self) -> None:
        """Remove the journal of a run that fails before its first stage: there is nothing to resume."""
        if not self.outcomes:
            self._journal.unlink(missing_ok=True)

    @property
    def _journal(self) -> Path:
        return self.run_dir.path / STAGES

    def _write(self) -> None:
        best = self.best
        content = {
            "identity": identity(self.setup),
            "used": self.used,
            "seconds": self.seconds,
            "head_images": self.head_images,
            # The models of trainings that were not the best are not needed again; heads are small.
            "outcomes": [_stored(each, each is best or not each.history) for each in self.outcomes],
        }
        write_state(self._journal, content)

    def _restore(self) -> None:
        if not self._journal.exists():
            return
        try:
            content = read_state(self._journal)
            with report_mismatch():
                settings, stored = content["identity"], content["outcomes"]
                seconds, used = dict(content["seconds"]), float(content["used"])
                outcomes = [_restored(each) for each in stored]
                head_images = None if (count := content.get("head_images")) is None else int(count)
        except CheckpointError as error:
            self.view.line("damaged", f"{error}: all stages begin again")
            return
        check_identity(settings, identity(self.setup), f"'{self._journal}'")
        self.outcomes, self.seconds, self.used_before = outcomes, seconds, used
        self.head_images = head_images
        if self.outcomes:
            names = ", ".join(outcome.stage for outcome in self.outcomes if outcome.skipped is None)
            self.view.line("resume", f"{self._journal}: done are {names}")


def _stored(outcome: Outcome, with_model: bool) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(outcome, name) for name in _FIELDS}
    found["history"] = [dict(row) for row in outcome.history]
    found["model"] = None
    if (candidate := outcome.candidate) is not None and with_model:
        names = ("tensors", "logits", "labels", "epoch")
        found["model"] = {"config": candidate.config.to_dict(), **{name: getattr(candidate, name) for name in names}}
    return found


def _restored(stored: dict[str, Any]) -> Outcome:
    candidate = None
    if (model := stored["model"]) is not None:
        config = ViTConfig(**model["config"])
        candidate = Candidate(config, model["tensors"], model["logits"], model["labels"], model["epoch"])
    fields = {name: stored[name] for name in _FIELDS}
    if fields["mean_ap"] is not None:
        if isinstance(fields["mean_ap"], float):
            raise CheckpointError("it is from an earlier version of vitreous, whose stages had no interval of mAP")
        value, low, high = fields["mean_ap"]
        fields["mean_ap"] = (value, low, high)
    return Outcome(**fields, candidate=candidate)


def whole_state(setup: Setup, candidate: Candidate) -> dict[str, Tensor]:
    """Return the state dict of a candidate, on the CPU."""
    with torch.device("meta"):
        names = build(candidate.config).state_dict().keys()
    source = setup.model.state_dict()
    return {name: (candidate.tensors[name] if name in candidate.tensors else source[name]).cpu() for name in names}


def selected_weights(setup: Setup, candidate: Candidate) -> SelectedWeights:
    """Return a candidate as the weights that a run saves."""
    weights = whole_state(setup, candidate)
    return SelectedWeights(candidate.scores, candidate.logits, candidate.labels, candidate.epoch, weights)


def variant(setup: Setup, candidate: Candidate, mode: str | None = None) -> Setup:
    """Return the run with a candidate's model, ready to train in a mode; None only takes the model.

    A model whose heads alone were fitted has nothing of a teacher.
    """
    config = replace(setup.config, model=candidate.config)
    if mode is not None:
        config = replace(config, tune=replace(config.tune, mode=mode), optim=_optim(config.optim, mode))
    torch.manual_seed(config.seed)
    with one_thread():
        model = build(candidate.config)
        model.load_state_dict(whole_state(setup, candidate))
        model = choose_trained(model, config.tune)
    loading = setup.data_module if mode is None else setup.data_module.restarted()
    taught = setup if mode is not None or candidate.epoch else replace(setup, distiller=None)
    return replace(taught, config=config, model=model, data_module=loading)


def _optim(optim: OptimConfig, mode: str) -> OptimConfig:
    """Return the optimiser of a stage: for adapters twice the rate, and no decay towards zero."""
    if mode != "lora":
        return optim
    return replace(optim, lr=2 * optim.lr, weight_decay=0.0, layer_decay=None)
