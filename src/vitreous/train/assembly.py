"""The parts of a run put together: module, callbacks and Trainer, new or as a saved state has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning
import torch

from vitreous.data.sources.listing import many
from vitreous.runs.folder import Place
from vitreous.train.callbacks import Record, Selection, Stop
from vitreous.train.config import parse_duration
from vitreous.train.console import View
from vitreous.train.finetune.first_probe import Probed
from vitreous.train.finetune.trainable import class_weights
from vitreous.train.module import VitModule
from vitreous.train.progress import Budget, Clock, Steps
from vitreous.train.results import Writer, report_seconds, weights_of
from vitreous.train.resume.saving import Checkpoint, Saver
from vitreous.train.resume.signals import Signals
from vitreous.train.resume.state import (
    RunState,
    fitting_this_run,
    identity,
    optimizer_state,
    place_trainer,
    refuse_impossible,
    restore_module,
    selected_state,
)
from vitreous.train.setup import Prepared, describe_place
from vitreous.train.trainer import build_trainer, make_loggers

__all__ = ["Assembled", "assemble", "make_module", "rebuild"]


@dataclass
class Assembled:
    """A run whose parts are together.

    Attributes:
        ready: What it is made of.
        place: Its folder, held.
        view: Where its lines go.
        signals: Of the user or a scheduler.
        writer: Of its files.
        saver: Of its states.
        clock: Says when it is over.
        identity: What a process that goes on with it must share.
        trained: Whether no step is left to make.
        seconds: Wall-clock time by phase.
        probed: What frozen features were worth.
        threads: That it computes with.
        extended: Numbers of epochs at which it was finished before.
    """

    ready: Prepared
    place: Place
    view: View
    signals: Signals
    writer: Writer
    saver: Saver
    clock: Clock
    identity: dict[str, str]
    trained: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    probed: Probed | None = None
    threads: int = field(default_factory=torch.get_num_threads)
    extended: tuple[int, ...] = ()

    module: VitModule = field(init=False)
    record: Record = field(init=False)
    selection: Selection = field(init=False)
    checkpoint: Checkpoint = field(init=False)
    trainer: lightning.Trainer = field(init=False)
    began: float = field(init=False, default=0.0)

    def training_seconds(self) -> float:
        """Time that training has taken, in all processes that worked on it."""
        return self.seconds.get("train", 0.0) + (time.monotonic() - self.began if self.began else 0.0)

    @property
    def whole(self) -> bool:
        """Whether there is a state to capture: training has begun, and no update and no epoch's end was broken off."""
        of_epochs = len(self.record.history) == self.trainer.current_epoch
        return self.checkpoint.begun and self.module.whole and of_epochs

    def capture(self, between: bool = False, trained: bool = False) -> RunState:
        """The state of the run after its last whole step, as a copy.

        Args:
            between: Whether the epoch has ended, with its validation and all that follows.
            trained: Whether no step is left to make.
        """
        module = self.module
        loss_sum, images = module.epoch_sums()
        epoch = self.trainer.current_epoch
        optimizers = self.trainer.optimizers
        return RunState(
            identity=self.identity,
            epoch=epoch + between,
            step=0 if between else module.steps_made,
            trained=trained,
            parts=module.accumulate,
            model=weights_of(module.model),
            average=weights_of(module.average) if module.average is not None else None,
            optimizer=optimizer_state(optimizers[0]) if optimizers else {"state": {}, "rates": []},
            loss_sum=loss_sum,
            images_seen=images,
            best=selected_state(self.selection.best),
            risen=self.selection.risen,
            stopped_early=self.selection.stopped_early,
            history=list(self.record.history),
            clock=self.clock.state(),
            seconds={**self.seconds, "train": self.training_seconds()},
            probed=self.probed.to_dict() if self.probed is not None else None,
            threads=self.threads,
            extended=list(self.extended),
        )


def assemble(
    ready: Prepared,
    place: Place,
    view: View,
    signals: Signals,
    state: RunState | None,
    *,
    started: float,
    leaving: float,
) -> Assembled:
    """Build what trains.

    Args:
        ready: What the run is made of.
        place: Its folder.
        view: Where its lines go.
        signals: Of the user or a scheduler.
        state: To go on from; None begins.
        started: When the command started, in the seconds of ``time.monotonic()``.
        leaving: Seconds that the process takes to end.
    """
    config = ready.config
    if state is not None:
        refuse_impossible(state, ready)
    clock: Clock = Steps(config.steps or config.epochs * ready.loading.steps_per_epoch)
    if config.budget is not None:
        reserve = leaving + report_seconds(len(ready.data.classes))
        clock = Budget(started, parse_duration(config.budget), reserve)
    with view.counting("decoding") as count:
        ready.loading.progress = count
        ready.loading.setup("fit")
    if config.compile:
        ready.model.compile()
    saver, extended = Saver(place.folder, place.lock), tuple(state.extended) if state is not None else ()
    writer = Writer(ready, place.folder, extended)
    this = Assembled(ready, place, view, signals, writer, saver, clock, identity(ready), extended=extended)
    rebuild(this, state)
    if state is not None:
        with fitting_this_run():
            clock.restore(state.clock)
        saver.saved = state.where
    return this


def make_module(ready: Prepared, progress: Callable[[int], float]) -> VitModule:
    """The module that trains the model of a run.

    Args:
        ready: What the run is made of.
        progress: Share of the run that is done before a step.
    """
    config, data = ready.config, ready.data
    return VitModule(
        ready.model,
        config.optim,
        ready.loading.batch_augment,
        ready.pipeline,
        accumulate=ready.loading.plans.parts,
        ema=config.ema,
        class_weights=class_weights(data.splits["train"].labels, len(data.classes), config.class_weights),
        patches_last=config.patches_last,
        progress=progress,
    )


def rebuild(this: Assembled, state: RunState | None) -> None:
    """Make the parts that train anew, as of a state.

    Args:
        this: Its module, callbacks and Trainer are replaced.
        state: To go on from; None begins. Its `parts` decide into how many parts a step is cut.
    """
    ready, folder = this.ready, this.place.folder
    config, splits, per_epoch = ready.config, ready.data.splits, ready.loading.steps_per_epoch
    if state is not None and state.parts != ready.loading.plans.parts:
        ready.loading.cut_steps(state.parts)
    this.module = make_module(ready, this.clock.progress)
    test_share = len(splits.get("test", ())) / len(splits["val"])
    stop = Stop(this.clock, test_share, ready.precision, config.compile)
    epochs: int | None = config.epochs if config.steps is None else -(-config.steps // per_epoch)
    planned = many(config.steps, "step") if config.steps else many(config.epochs, "epoch")
    if config.budget is not None:
        epochs, planned = None, f"as many epochs as fit into {config.budget}"

    def announce(speed: float, left: float) -> None:
        this.view.machine(describe_place(ready.device, ready.precision), speed, planned, left)

    this.record = Record(folder, this.view, this.clock, epochs, announce, precision=ready.precision)
    this.selection = Selection(config.select, config.patience, this.writer.keep)
    every = parse_duration(config.checkpoint_every)
    this.checkpoint = Checkpoint(
        this.saver,
        this.capture,
        state,
        signals=this.signals,
        lock=this.place.lock,
        every=every,
        epochs=config.checkpoint_epochs,
    )
    callbacks: list[Any] = [stop, this.record, this.selection, this.checkpoint]
    loggers = make_loggers(config.loggers, folder)
    this.trainer = build_trainer(folder, ready.device, ready.precision, callbacks, loggers)
    if state is not None:
        with fitting_this_run():
            _give_back(this, state)


def _give_back(this: Assembled, state: RunState) -> None:
    """Give each part what the state has of it, but for the optimiser's, which is made when training starts."""
    plans = this.ready.loading.plans
    this.trained = state.trained
    this.seconds, this.began = dict(state.seconds), 0.0
    this.probed = Probed.from_dict(state.probed) if state.probed is not None else None
    this.record.history = list(state.history)
    this.selection.best = state.selected()
    this.selection.risen, this.selection.stopped_early = state.risen, state.stopped_early
    restore_module(this.module, state)
    made = state.step * plans.parts
    plans.seek(state.epoch, max(made - 1, 0))
    place_trainer(this.trainer, state.epoch, made, len(plans), plans.parts)
