"""Builds what trains: the Lightning module, callbacks and Trainer of a run, new or restored from a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch

from vitreous.errors import pluralize
from vitreous.evaluate.scoring.any_labels import scores_of
from vitreous.runs.folder import RunDir
from vitreous.train.config import parse_duration
from vitreous.train.console import Display
from vitreous.train.finetune.first_probe import ProbeResult
from vitreous.train.finetune.trainable import class_weights
from vitreous.train.loop.callbacks import MetricsLog, StopWhenOver, WeightSelection
from vitreous.train.loop.module import VitModule
from vitreous.train.loop.progress import Budget, Clock, Steps
from vitreous.train.loop.trainer import build_trainer, make_loggers
from vitreous.train.multilabel.losses import choose_loss
from vitreous.train.results import RunWriter, copy_weights, ending
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.resume.saving import Saver
from vitreous.train.resume.signals import Signals
from vitreous.train.resume.state import (
    RunState,
    check_position,
    identity,
    optimizer_state,
    report_mismatch,
    restore_module,
    restore_trainer,
    selection_state,
)
from vitreous.train.setup import Setup, describe_hardware

__all__ = ["Kit", "Session", "assemble", "make_module", "own_share"]


def make_module(
    setup: Setup, progress: Callable[[int], float], build_module: Callable[..., VitModule] = VitModule
) -> VitModule:
    """Build the Lightning module; `progress` maps the index of a step to the fraction of the run done before it."""
    config, data = setup.config, setup.data
    if setup.auxiliary is not None:
        from vitreous.train.auxiliary.module import AuxModule  # no other run pays for it

        build_module = partial(AuxModule, auxiliary=setup.auxiliary)
    return build_module(
        setup.model,
        config.optim,
        setup.data_module.batch_augment,
        setup.pipeline,
        accumulate=setup.data_module.train_sampler.accumulate,
        ema=config.ema,
        class_weights=class_weights(data.splits["train"].labels, len(data.classes), config.class_weights),
        loss=choose_loss(config.labels, data.several),
        patches_last=config.patches_last,
        progress=progress,
        distiller=setup.distiller,
    )


def _score_columns(setup: Setup) -> Collection[str]:
    """Return the names of the scores of a validation in metrics.csv."""
    classes = len(setup.data.classes)
    labels = torch.zeros((1, classes) if setup.data.several else 1, dtype=torch.int64)
    scores = scores_of(torch.zeros(1, classes), labels).summary()
    terms = setup.auxiliary.term_names if setup.auxiliary is not None else ()
    return {*(f"val_{name}" for name in scores), *(f"train_{name}" for name in terms)}


def own_share(setup: Setup) -> float:
    """Estimate the share of a step's time that the model itself takes, by operations; a teacher may take the rest."""
    if setup.distiller is None or not setup.distiller.in_loop:
        return 1.0
    own = 3 * setup.cost.flops  # forward and backward
    return own / (own + setup.distiller.teacher.flops)


@dataclass(frozen=True)
class Kit:
    """What a run is assembled from: by default a classifier, in one process. pretrain/ and scale/ have other kits."""

    module: Callable[[Setup, Callable[[int], float]], VitModule] = make_module
    metrics: Callable[..., MetricsLog] = MetricsLog
    checkpoint: Callable[..., Checkpoint] = Checkpoint
    writer: Callable[..., RunWriter] = RunWriter
    score_columns: Callable[[Setup], Collection[str]] = _score_columns
    ending: Callable[[Setup, float], tuple[float, float]] = ending
    scores_weights: bool = True  # whether the saved weights are scored after training
    measures_start: bool = False  # whether a pretrained model is measured before the first step
    later_validations: int = 0  # after training, besides those of any run, for which a budget reserves time
    run_folder: Path | None = None  # of the run that this is a stage of; None: the folder of the session is the run's
    budget: Callable[[float, float, float], Budget] = Budget
    strategy: Mapping[str, Any] | None = None  # arguments of the Trainer
    saver: Callable[..., Saver] = Saver
    compile: Callable[[torch.nn.Module], Any] = torch.nn.Module.compile
    restore: Callable[[VitModule, RunState], None] = restore_module


@dataclass
class Session:
    """One process's work on a run: everything that the phases in run.py share."""

    setup: Setup
    run_dir: RunDir
    view: Display
    signals: Signals
    writer: RunWriter
    saver: Saver
    clock: Clock
    identity: dict[str, str]  # what two runs must have in common for one to resume the other
    trained: bool = False  # whether training is over
    seconds: dict[str, float] = field(default_factory=dict)  # wall-clock time by phase
    probe: ProbeResult | None = None  # scores of the frozen features, in fine-tuning
    threads: int = field(default_factory=torch.get_num_threads)
    extended: tuple[int, ...] = ()  # numbers of epochs at which the run had finished before it was given more
    kit: Kit = field(default_factory=Kit)

    module: VitModule = field(init=False)
    metrics: MetricsLog = field(init=False)
    selection: WeightSelection = field(init=False)
    checkpoint: Checkpoint = field(init=False)
    trainer: lightning.Trainer = field(init=False)
    fit_started: float = field(init=False, default=0.0)  # time.monotonic() at the start of fit; 0 outside of it

    @property
    def run_folder(self) -> Path:
        """The folder of the run, which a resume names; a stage of a run trains in a folder of its own."""
        return self.kit.run_folder or self.run_dir.path

    def training_seconds(self) -> float:
        """Return the training time so far, summed over all processes that worked on the run."""
        return self.seconds.get("train", 0.0) + (time.monotonic() - self.fit_started if self.fit_started else 0.0)

    @property
    def is_consistent(self) -> bool:
        """Whether the run has a consistent state: training has begun, and no update or end of an epoch is under way."""
        epochs_recorded = len(self.metrics.history) == self.trainer.current_epoch
        return self.checkpoint.begun and self.module.is_consistent and epochs_recorded

    def capture(self, epoch_ended: bool = False, trained: bool = False) -> RunState:
        """Copy the state of the run after its last completed step, or after a whole epoch with its validation."""
        module, optimizers = self.module, self.trainer.optimizers
        loss_sum, images = module.epoch_sums()
        return RunState(
            identity=self.identity,
            epoch=self.trainer.current_epoch + epoch_ended,
            step=0 if epoch_ended else module.steps_made,
            trained=trained,
            parts=module.accumulate,
            model=copy_weights(module.model),
            average=copy_weights(module.average) if module.average is not None else None,
            optimizer=optimizer_state(optimizers[0]) if optimizers else {"state": {}, "rates": []},
            loss_sum=loss_sum,
            images_seen=images,
            best=selection_state(self.selection.best),
            risen=self.selection.improved_epoch,
            stopped_early=self.selection.stopped_early,
            history=list(self.metrics.history),
            clock=self.clock.state(),
            seconds={**self.seconds, "train": self.training_seconds()},
            start=dict(module.start),
            probed=self.probe.to_dict() if self.probe is not None else None,
            distil=module.distiller.state() if module.distiller is not None else None,
            auxiliary=module.auxiliary.state() if module.auxiliary is not None else None,
            threads=self.threads,
            extended=list(self.extended),
        )

    def rebuild(self, state: RunState | None) -> None:
        """Replace the module, callbacks and Trainer by new ones, restored from a state if one is given."""
        setup, folder, view = self.setup, self.run_dir.path, self.view
        config, splits, per_epoch = setup.config, setup.data.splits, setup.data_module.steps_per_epoch
        if state is not None and state.parts != setup.data_module.train_sampler.accumulate:
            setup.data_module.set_accumulation(state.parts)
        self.module = self.kit.module(setup, self.clock.progress)
        scores = self.kit.scores_weights
        test_share = len(splits.get("test", ())) / len(splits["val"]) if scores else 0.0
        later = test_share + self.kit.later_validations
        validated_in = setup.precision if scores else "float32"
        stop = StopWhenOver(self.clock, own_share(setup) * len(splits["val"]), later, validated_in, config.compile)
        epochs: int | None = config.epochs if config.steps is None else -(-config.steps // per_epoch)
        planned = pluralize(config.steps, "step") if config.steps else pluralize(config.epochs, "epoch")
        if config.budget is not None:
            epochs, planned = None, f"as many epochs as fit into {config.budget}"

        def announce(speed: float, seconds: float) -> None:
            view.machine(describe_hardware(setup.device, setup.precision), speed, planned, seconds)

        self.metrics = self.kit.metrics(folder, view, self.clock, epochs, announce, precision=setup.precision)
        self.selection = WeightSelection(config.select, config.patience, self.writer.save_best)
        self.checkpoint = self.kit.checkpoint(
            self.saver,
            self.capture,
            state,
            signals=self.signals,
            lock=self.run_dir.lock,
            every=parse_duration(config.checkpoint_every),
            epochs=config.checkpoint_epochs,
        )
        callbacks = (stop, self.metrics, self.selection, self.checkpoint)
        loggers = make_loggers(config.loggers, folder)
        self.trainer = build_trainer(
            folder, setup.device, setup.precision, callbacks, loggers, strategy=self.kit.strategy
        )
        if state is not None:
            with report_mismatch():
                _restore(self, state)


def assemble(
    setup: Setup,
    run_dir: RunDir,
    view: Display,
    signals: Signals,
    state: RunState | None,
    *,
    started: float,
    exit_seconds: float,
    kit: Kit | None = None,
) -> Session:
    """Decode the images if they fit into memory, and build the module, callbacks and Trainer of a run.

    A budget counts from `started`, ``time.monotonic()`` at the start of the command, and reserves `exit_seconds`.
    """
    config, kit = setup.config, kit or Kit()
    if state is not None:
        check_position(state, setup, kit.score_columns(setup))
    clock: Clock = Steps(config.steps or config.epochs * setup.data_module.steps_per_epoch)
    map_seconds = math.inf
    if config.budget is not None:
        budget = parse_duration(config.budget)
        map_seconds, reporting = kit.ending(setup, budget)
        clock = kit.budget(started, budget, exit_seconds + reporting)
    with view.counting("decoding") as count:
        setup.data_module.progress = count
        setup.data_module.setup("fit")
    if config.compile:
        kit.compile(setup.model)
    saver, extended = kit.saver(run_dir.path, run_dir.lock), tuple(state.extended) if state is not None else ()
    writer = kit.writer(setup, run_dir.path, extended, map_seconds)
    session = Session(setup, run_dir, view, signals, writer, saver, clock, identity(setup), extended=extended, kit=kit)
    session.rebuild(state)
    if state is not None:
        with report_mismatch():
            clock.restore(state.clock)
        saver.saved = state.where
    return session


def _restore(session: Session, state: RunState) -> None:
    """Restore a state, except that of the optimiser, which Lightning creates when training starts."""
    sampler = session.setup.data_module.train_sampler
    session.trained, session.seconds, session.fit_started = state.trained, dict(state.seconds), 0.0
    session.probe = ProbeResult.from_dict(state.probed) if state.probed is not None else None
    session.metrics.history = list(state.history)
    session.selection.best = state.selected()
    session.selection.improved_epoch, session.selection.stopped_early = state.risen, state.stopped_early
    session.kit.restore(session.module, state)
    batches_done = state.step * sampler.accumulate
    sampler.seek(state.epoch, max(batches_done - 1, 0))
    restore_trainer(session.trainer, state.epoch, batches_done, len(sampler), sampler.accumulate)
