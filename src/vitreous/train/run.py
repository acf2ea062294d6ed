"""The story of a run: resolve data and model, say what will happen, fit, select, calibrate, test once, save, report.

A fine-tuning is the same story with two sentences more: what frozen features are worth, and whether it did better. A
resumed run takes the story up where it stopped; what follows the training is told anew, and comes out the same.

Each chapter is a function below, in the order in which :func:`run` tells it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vitreous.data.sources.listing import as_line, many
from vitreous.errors import TrainingError
from vitreous.evaluate.calibration import proven_temperature
from vitreous.evaluate.metrics import Scores, evaluate
from vitreous.files.text import printable
from vitreous.files.writing import replacing
from vitreous.machine.threads import computing_with, threads_of
from vitreous.runs.folder import (
    Place,
    choose_folder,
    held,
    is_finished,
    recorded_threads,
    refuse_longer,
    set_report_aside,
    write_recipe,
    write_text,
)
from vitreous.runs.folder_content import removing_made
from vitreous.train.advice import unlike_classes
from vitreous.train.assembly import Assembled, assemble, rebuild
from vitreous.train.config import RunConfig
from vitreous.train.console import View
from vitreous.train.finetune.first_probe import Verdict, judge, probe_first
from vitreous.train.finish import RunResult, closing_words, conclude, leave, leave_at_once, say_finished
from vitreous.train.optim import schedule
from vitreous.train.out_of_memory import free_memory
from vitreous.train.progress import Budget
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import Scored, Selected
from vitreous.train.resume.failures import after_failure
from vitreous.train.resume.non_finite import NonFiniteStepError
from vitreous.train.resume.saving import newest
from vitreous.train.resume.signals import Signals, Stopped
from vitreous.train.resume.state import RunState, given_more_epochs, identity, refuse_another
from vitreous.train.setup import Prepared, describe_model, fitting_threads, prepare
from vitreous.train.trainer import quiet

__all__ = ["RunResult", "run", "show_batch"]

Write = Callable[[Path], AbstractContextManager[Path]]
_LEAVING_PER_LOADING = 0.35  # time in which Python lets go of the libraries over that in which it loads them, measured


def run(
    config: RunConfig,
    *,
    keep: Collection[str] = (),
    started: float | None = None,
    view: View | None = None,
    resume: bool = False,
) -> RunResult:
    """Train a classifier from labelled pictures to a model file and a report.

    Args:
        config: What to do. The number of classes and of channels is taken from the data.
        keep: Fields of the model, such as `num_classes`, that are not to be taken from the data or the source but
            checked, and of the evaluation pipeline, such as `preprocess.mean`, that are not to be the source's.
        started: When the command started, in the seconds of ``time.monotonic()``; a budget counts from there.
        view: Where the lines for people go; None means stdout.
        resume: Go on where a run with these settings stopped: in `config.out`, or the newest of runs/NAME-1, -2 and so
            on; begin one where there is none. A run that is finished stays as it is.

    Raises:
        VitreousError: Whatever is wrong with the configuration, the data or the disk, in one line.
        NonFiniteError: If the loss or a gradient is not finite any more; the message names the files left behind.
        KeyboardInterrupt: If Ctrl-C came twice.
    """
    started = time.monotonic() if started is None else started
    leaving = _LEAVING_PER_LOADING * (time.monotonic() - started)
    view = view or View()
    with quiet():
        ready = prepare(config, keep, view)
        recipe = recipe_text(ready.config)
        folder, made = choose_folder(config.out, ready.data.name, recipe, resume)
        with removing_made(made):
            if resume and is_finished(folder, recipe):
                return say_finished(folder, view)
            try:
                with held(folder, recipe, resume) as place, Signals().handled() as signals:
                    return _tell(ready, place, view, signals, started=started, leaving=leaving)
            except Stopped as stopped:
                raise KeyboardInterrupt from stopped


def _tell(ready: Prepared, place: Place, view: View, signals: Signals, *, started: float, leaving: float) -> RunResult:
    """The whole story, or what is to be said where a signal ends it."""
    this = None

    def begin() -> Assembled:
        nonlocal this
        state, threads = _open_folder(ready, place, view)
        within.enter_context(computing_with(threads))
        _say(ready, view)
        this = assemble(ready, place, view, signals, state, started=started, leaving=leaving)
        _probe(this)
        if state is None and isinstance(this.clock, Budget):
            _refuse_spent(this.clock)
        return this

    with contextlib.ExitStack() as within:
        try:
            try:
                return _chapters(begin())
            except Stopped as stopped:
                if stopped.at_once:
                    raise
                return leave(ready, place, view, this, stopped)
        except Stopped:  # Ctrl-C came twice
            leave_at_once(ready, place, view, this)
            raise


def _chapters(this: Assembled) -> RunResult:
    """The chapters in their order, once everything is there."""
    lock = this.place.lock
    _fit(this)
    lock.say(phase="selecting")
    selected, while_training = _select(this)
    temperature = proven_temperature(selected.logits, selected.labels)
    lock.say(phase="testing")
    tested = _test_once(this)
    lock.say(phase="writing the report")
    this.writer.model(selected, temperature, tested)
    verdict = _judge(this, selected)
    tuned = _told_of_tuning(this, verdict)
    example = this.writer.example()
    report = this.writer.report(
        selected,
        temperature,
        tested,
        history=this.record.history,
        seconds=this.seconds,
        while_training=while_training,
        finetune=tuned,
    )
    closing = closing_words(this, selected, while_training, report)
    return conclude(this, selected, tested, verdict, example=example, closing=closing)


def show_batch(
    config: RunConfig, path: Path, *, keep: Collection[str] = (), view: View | None = None, write: Write = replacing
) -> None:
    """Draw the first augmented batch of a run, with its targets, and train nothing.

    Args:
        config: As of :func:`run`.
        path: The PNG to write.
        keep: As of :func:`run`.
        view: As of :func:`run`.
        write: Gives the path to write to, as :func:`~vitreous.files.writing.replacing` does.
    """
    from vitreous.report.batch_figure import save_batch_picture  # here: matplotlib takes a second that a run may need

    view = view or View()
    with quiet():
        ready = prepare(config, keep, view)
        ready.loading.setup("fit")
        batch = next(iter(ready.loading.train_dataloader()))
        images, targets = ready.loading.batch_augment.of_batch(batch, progress=0.0)
        with write(path) as written:
            save_batch_picture(written, images, targets, ready.data.classes, ready.pipeline)
    view.result(f"{many(len(images), 'augmented picture')} of {ready.data.name}, the first of them drawn in {path}")


def _open_folder(ready: Prepared, place: Place, view: View) -> tuple[RunState | None, int]:
    """Find what to go on from and with how many threads, write the recipe, and say what was found."""
    data, folder = ready.data, place.folder
    recipe, ours = recipe_text(ready.config), identity(ready)
    found = newest(folder, lambda line: view.line("damaged", line)) if place.begun else None
    state, begun, longer = None, recorded_threads(folder) if place.begun else None, False
    if found is not None:
        state = given_more_epochs(found[1], ours)
        refuse_another(state.identity, ours, f"'{found[0]}'")
        begun, longer = state.threads, state is not found[1]
    elif place.begun:
        refuse_longer(folder, recipe)
    threads, told = threads_of(begun, ready.device)
    if state is not None and longer:
        set_report_aside(folder, len(state.history))  # before the recipe: a run of it that has a report is finished
    write_recipe(folder, recipe, threads, state.extended if state is not None else ())
    view.data(data.name, data.counts())
    if data.unreadable:
        listed = folder / "unreadable.txt"
        write_text(listed, "".join(f"{as_line(str(path))}: {printable(reason)}\n" for path, reason in data.unreadable))
        view.unreadable(data.unreadable, listed)
    if place.lock.taken_over:
        view.line("note", f"{folder} was held by {place.lock.taken_over}, which is gone")
    if found is not None:
        view.line("resume", f"{found[0]}: goes on from {found[1].where}{told}")
    elif place.begun:
        view.line("resume", f"{folder} has no checkpoint yet: begins from the beginning{told}")
    if state is not None and longer:
        view.line("longer", _told_of_more_epochs(ready, state))
    return state, threads


def _told_of_more_epochs(ready: Prepared, state: RunState) -> str:
    """What a run with more epochs is, and is not."""
    config, done = ready.config, len(state.history)
    rates = [config.optim.lr * schedule(config.optim, share) for share in (1.0, done / config.epochs)]
    return (
        f"from {done} to {config.epochs} epochs: the learning rate, which had come to {rates[0]:.2g}, goes on from "
        f"{rates[1]:.2g}, so the end is not that of a run of {config.epochs} epochs from the start"
    )


def _say(ready: Prepared, view: View) -> None:
    """Say how the data is split and what the model is."""
    for note in ready.data.notes:
        label, _, text = note.rpartition("split: ")
        view.line("split" if not label and text != note else "note", text)
    if (unlike := unlike_classes(ready)) is not None:
        view.line("classes", unlike)
    view.line("model", describe_model(ready.config.model, ready.cost))
    if ready.start is not None:
        view.line("from", ready.start.describe(ready.config.model))
        counts = [sum(p.numel() for p in ready.model.parameters() if p.requires_grad), ready.cost.parameters]
        trained, of_all = (f"{count / 1e6:.3g} M" for count in counts)
        view.line("tune", f"{ready.config.tune.mode}: {trained} parameters in training, the model has {of_all}")


def _probe(this: Assembled) -> None:
    """In a fine-tuning, say what the frozen features are worth before anything is trained."""
    if this.ready.start is None or not this.ready.config.tune.probe or this.trained:
        return
    if this.probed is None:  # else a run that is resumed knows
        this.place.lock.say(phase="probing")
        this.probed = probe_first(this.ready, this.view)
        this.seconds["probe"] = this.probed.seconds
    this.view.line("probe", this.probed.describe())


def _refuse_spent(clock: Budget) -> None:
    """Stop a run whose time is over before it has trained: its model would know nothing.

    Raises:
        TrainingError: It says where the time went.
    """
    if clock.over(0):
        used = time.monotonic() - clock.started
        raise TrainingError(
            f"the budget of {clock.seconds:.0f} s is used up before the first step: {used:.0f} s went into starting, "
            f"reading and probing, and {clock.reserve:.0f} s are kept for the report. Give a larger --budget"
        )


def _fit(this: Assembled) -> None:
    """Train to the end, from wherever the run is; with smaller parts where the memory does not hold a step."""
    while not this.trained:
        smaller = None
        this.began = time.monotonic()
        try:
            with this.signals.waiting(), fitting_threads(this.ready):
                this.trainer.fit(this.module, datamodule=this.ready.loading)
            this.trained = True
        except NonFiniteStepError as error:
            raise this.writer.nonfinite(error) from error
        except Exception as error:
            smaller = after_failure(this, error)
        finally:
            this.view.stop_bar()
            this.seconds["train"], this.began = this.training_seconds(), 0.0
        if smaller is not None:  # here, where the error's frames hold nothing any more, but for circles of threads'
            free_memory()
            rebuild(this, smaller)
            free_memory()  # of the parts before


def _select(this: Assembled) -> tuple[Selected, Scores]:
    """Take the weights of the best epoch, with their scores in float32, the precision in which they will be used.

    Validating in float32 all along would take 6 % of a run's time where a fifth of the images validates (measured on
    photographs of flowers, 0.84 against 0.50 s in an epoch of 5.8 s, medians of 6), more for larger models.

    Returns:
        The selection, and its scores as the training computed them.
    """
    selected = this.selection.best
    if selected is None:
        raise TrainingError("training ended before the first validation: give it more epochs or a larger --budget")
    this.module.evaluated.load_state_dict(selected.weights)
    while_training = selected.scores
    if this.ready.precision == "float32":
        return selected, while_training
    exact = _scored(this, this.ready.loading.val_dataloader())
    selected = replace(selected, scores=exact.scores, logits=exact.logits, labels=exact.labels)
    this.selection.best = selected
    return selected, while_training


def _scored(this: Assembled, loader: Iterable[Any]) -> Scored:
    """Score the weights as they are on a split, in float32."""
    this.trainer.test(this.module, dataloaders=loader, verbose=False)
    module = this.module
    return Scored(evaluate(module.logits, module.labels), module.logits, module.labels)


def _test_once(this: Assembled) -> Scored | None:
    """Score the selected weights on the test split, where there is one; nothing is chosen after this."""
    if "test" not in this.ready.data.splits:
        return None
    began = time.monotonic()
    with fitting_threads(this.ready):
        tested = _scored(this, this.ready.loading.test_dataloader())
    this.seconds["test"] = time.monotonic() - began
    return tested


def _judge(this: Assembled, selected: Selected) -> Verdict | None:
    """Compare a fine-tuning with its probes."""
    if this.ready.start is None or this.probed is None:
        return None
    return judge(this.ready, this.ready.start, this.probed, selected, this.record.history)


def _told_of_tuning(this: Assembled, verdict: Verdict | None) -> dict[str, Any] | None:
    """What the report says of a fine-tuning besides its scores."""
    ready, probed = this.ready, this.probed
    if ready.start is None:
        return None
    return {
        "source": ready.start.to_dict(),
        "mode": ready.config.tune.mode,
        "trained_parameters": sum(p.numel() for p in ready.model.parameters() if p.requires_grad),
        "probe": probed.report if probed else None,
        "verdict": asdict(verdict) if verdict else None,
    }
