"""Which weights below the head are trained, in what order, and whether the time allows it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from vitreous.train.finetune.stages.decisions import LAST, TRAININGS, Resources, too_few_images, tuning_modes
from vitreous.train.finetune.stages.outcome import Candidate, Outcome, best_of
from vitreous.train.finetune.stages.staging import Staging, variant
from vitreous.train.finetune.stages.training import (
    average_with_start,
    quick_step_seconds,
    step_seconds,
    train_stage,
)
from vitreous.train.finetune.starting_point import free_memory
from vitreous.train.loop.out_of_memory import release_memory
from vitreous.train.setup import Setup

if TYPE_CHECKING:
    from vitreous.train.distil.distiller import Distiller

__all__ = ["train_below_head"]

_HOPELESS = 2.0  # an epoch over the time left above which no mode has time for a few, however slow few images were
_TIMING, _TIMING_SHARE = 20.0, 0.05  # seconds in which steps are timed, and a teacher; with a budget, of those left
_VALIDATION_OVER_STEP = 0.25  # time of an image in a validation over that in a step, before one is timed


def train_below_head(staging: Staging) -> None:
    """Train weights below the head from the best head, in one mode after another until one does not help."""
    heads = [outcome for outcome in staging.outcomes if not outcome.history]
    start = best_of(heads, staging.setup.config.select)
    assert start is not None
    assert start.candidate is not None
    modes, skipped = _modes(staging, start.candidate)
    helped: str | None = None
    for mode in modes:
        if helped is not None:
            skipped[mode] = helped
            continue
        before = staging.best_before(mode)
        if staging.done(mode) is None:
            staging.run_dir.lock.record(phase=f"training {mode}")
            _train_mode(staging, mode, start)
        if staging.best is before:
            helped = f"{mode} did not improve on {before.stage}" if before else None
    left_out = [Outcome(stage, skipped=reason) for stage, reason in skipped.items() if staging.done(stage) is None]
    if left_out:
        staging.record(*left_out)


def _train_mode(staging: Staging, mode: str, start: Outcome) -> None:
    assert start.candidate is not None
    staging.view.line("stage", f"{mode}: trains from {start.stage}")
    outcome, session = train_stage(staging, mode, start.candidate)
    if session is None or outcome.candidate is None:
        staging.record(outcome)
        return
    average = f"{mode}, averaged"
    if mode == "lora":
        second = Outcome(average, skipped="the average of adapters is not that of the weights")
    else:
        second = average_with_start(staging, outcome, start.candidate, session)
    staging.record(outcome, second)


def _modes(staging: Staging, start: Candidate) -> tuple[list[str], dict[str, str]]:
    """Decide on the modes to train in; a run that is resumed keeps to those that it began."""
    setup, left = staging.setup, staging.left
    train, val, classes = setup.data.splits["train"], setup.data.splits["val"], len(setup.data.classes)
    begun = [path.name for path in (staging.run_dir.path / "stages").glob("*") if staging.run_dir.has_run]
    if begun and left is not None:  # the time of a step was measured by another process
        modes = [mode for mode in TRAININGS if mode in begun]
        return modes, {mode: "another training had begun" for mode in TRAININGS if mode not in begun}
    if (reason := too_few_images(len(train), classes)) is not None:  # before a step is timed
        return [], dict.fromkeys(TRAININGS, reason)
    per_epoch = setup.data_module.steps_per_epoch
    epochs = setup.config.epochs if setup.config.steps is None else setup.config.steps / per_epoch
    steps, whole = _steps(setup, start, left)
    validation = _VALIDATION_OVER_STEP * whole * len(val) / min(setup.config.batch_size, len(train))

    def remaining() -> float | None:
        return None if (now := staging.left) is None else now - 4 * validation

    resources = Resources(
        images=len(train),
        classes=classes,
        depth=setup.config.model.depth,
        parameters=setup.cost.parameters,
        step_seconds=steps,
        steps_per_epoch=per_epoch,
        validation_seconds=validation,
        epochs=epochs,
        left=remaining(),
        memory=_free_memory(setup),
        has_lora=find_spec("peft") is not None,
        verb=setup.config.verb,
    )
    modes, skipped = tuning_modes(resources)
    if modes and setup.distiller is not None:  # a training without time needs no answers
        answers = _answers_seconds(setup, setup.distiller, staging.left)
        resources = replace(resources, answers_seconds=answers, left=remaining(), memory=_free_memory(setup))
        modes, skipped = tuning_modes(resources)
    if begun:
        modes = [mode for mode in TRAININGS if mode in begun or mode in modes]
        skipped = {mode: reason for mode, reason in skipped.items() if mode not in modes}
    return modes, skipped


def _steps(setup: Setup, start: Candidate, left: float | None) -> tuple[dict[str, float], float]:
    """Return the seconds of a training step by mode, and of a whole step; measured on few images if time is short.

    A mode is left out if not one image of its step fits into memory.
    """
    whole, last = variant(setup, start, "full"), f"last-{min(LAST, setup.config.model.depth)}"
    quick = None
    if left is not None:
        quick = quick_step_seconds(whole)
        if quick is not None and quick * setup.data_module.steps_per_epoch > _HOPELESS * left:
            return dict.fromkeys(TRAININGS, quick), quick
    full = step_seconds(whole, _timing_seconds(left) / 2, quick)
    upper = step_seconds(variant(setup, start, last), _timing_seconds(left) / 2)
    steps = {} if full is None else {"full": full[0], "lora": full[0]}
    steps |= {} if upper is None else {f"last-{LAST}": upper[0]}
    return steps, max((found[1] for found in (full, upper) if found is not None), default=0.0)


def _timing_seconds(left: float | None) -> float:
    return _TIMING if left is None else _TIMING_SHARE * left


def _free_memory(setup: Setup) -> int | None:
    """Return the free memory of the device, after releasing what the timing of steps used."""
    release_memory()
    return free_memory(setup.device)


def _answers_seconds(setup: Setup, distiller: Distiller, left: float | None) -> float:
    from vitreous.train.distil.phase import answering_seconds

    return answering_seconds(setup, distiller, _timing_seconds(left))
