"""The course of a pretraining run: prepare, announce, fit, save the backbone, measure it, report.

The phases up to the end of training, and resuming, are those of any run (phases.py). A run has one process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any, cast

from vitreous.machine.threads import torch_threads
from vitreous.runs.folder import RunDir
from vitreous.train.assembly import Kit, Session, assemble
from vitreous.train.console import Display
from vitreous.train.finish import RunResult, end_interrupted
from vitreous.train.phases import announce, check_budget, fit, open_run_dir
from vitreous.train.pretrain.base import Objective
from vitreous.train.pretrain.config import PretrainConfig
from vitreous.train.pretrain.module import PretrainModule
from vitreous.train.pretrain.monitor import CollapseWatch, FeatureMonitor
from vitreous.train.pretrain.setup import prepare
from vitreous.train.pretrain.writing import PretrainWriter
from vitreous.train.progress import Budget
from vitreous.train.resume.signals import Signals, Stopped
from vitreous.train.run import run
from vitreous.train.setup import Setup

__all__ = ["pretrain"]

_ENDING = 8.0  # seconds that the figures and the exit of the program take on a slow machine


def pretrain(
    config: PretrainConfig,
    *,
    explicit: Collection[str] = (),
    started: float | None = None,
    view: Display | None = None,
    resume: bool = False,
) -> RunResult:
    """Pretrain a backbone on images without labels, and write a model file without a head, and a report.

    Arguments and errors are those of :func:`vitreous.train.run.run`.

    Raises:
        CollapseError: If training has collapsed.
        DataError: If the images give the objective nothing to learn.
    """
    return run(
        config,
        explicit=explicit,
        started=started,
        view=view,
        resume=resume,
        prepare=prepare,
        phases=_run_phases,
    )


def _run_phases(
    setup: Setup, run_dir: RunDir, view: Display, signals: Signals, *, started: float, exit_seconds: float
) -> RunResult:
    """Run all phases in order. After a signal, save the weights so far."""
    session = None
    with contextlib.ExitStack() as stack:
        try:
            state, threads = open_run_dir(setup, run_dir, view)
            stack.enter_context(torch_threads(threads))
            announce(setup, view)
            session = assemble(
                setup, run_dir, view, signals, state, started=started, exit_seconds=exit_seconds, kit=_KIT
            )
            if state is None and isinstance(session.clock, Budget):
                check_budget(session.clock)
            fit(session)
            return _finish(session)
        except Stopped as stopped:
            return end_interrupted(setup, run_dir, view, session, stopped)


def _make_module(setup: Setup, progress: Callable[[int], float]) -> PretrainModule:
    config, objective = cast(PretrainConfig, setup.config), cast(Objective, setup.model)
    return PretrainModule(
        objective,
        config.optim,
        setup.data_module.batch_augment,
        setup.pipeline,
        monitor=_monitor(setup),
        watch=CollapseWatch(objective, config.method) if config.monitor.stop else None,
        probe_every=config.monitor.every,
        accumulate=setup.data_module.train_sampler.accumulate,
        progress=progress,
    )


def _monitor(setup: Setup) -> FeatureMonitor:
    config = cast(PretrainConfig, setup.config)
    return FeatureMonitor(setup.data, setup.pipeline, config.monitor.images, config.seed)


def _score_columns(setup: Setup) -> Collection[str]:
    parts = cast(Any, setup.model).part_names
    return ["val_loss", *(f"val_{name}" for name in parts), *_monitor(setup).columns]


def _finish(session: Session) -> RunResult:
    """Save the last weights, measure their features, and write the report."""
    view, run_dir = session.view, session.run_dir
    writer, module = cast(PretrainWriter, session.writer), cast(PretrainModule, session.module)
    run_dir.lock.record(phase="writing the report")
    writer.save_backbone(module, epochs=len(session.metrics.history))
    measures = writer.measure(module)
    writer.write_pretraining(module, measures, history=session.metrics.history, seconds=session.seconds)
    view.result(f"features of the saved weights: {writer.describe(measures)}")
    view.files(run_dir.path)
    view.next(writer.next_command())
    return RunResult(
        folder=run_dir.path,
        model=run_dir.path / "model.safetensors",
        epochs=len(session.metrics.history),
        seconds=session.seconds,
        selected_epoch=len(session.metrics.history),
    )


_KIT = Kit(
    module=_make_module,
    writer=PretrainWriter,
    score_columns=_score_columns,
    ending=lambda setup, budget: (0.0, _ENDING),
    scores_weights=False,
)
