"""The phases of a run, which run.py calls in order: open the directory, train, select the weights, test them once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitreous.checkpoint.licence import describe_licence
from vitreous.checkpoint.shipped import SHIPPED
from vitreous.data.sources.listing import UNLABELLED, exclusion_line
from vitreous.errors import TrainingError, pluralize
from vitreous.evaluate.scoring.any_labels import AnyScores, scores_of
from vitreous.files.text import printable
from vitreous.machine.threads import choose_threads
from vitreous.runs.folder import (
    RunDir,
    recorded_threads,
    refuse_more_epochs,
    rename_report,
    write_recipe,
    write_text,
)
from vitreous.train.advice import imbalance_note
from vitreous.train.config import AUTO
from vitreous.train.console import Display
from vitreous.train.loop.optim import schedule
from vitreous.train.loop.out_of_memory import release_memory
from vitreous.train.loop.progress import Budget
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import SelectedWeights, SplitScores
from vitreous.train.resume.failures import after_failure
from vitreous.train.resume.non_finite import NonFiniteStepError
from vitreous.train.resume.saving import load_newest
from vitreous.train.resume.state import RunState, check_identity, identity, with_more_epochs
from vitreous.train.setup import Setup, describe_model, one_thread_if_tiny

if TYPE_CHECKING:
    from vitreous.train.assembly import Session
    from vitreous.train.distil.distiller import Distiller

__all__ = [
    "announce",
    "ask_teacher",
    "check_budget",
    "fit",
    "fit_once",
    "open_run_dir",
    "score",
    "select_weights",
    "test_once",
]


def open_run_dir(
    setup: Setup,
    run_dir: RunDir,
    view: Display,
    without: str = "has no checkpoint yet: starts from the beginning",
    *,
    whole: bool = True,
) -> tuple[RunState | None, int]:
    """Load the checkpoint to resume from, write recipe.yaml, and print what was found.

    `without` is what a run does that is resumed without a checkpoint. `whole` is for :func:`load_newest`.
    Return the state to resume from, or None in a new run, and the number of CPU threads.
    """
    data, folder = setup.data, run_dir.path
    recipe, settings = recipe_text(setup.config), identity(setup)
    found = None
    if run_dir.has_run:
        found = load_newest(folder, lambda line: view.line("damaged", line), whole=whole)
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
    counts = data.counts()
    unlabelled = counts.pop(UNLABELLED, 0) if setup.config.verb == "pretrain" else 0  # a class of another verb
    view.data(data.name, counts, sum(map(len, data.splits.values())), unlabelled)
    if data.unreadable:
        lines = (f"{exclusion_line(str(path))}: {printable(reason)}\n" for path, reason in data.unreadable)
        write_text(listed := folder / "unreadable.txt", "".join(lines))
        view.unreadable(data.unreadable, listed)
    if run_dir.lock.previous_holder:
        view.line("note", f"{folder} was held by {run_dir.lock.previous_holder}, which is gone")
    if found is not None:
        view.line("resume", f"{path}: continues from {saved.where}{threads_note}")
    elif run_dir.has_run:
        view.line("resume", f"{folder} {without}{threads_note}")
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


def announce(setup: Setup, view: Display) -> None:
    """Print how the data was split, the model, and what a fine-tuning starts from and trains."""
    for note in setup.data.notes:
        label, _, text = note.rpartition("split: ")
        view.line("split" if not label and text != note else "note", text)
    if (imbalance := imbalance_note(setup)) is not None:
        view.line("classes", imbalance)
    parameters, flops = sum(p.numel() for p in setup.model.parameters()), None
    if setup.config.tune.mode != AUTO:  # no head waits until operations are counted
        parameters, flops = setup.cost.parameters, setup.cost.flops
    view.line("model", describe_model(setup.config.model, parameters, flops))
    asked = setup.config.recipe == "finetune" or setup.config.verb == "pretrain"  # whose --from chose it
    if setup.config.tune.source == SHIPPED and not asked:
        few = pluralize(len(setup.data.splits["train"]), "training image")
        view.line("start", f"the backbone in this package, for {few}; random weights: --start none")
    if setup.pretrained is not None:
        view.line("from", setup.pretrained.describe(setup.config.model))
        if setup.pretrained.terms:
            view.line("licence", setup.pretrained.terms)
        if setup.pretrained.assumed:
            own = setup.pretrained.preprocess
            how = f"fit {own.fit}, mean {own.mean}, std {own.std}"
            view.line("note", f"nothing beside the source says how images are prepared: {how} are assumed")
        if setup.config.tune.mode == AUTO:
            stages = "heads on frozen features, then weights below them if time, memory and images allow"
            view.line("tune", f"{AUTO}: {stages}")
        elif setup.config.verb != "pretrain":  # whose model has more parts than the backbone
            counts = [sum(p.numel() for p in setup.model.parameters() if p.requires_grad), setup.cost.parameters]
            trainable, total = (f"{count / 1e6:.3g} M" for count in counts)
            view.line("tune", f"{setup.config.tune.mode}: {trainable} trainable parameters, the model has {total}")
    if setup.distiller is not None:
        _announce_teacher(setup.distiller, view)
    _announce_unlabelled(setup, view)
    if setup.auxiliary is not None:
        view.line("aux", setup.auxiliary.describe())


def _announce_unlabelled(setup: Setup, view: Display) -> None:
    if setup.data.unlabelled is not None:
        split, seen = setup.data.unlabelled, setup.data_module.num_beside
        images = pluralize(len(split), "image")
        view.line(
            "unlabelled", f" {images}, {seen:,} in each step beside {setup.data_module.train_sampler.batch_size:,}"
        )
    if setup.predicted is not None:
        view.line("unlabelled", f" {setup.predicted.describe()}")
        for model in setup.predicted.models:
            if "licence" in model:
                view.line("licence", f"of {model['name']}: {describe_licence(model['licence'])}")


def _announce_teacher(distiller: Distiller, view: Display) -> None:
    view.line("teacher", f"{distiller.teacher.describe()}: {distiller.describe()}")
    if distiller.teacher.terms:
        view.line("licence", f"of the teacher: {distiller.teacher.terms}")


def ask_teacher(session: Session, state: RunState | None) -> None:
    """If a teacher's views are known, have it answer for all of them now; a resumed run finds the answers stored."""
    distiller = session.setup.distiller
    if distiller is None or distiller.views is None or session.trained:
        return
    from vitreous.train.distil.phase import check_answers

    if distiller.answers is None:  # in stages, an earlier training may have them
        _ask_for_all(session, distiller, distiller.views.count)
    check_answers(distiller, state.distil if state is not None else None)


def _ask_for_all(session: Session, distiller: Distiller, views: int) -> None:
    from vitreous.train.distil.phase import answer_once

    view, clock, started = session.view, session.clock, time.monotonic()
    session.run_dir.lock.record(phase="asking the teacher")
    left = clock.seconds_left(0, 0.0) if isinstance(clock, Budget) else math.inf
    with view.counting("teacher") as count:
        source = answer_once(session.setup, distiller, lambda line: view.line("note", line), count, left)
    seconds = time.monotonic() - started
    session.seconds.setdefault("teacher", seconds)
    view.line("teacher", f"answers to {pluralize(views, 'view')} per image {source}, in {seconds:.0f} s")


def check_budget(session: Session) -> None:
    """Raise an error if a budget leaves no time to train, because the model would learn nothing."""
    clock = session.clock
    if isinstance(clock, Budget) and clock.over(0):
        used = time.monotonic() - clock.started
        raise TrainingError(
            f"the budget of {clock.seconds:.0f} s is used up before the first step: {used:.0f} s went into "
            f"{_before_training(session)}, {clock.reserve:.0f} s are reserved for the report. Give a larger --budget"
        )


def _before_training(session: Session) -> str:
    """Name what a run does before its first step."""
    phases = ["start-up", "reading"]
    phases += ["features", "heads"] * (session.kit.run_folder is not None)
    phases += ["probing"] * (session.probe is not None) + ["a teacher"] * (session.setup.distiller is not None)
    return f"{', '.join(phases[:-1])} and {phases[-1]}"


def fit_once(session: Session) -> None:
    """Train until the clock, early stopping or a signal ends training, or an error does."""
    session.fit_started = time.monotonic()
    try:
        with session.signals.deferred(), one_thread_if_tiny(session.setup):
            loading = session.setup.data_module
            session.trainer.fit(session.module, loading.train_dataloader(), loading.val_dataloader())
        session.trained = True
    finally:
        session.view.stop_bar()
        session.seconds["train"], session.fit_started = session.training_seconds(), 0.0


def fit(session: Session) -> None:
    """Train until the clock, early stopping or a signal ends training.

    If memory runs out, training continues with more and smaller micro-batches.
    """
    while not session.trained:
        smaller = None
        try:
            fit_once(session)
        except NonFiniteStepError as error:
            raise session.writer.save_non_finite(error) from error
        except Exception as error:
            smaller = after_failure(session, error)
        if smaller is not None:  # not in `except`, where the traceback would keep the step's tensors alive
            release_memory()
            session.rebuild(smaller)
            release_memory()


def select_weights(session: Session) -> tuple[SelectedWeights, AnyScores]:
    """Load the weights of the best epoch, and score them in float32, the precision in which they are saved.

    Return the weights with these scores, and the scores that they had during training.
    """
    selected = session.selection.best
    if selected is None:
        raise TrainingError("training ended before the first validation: give it more epochs or a larger --budget")
    session.module.eval_model.load_state_dict(selected.weights)
    training_scores = selected.scores
    if session.setup.precision != "float32":  # validating in float32 in every epoch would take 6 % of a run
        exact = score(session, session.setup.data_module.val_dataloader())
        selected = replace(selected, scores=exact.scores, logits=exact.logits, labels=exact.labels)
        session.selection.best = selected
    return selected, training_scores


def score(session: Session, loader: Iterable[Any]) -> SplitScores:
    """Score the weights for evaluation of a session on a split, in float32."""
    module = session.module
    session.trainer.test(module, dataloaders=loader, verbose=False)
    return SplitScores(scores_of(module.logits, module.labels), module.logits, module.labels)


def test_once(session: Session) -> SplitScores | None:
    """Score the selected weights on the test split if there is one. No choice depends on the result."""
    if "test" not in session.setup.data.splits:
        return None
    test_started = time.monotonic()
    with one_thread_if_tiny(session.setup):
        tested = score(session, session.setup.data_module.test_dataloader())
    session.seconds["test"] = time.monotonic() - test_started
    return tested
