"""The course of a run: resolve data and model, announce, fit, select weights, calibrate, test once, save, report.

:func:`run` finds the run directory. :func:`_run_phases` is the outline, and the phases follow in the order in which it
calls them. Fine-tuning also scores the frozen features before training, and compares the result with these scores. A
resumed run continues training where it stopped; whatever comes after training runs again, with the same results.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.checkpoint.licence import describe_licence
from vitreous.data.sources.listing import exclusion_line, pluralize
from vitreous.errors import TrainingError, UsageError
from vitreous.evaluate.calibration import choose_temperature
from vitreous.evaluate.metrics import Scores, evaluate
from vitreous.files.text import printable
from vitreous.files.writing import atomic_write
from vitreous.machine.threads import choose_threads, torch_threads
from vitreous.runs.folder import (
    RunDir,
    choose_run_dir,
    is_finished,
    lock_run_dir,
    recorded_threads,
    refuse_more_epochs,
    rename_report,
    write_recipe,
    write_text,
)
from vitreous.runs.folder_content import remove_empty_dirs
from vitreous.train.advice import imbalance_note
from vitreous.train.assembly import CLASSIFICATION, Session, Task, assemble, rebuild
from vitreous.train.config import AUTO, RunConfig
from vitreous.train.console import Display
from vitreous.train.finetune.first_probe import compare_with_probe, finetune_report, probe_first
from vitreous.train.finish import RunResult, announce_finished, announce_result, end_interrupted
from vitreous.train.optim import schedule
from vitreous.train.out_of_memory import free_memory
from vitreous.train.progress import Budget
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import SelectedWeights, SplitScores
from vitreous.train.resume.failures import after_failure
from vitreous.train.resume.non_finite import NonFiniteStepError
from vitreous.train.resume.saving import load_newest
from vitreous.train.resume.signals import Signals, Stopped
from vitreous.train.resume.state import RunState, check_identity, identity, with_more_epochs
from vitreous.train.setup import Setup, describe_model, one_thread_if_tiny, prepare
from vitreous.train.trainer import silence_lightning

__all__ = ["Course", "RunResult", "run", "show_batch"]

Write = Callable[[Path], AbstractContextManager[Path]]
_EXIT_OVER_IMPORT = 0.35  # on exit, unloading the libraries takes this share of the time it took to import them


@dataclass(frozen=True)
class Course:
    """What differs between the courses of classification and of other training."""

    prepare: Callable[[RunConfig, Collection[str], Display], Setup]
    task: Task
    finish: Callable[[Session], RunResult]  # called after training


def run(
    config: RunConfig,
    *,
    explicit: Collection[str] = (),
    started: float | None = None,
    view: Display | None = None,
    resume: bool = False,
    course: Course | None = None,
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
        course: Another kind of training, as in :mod:`vitreous.train.pretrain.run`.

    Raises:
        KeyboardInterrupt: If Ctrl-C is pressed twice.
    """
    started = time.monotonic() if started is None else started
    exit_seconds = _EXIT_OVER_IMPORT * (time.monotonic() - started)
    view, course = view or Display(), course or Course(prepare, CLASSIFICATION, _finish)
    if resume and config.tune.source == AUTO:
        raise UsageError(
            "a choice among pretrained models may differ from that of the run to resume: name it with --from, or give "
            "--config RUN/recipe.yaml --out RUN --resume, which has the model that the run chose"
        )
    with silence_lightning():
        setup = course.prepare(config, explicit, view)
        recipe = recipe_text(setup.config)
        folder, created = choose_run_dir(config.out, setup.data.name, recipe, resume)
        with remove_empty_dirs(created):
            if resume and is_finished(folder, recipe):
                return announce_finished(folder, view)
            try:
                with lock_run_dir(folder, recipe, resume) as run_dir, Signals().handled() as signals:
                    times = {"started": started, "exit_seconds": exit_seconds}
                    return _run_phases(setup, run_dir, view, signals, course, **times)
            except Stopped as stopped:
                raise KeyboardInterrupt from stopped


def _run_phases(
    setup: Setup,
    run_dir: RunDir,
    view: Display,
    signals: Signals,
    course: Course,
    *,
    started: float,
    exit_seconds: float,
) -> RunResult:
    """Run all phases in order. After a signal, save the best weights so far."""
    session = None
    with contextlib.ExitStack() as stack:
        try:
            state, threads = _open_run_dir(setup, run_dir, view)
            stack.enter_context(torch_threads(threads))
            _announce(setup, view)
            times = {"started": started, "exit_seconds": exit_seconds}
            session = assemble(setup, run_dir, view, signals, state, **times, task=course.task)
            _probe(session)
            if state is None and isinstance(session.clock, Budget):
                _check_budget(session.clock)

            _fit(session)
            return course.finish(session)
        except Stopped as stopped:
            return end_interrupted(setup, run_dir, view, session, stopped)


def _finish(session: Session) -> RunResult:
    """Select weights, calibrate, test once, save and report."""
    setup, run_dir = session.setup, session.run_dir
    run_dir.lock.record(phase="selecting")
    selected, training_scores = _select_weights(session)
    temperature = choose_temperature(selected.logits, selected.labels)
    run_dir.lock.record(phase="testing")
    tested = _test_once(session)

    run_dir.lock.record(phase="writing the report")
    session.writer.save_model(selected, temperature, tested)
    verdict = compare_with_probe(setup, session.probe, selected, session.metrics.history)
    example = session.writer.example_image()
    report = session.writer.write_report(  # last, because a run directory with a report is finished
        selected,
        temperature,
        tested,
        history=session.metrics.history,
        seconds=session.seconds,
        training_scores=training_scores,
        finetune=finetune_report(setup, session.probe, verdict),
    )
    return announce_result(session, selected, training_scores, tested, verdict, report=report, example=example)


def _open_run_dir(setup: Setup, run_dir: RunDir, view: Display) -> tuple[RunState | None, int]:
    """Load the checkpoint to resume from, write recipe.yaml, and print what was found.

    Return the state to resume from, or None in a new run, and the number of CPU threads.
    """
    data, folder = setup.data, run_dir.path
    recipe, settings = recipe_text(setup.config), identity(setup)
    found = load_newest(folder, lambda line: view.line("damaged", line)) if run_dir.has_run else None
    state, is_longer, old_threads = None, False, recorded_threads(folder) if run_dir.has_run else None
    if found is not None:
        path, saved = found
        state = with_more_epochs(saved, settings)
        check_identity(state.identity, settings, f"'{path}'")
        old_threads, is_longer = state.threads, state is not saved
    elif run_dir.has_run:
        refuse_more_epochs(folder, recipe)
    threads, threads_note = choose_threads(old_threads, setup.device)
    if state is not None and is_longer:
        # This comes first, because a directory with the new recipe and the old report would look finished.
        rename_report(folder, len(state.history))
    write_recipe(folder, recipe, threads, state.extended if state is not None else ())
    view.data(data.name, data.counts())
    if data.unreadable:
        lines = (f"{exclusion_line(str(path))}: {printable(reason)}\n" for path, reason in data.unreadable)
        write_text(listed := folder / "unreadable.txt", "".join(lines))
        view.unreadable(data.unreadable, listed)
    if run_dir.lock.previous_holder:
        view.line("note", f"{folder} was held by {run_dir.lock.previous_holder}, which is gone")
    if found is not None:
        view.line("resume", f"{path}: continues from {saved.where}{threads_note}")
    elif run_dir.has_run:
        view.line("resume", f"{folder} has no checkpoint yet: starts from the beginning{threads_note}")
    if state is not None and is_longer:
        config, done = setup.config, len(state.history)
        old_rate, new_rate = (config.optim.lr * schedule(config.optim, share) for share in (1.0, done / config.epochs))
        view.line(
            "longer",
            f"from {done} to {config.epochs} epochs: the learning rate, which had come down to {old_rate:.2g}, "
            f"continues from {new_rate:.2g}, so the result is not that of a run of {config.epochs} epochs from the "
            "start",
        )
    return state, threads


def _announce(setup: Setup, view: Display) -> None:
    for note in setup.data.notes:
        label, _, text = note.rpartition("split: ")
        view.line("split" if not label and text != note else "note", text)
    if (imbalance := imbalance_note(setup)) is not None:
        view.line("classes", imbalance)
    view.line("model", describe_model(setup.config.model, setup.cost))
    if setup.pretrained is not None:
        view.line("from", setup.pretrained.describe(setup.config.model))
        if setup.pretrained.licence is not None:
            view.line("licence", describe_licence(setup.pretrained.licence))
        counts = [sum(p.numel() for p in setup.model.parameters() if p.requires_grad), setup.cost.parameters]
        trainable, total = (f"{count / 1e6:.3g} M" for count in counts)
        view.line("tune", f"{setup.config.tune.mode}: {trainable} trainable parameters, the model has {total}")


def _probe(session: Session) -> None:
    """In fine-tuning, score the frozen features before training. A resumed run already has the scores."""
    setup = session.setup
    if setup.pretrained is None or not setup.config.tune.probe or session.trained:
        return
    if session.probe is None:
        session.run_dir.lock.record(phase="probing")
        session.probe = probe_first(setup, session.view)
        session.seconds["probe"] = session.probe.seconds
    session.view.line("probe", session.probe.describe())


def _check_budget(clock: Budget) -> None:
    """Raise an error if no time is left to train, because the model would learn nothing."""
    if clock.over(0):
        used = time.monotonic() - clock.started
        raise TrainingError(
            f"the budget of {clock.seconds:.0f} s is used up before the first step: {used:.0f} s went into start-up, "
            f"reading and probing, and {clock.reserve:.0f} s are reserved for the report. Give a larger --budget"
        )


def _fit(session: Session) -> None:
    """Train until the clock, early stopping or a signal ends training.

    If memory runs out, training continues with more and smaller micro-batches.
    """
    while not session.trained:
        smaller = None
        session.fit_started = time.monotonic()
        try:
            with session.signals.deferred(), one_thread_if_tiny(session.setup):
                session.trainer.fit(session.module, datamodule=session.setup.data_module)
            session.trained = True
        except NonFiniteStepError as error:
            raise session.writer.save_non_finite(error) from error
        except Exception as error:
            smaller = after_failure(session, error)
        finally:
            session.view.stop_bar()
            session.seconds["train"], session.fit_started = session.training_seconds(), 0.0
        if smaller is not None:  # not in `except`, where the traceback would keep the step's tensors alive
            free_memory()
            rebuild(session, smaller)
            free_memory()


def _select_weights(session: Session) -> tuple[SelectedWeights, Scores]:
    """Load the weights of the best epoch, and score them in float32, the precision in which they are saved.

    Return the weights with these scores, and the scores that they had during training.
    """
    selected = session.selection.best
    if selected is None:
        raise TrainingError("training ended before the first validation: give it more epochs or a larger --budget")
    session.module.eval_model.load_state_dict(selected.weights)
    training_scores = selected.scores
    if session.setup.precision != "float32":  # validating in float32 in every epoch would take 6 % of a run
        exact = _score(session, session.setup.data_module.val_dataloader())
        selected = replace(selected, scores=exact.scores, logits=exact.logits, labels=exact.labels)
        session.selection.best = selected
    return selected, training_scores


def _score(session: Session, loader: Iterable[Any]) -> SplitScores:
    module = session.module
    session.trainer.test(module, dataloaders=loader, verbose=False)
    return SplitScores(evaluate(module.logits, module.labels), module.logits, module.labels)


def _test_once(session: Session) -> SplitScores | None:
    """Score the selected weights on the test split if there is one. No choice depends on the result."""
    if "test" not in session.setup.data.splits:
        return None
    test_started = time.monotonic()
    with one_thread_if_tiny(session.setup):
        tested = _score(session, session.setup.data_module.test_dataloader())
    session.seconds["test"] = time.monotonic() - test_started
    return tested


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
            save_batch_figure(written, images, targets, setup.data.classes, setup.pipeline)
    view.result(f"{pluralize(len(images), 'augmented image')} of {setup.data.name}, the first of them drawn in {path}")
