"""The course of a run: resolve data and model, announce, fit, select weights, calibrate, test once, save, report.

:func:`run` finds the run directory. :func:`run_phases` is the outline; the phases are in phases.py. Pretraining ends in
another way (pretrain/run.py), and fine-tuning in stages has an outline of its own, in finetune/stages/story.py. Other
fine-tuning also scores the frozen features before training, and compares the result with these scores. A resumed
run continues training where it stopped; whatever comes after training runs again, with the same results.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.errors import UsageError, pluralize
from vitreous.evaluate.scoring.any_labels import AnyScores
from vitreous.evaluate.trust.calibration import choose_temperature
from vitreous.files.writing import atomic_write
from vitreous.machine.threads import torch_threads
from vitreous.runs.folder import (
    RunDir,
    choose_run_dir,
    is_finished,
    lock_run_dir,
)
from vitreous.runs.folder_content import remove_empty_dirs
from vitreous.train.config import AUTO, RunConfig
from vitreous.train.console import Display
from vitreous.train.finetune.first_probe import compare_with_probe, finetune_report, probe_first
from vitreous.train.finetune.starting_point import choice_to_resume
from vitreous.train.finish import RunResult, announce_finished, announce_result, end_interrupted
from vitreous.train.loop.progress import Budget, exit_after
from vitreous.train.loop.silence import silence_lightning
from vitreous.train.phases import announce, ask_teacher, check_budget, fit, open_run_dir, select_weights, test_once
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import SelectedWeights, SplitScores
from vitreous.train.resume.signals import Signals, Stopped
from vitreous.train.setup import Setup, prepare

if TYPE_CHECKING:
    from vitreous.train.assembly import Kit, Session

__all__ = [
    "Phases",
    "Prepare",
    "RunResult",
    "kit_of",
    "probe",
    "refuse_to_choose_again",
    "run",
    "run_phases",
    "show_batch",
    "write_results",
]

Prepare = Callable[[RunConfig, Collection[str], Display], Setup]
"""Opens the data and the model of a run, as :func:`vitreous.train.setup.prepare`."""

Phases = Callable[..., RunResult]
"""Runs all phases of a run whose directory is locked; arguments as those of :func:`run_phases`."""

Write = Callable[[Path], AbstractContextManager[Path]]


def run(
    config: RunConfig,
    *,
    explicit: Collection[str] = (),
    started: float | None = None,
    view: Display | None = None,
    resume: bool = False,
    prepare: Prepare = prepare,
    phases: Phases | None = None,
) -> RunResult:
    """Train a classifier on labelled images, and write a model file and a report.

    Args:
        config: The configuration. The numbers of classes and channels are taken from the data.
        explicit: Names of the fields that the user set, rather than a recipe or a default. Model fields such as
            `num_classes` are checked against the data and the pretrained model. Pipeline fields such as
            `preprocess.mean` override those of the pretrained model.
        started: ``time.monotonic()`` at the start of the command. A budget counts from here. None means now.
        view: Prints the lines of the run. None prints to stdout.
        resume: Whether to resume an earlier run with the same settings: the one in `config.out`, or else the newest of
            runs/NAME-1, -2 and so on. If there is none, a new run starts. A finished run is left as it is.
        prepare: Opens the data and the model; pretraining has its own (:mod:`vitreous.train.pretrain.run`).
        phases: Runs the phases, in place of those that the configuration asks for.

    Raises:
        KeyboardInterrupt: If Ctrl-C is pressed twice.
    """
    started = time.monotonic() if started is None else started
    exit_seconds = exit_after(started)
    view = view or Display()
    if resume and config.tune.source == AUTO:
        config, explicit = choice_to_resume(config, explicit)
    if config.strategy == "fsdp":
        raise UsageError("strategy fsdp needs the command: use `vitreous train` or `vitreous finetune`, or omit it")
    if config.devices * config.nodes > 1:
        raise UsageError(
            f"devices {config.devices} on nodes {config.nodes} are {config.devices * config.nodes} processes, which "
            "only the command starts: use `vitreous train` or `vitreous finetune`, or one device"
        )
    with silence_lightning():
        setup = prepare(config, explicit, view)
        recipe = recipe_text(setup.config)
        folder, created = choose_run_dir(config.out, setup.data.name, recipe, resume)
        with remove_empty_dirs(created):
            if resume and is_finished(folder, recipe):
                return announce_finished(folder, setup.data.fingerprint, view)
            try:
                with lock_run_dir(folder, recipe, resume) as run_dir, Signals().handled() as signals:
                    run_phases = phases or _phases(setup)
                    return run_phases(setup, run_dir, view, signals, started=started, exit_seconds=exit_seconds)
            except Stopped as stopped:
                raise KeyboardInterrupt from stopped


def refuse_to_choose_again(config: RunConfig, resume: bool) -> None:
    """Refuse to resume a run of several processes whose pretrained model would be chosen now."""
    if resume and config.tune.source == AUTO:
        raise UsageError(
            "a choice among pretrained models may differ from that of the run to resume: name it with --from, or give "
            "--config RUN/recipe.yaml --out RUN --resume, which has the model that the run chose"
        )


def _phases(setup: Setup) -> Phases:
    """Return what runs the phases of a run: in stages if the mode of fine-tuning is left open."""
    if setup.config.tune.mode == AUTO:
        from vitreous.train.finetune.stages.story import run_stages  # no other run pays for it

        return run_stages
    if (kit := kit_of(setup)) is not None:
        from vitreous.train.multilabel.run import finish

        return partial(run_phases, kit=kit, finish=finish)
    return run_phases


def kit_of(setup: Setup) -> Kit | None:
    """Return what a run on this data is assembled from; None for one class of each image."""
    if not setup.data.several:
        return None
    from vitreous.train.multilabel.run import KIT  # no other run pays for it

    return KIT


def run_phases(
    setup: Setup,
    run_dir: RunDir,
    view: Display,
    signals: Signals,
    *,
    started: float,
    exit_seconds: float,
    kit: Kit | None = None,
    finish: Callable[[Session], RunResult] | None = None,
) -> RunResult:
    """Run all phases in order. After a signal, save the best weights so far.

    `kit` and `finish`, which does what follows training, are those of a classifier by default.
    """
    session = None
    with contextlib.ExitStack() as stack:
        try:
            began = time.monotonic()
            from vitreous.train.assembly import (
                assemble,  # imports Lightning: heads on frozen features do not wait for it
            )

            exit_seconds += exit_after(began)
            state, threads = open_run_dir(setup, run_dir, view)
            stack.enter_context(torch_threads(threads))
            announce(setup, view)
            times = {"started": started, "exit_seconds": exit_seconds}
            session = assemble(setup, run_dir, view, signals, state, **times, kit=kit)
            probe(session)
            ask_teacher(session, state)
            if state is None:
                check_budget(session)
            fit(session)
            return (finish or _finish)(session)
        except Stopped as stopped:
            return end_interrupted(setup, run_dir, view, session, stopped)


def _finish(session: Session) -> RunResult:
    """Select weights, calibrate, test once, save and report."""
    session.run_dir.lock.record(phase="selecting")
    selected, training_scores = select_weights(session)
    temperature = choose_temperature(selected.logits, selected.labels)
    session.run_dir.lock.record(phase="testing")
    tested = test_once(session)
    return write_results(session, selected, temperature, tested, training_scores)


def write_results(
    session: Session,
    selected: SelectedWeights,
    temperature: float,
    tested: SplitScores | None,
    training_scores: AnyScores,
) -> RunResult:
    """Write the model and the report, and print the result. Scores as in :func:`announce_result`."""
    setup = session.setup
    session.run_dir.lock.record(phase="writing the report")
    session.writer.save_model(selected, temperature, tested)
    verdict = compare_with_probe(setup, session.probe, selected, session.metrics.history)
    example = session.writer.example_image()
    report = session.writer.write_report(  # last, because a run directory with a report is finished
        selected,
        temperature,
        tested,
        history=session.metrics.history,
        seconds=session.seconds,
        training_summary=training_scores.summary(),
        finetune=finetune_report(setup, session.probe, verdict),
    )
    return announce_result(session, selected, training_scores, tested, verdict, report=report, example=example)


def probe(session: Session) -> None:
    """In fine-tuning, score the frozen features before training, if a budget has time for that.

    A run that is resumed has the scores, or had no time for them: its features are no longer frozen.
    """
    setup = session.setup
    is_compared = setup.config.tune.probe and session.kit.scores_weights
    if setup.pretrained is None or not is_compared or session.trained:
        return
    if session.probe is None and session.saver.saved is None:
        session.run_dir.lock.record(phase="probing")
        left = session.clock.seconds_left(0, 0.0) if isinstance(session.clock, Budget) else math.inf
        session.probe = probe_first(setup, session.view, left)
    if session.probe is not None:
        session.seconds["probe"] = session.probe.seconds
        session.view.line("probe", session.probe.describe())


def show_batch(
    config: RunConfig,
    path: Path,
    *,
    explicit: Collection[str] = (),
    view: Display | None = None,
    write: Write = atomic_write,
) -> None:
    """Draw the first augmented batch of a run, with its targets, to a PNG file. Nothing is trained.

    The arguments are those of :func:`run`, except that `write` opens a temporary file that then replaces `path`.
    """
    from vitreous.report.batch_figure import save_batch_figure  # imports matplotlib, which takes a second

    view = view or Display()
    with silence_lightning():
        setup = prepare(config, explicit, view)
        setup.data_module.setup("fit")
        batch = next(iter(setup.data_module.train_dataloader()))
        images, targets = setup.data_module.batch_augment.augment_batch(batch, progress=0.0)
        with write(path) as written:
            save_batch_figure(written, images, targets, setup.data.classes, setup.pipeline, several=setup.data.several)
    view.result(f"{pluralize(len(images), 'augmented image')} of {setup.data.name}, the first of them drawn in {path}")
