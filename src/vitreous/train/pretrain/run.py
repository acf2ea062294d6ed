"""What differs in a pretraining run from any other: how it is prepared and assembled, and what follows training.

The weights of the last epoch are saved without a head, measured and reported. A run has one process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Any, cast

from vitreous.data.config import DataConfig
from vitreous.data.shards.listing import find_shards
from vitreous.data.sources.listing import UNLABELLED, Listing
from vitreous.data.sources.locating import find_source
from vitreous.data.sources.opening import list_source
from vitreous.errors import DataError
from vitreous.train.assembly import Kit, Session
from vitreous.train.config import RunConfig
from vitreous.train.console import Display
from vitreous.train.finish import RunResult
from vitreous.train.pretrain.config import PretrainConfig
from vitreous.train.pretrain.module import PretrainModule
from vitreous.train.pretrain.monitor import CollapseWatch, FeatureMonitor
from vitreous.train.pretrain.objectives.base import Objective
from vitreous.train.pretrain.setup import prepare
from vitreous.train.pretrain.writing import PretrainWriter
from vitreous.train.run import run, run_phases
from vitreous.train.setup import Setup

__all__ = ["KIT", "pretrain"]

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
        prepare=_prepare,
        phases=partial(run_phases, kit=KIT, finish=_finish),
    )


def _prepare(config: RunConfig, explicit: Collection[str], view: Display) -> Setup:
    """Prepare a run, and note with which of several labels the features are probed, or what labels lack for that."""
    setup = prepare(config, explicit, view)
    monitor = _monitor(setup)
    if (note := monitor.missing_labels or monitor.several_labels) is not None:
        setup.data.notes.append(note)
    return setup


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
        measures_start=KIT.measures_start and config.tune.source is not None,
        accumulate=setup.data_module.train_sampler.accumulate,
        progress=progress,
    )


def _monitor(setup: Setup) -> FeatureMonitor:
    config = cast(PretrainConfig, setup.config)
    sets = _label_sets(config) if {*setup.data.classes} == {UNLABELLED} else None
    return FeatureMonitor(setup.data, setup.pipeline, config.monitor.images, config.seed, sets)


def _label_sets(config: PretrainConfig) -> dict[str, tuple[str, ...]] | None:
    """Return the labels of images of a manifest, or of shards on this machine with an index, if one may have several.

    Labels that cannot be read are none.
    """
    path = find_source(config.data.source)
    shards = find_shards(path) if path is not None else None
    if path is None or (path.is_dir() if shards is None else shards.read_index() is None):
        return None
    return _sets_of(config.data, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)  # each module of a run asks, and a plan has several
def _sets_of(data: DataConfig, changed: int) -> dict[str, tuple[str, ...]] | None:
    with contextlib.suppress(DataError):
        listed = list_source(data, needs_labels=False, reads_sets=True)
        return {entry.name: entry.labels for entry in cast(Listing, listed).entries if entry.labels}
    return None


def _score_columns(setup: Setup) -> Collection[str]:
    parts = cast(Any, setup.model).part_names
    return ["val_loss", *(f"val_{name}" for name in parts), *_monitor(setup).columns]


def _finish(session: Session) -> RunResult:
    """Save the last weights, measure their features, and write the report."""
    view, run_dir = session.view, session.run_dir
    writer, module = cast(PretrainWriter, session.writer), cast(PretrainModule, session.module)
    run_dir.lock.record(phase="writing the report")
    writer.save_backbone(module, epochs=len(session.metrics.history))
    measures = writer.measure(module, session.metrics.history)
    writer.write_pretraining(module, measures, history=session.metrics.history, seconds=session.seconds)
    if module.start:
        view.result(f"features before training: {writer.describe(module.start)}")
    view.result(f"features of the saved weights: {writer.describe(measures)}")
    view.files(run_dir.path)
    monitor, classes = module.monitor, {*session.setup.data.classes} - {UNLABELLED}
    labels = monitor.classes if monitor.several else len(classes)
    view.next(writer.next_command(has_labels=labels > 1))
    return RunResult(
        folder=run_dir.path,
        model=run_dir.path / "model.safetensors",
        epochs=len(session.metrics.history),
        seconds=session.seconds,
        selected_epoch=len(session.metrics.history),
    )


KIT = Kit(
    module=_make_module,
    writer=PretrainWriter,
    score_columns=_score_columns,
    ending=lambda setup, budget: (0.0, _ENDING),
    scores_weights=False,
    measures_start=True,
)
"""What a pretraining run is assembled with."""
