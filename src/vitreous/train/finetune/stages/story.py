"""The course of a run in stages: features, heads, training from the best head, averages, and the best is the result.

Stages that are done are in the journal, and a resumed run goes on with the next. Everything is chosen on the validation
split; the test split is scored once, at the end.
"""

from __future__ import annotations

import contextlib
import time

import torch

from vitreous.errors import TrainingError, pluralize
from vitreous.machine.free_memory import memory_left
from vitreous.machine.threads import torch_threads
from vitreous.runs.folder import RunDir
from vitreous.train.console import Display
from vitreous.train.finetune.stages.decisions import (
    TRAININGS,
    further_views,
    no_time_for_a_view,
    tokens_too_large,
)
from vitreous.train.finetune.stages.features import Extractor, Features
from vitreous.train.finetune.stages.heads import Heads
from vitreous.train.finetune.stages.outcome import Outcome
from vitreous.train.finetune.stages.staging import Staging
from vitreous.train.finish import RunResult, resume_command
from vitreous.train.loop.progress import exit_after
from vitreous.train.phases import announce, open_run_dir
from vitreous.train.resume.signals import Signals, Stopped
from vitreous.train.setup import Setup

__all__ = ["run_stages"]

_HEADS_SHARE = 0.1  # of the time left that is reserved for heads while features are computed
_SAMPLE_SECONDS = 0.5  # in which the features of a view are timed, if none were computed before
_VIEWS_SHARE = 0.2  # of the time left after which a further view is given up, if it is slower than expected
_HEAD_STAGES = ("k-NN", "linear", "attentive")


def run_stages(
    setup: Setup, run_dir: RunDir, view: Display, signals: Signals, *, started: float, exit_seconds: float
) -> RunResult:
    """Run all stages in order. Arguments as `vitreous.train.run` has them."""
    staging = None
    with contextlib.ExitStack() as stack:
        try:
            _, threads = open_run_dir(setup, run_dir, view, without="goes on with the stages that are not done")
            stack.enter_context(torch_threads(threads))
            announce(setup, view)
            staging = Staging.open(setup, run_dir, view, signals, started=started, exit_seconds=exit_seconds)
            if any(staging.done(stage) is None for stage in _HEAD_STAGES):
                _fit_heads(staging)
            else:
                _import_training(staging)
                staging.measure_report()
            _train(staging)
            from vitreous.train.finetune.stages.ending import finish

            return finish(staging)
        except Stopped as stopped:
            return _end_interrupted(staging, run_dir, setup, view, stopped)
        except Exception:
            if staging is not None:
                staging.discard_if_empty()
            raise


def _fit_heads(staging: Staging) -> None:
    """Compute features, and fit the heads that are not done yet."""
    setup, view = staging.setup, staging.view
    staging.run_dir.lock.record(phase="computing features")
    splits = setup.data.splits
    no_tokens = tokens_too_large(setup.config.model, len(splits["train"]) + 2 * len(splits["val"]), memory_left())
    extractor = Extractor(setup, no_tokens is None, lambda line: view.line("engine", line))
    val = _features(staging, extractor, "val")
    train = _features(staging, extractor, "train")
    _refuse_late_heads(staging)
    heads = Heads(setup, train, val)
    heads = heads.within(staging.left) if staging.head_images is None else heads.on(staging.head_images)
    staging.head_images = len(heads.train.labels)
    staging.run_dir.lock.record(phase="fitting heads")
    if staging.done("k-NN") is None:
        staging.record(heads.neighbours())
    linear = staging.done("linear")
    if linear is None:
        staging.record(linear := heads.linear())
    _import_training(staging)
    staging.measure_report()
    strength = linear.strength
    assert strength is not None
    _fit_more_views(staging, extractor, heads, linear, strength)
    if staging.done("attentive") is None:
        staging.record(_attentive(staging, heads, no_tokens, strength))


def _import_training(staging: Staging) -> None:
    """Import what trains, Lightning above all: that takes seconds, which no head waits for, but a budget counts."""
    began = time.monotonic()
    with staging.signals.deferred():
        from vitreous.train.finetune.stages import below_head, ending  # noqa: F401

    staging.exit_seconds += exit_after(began)


def _features(staging: Staging, extractor: Extractor, name: str) -> Features:
    """Compute the first view of a split and print how fast; with a budget, of as many training images as fit."""
    split, left, began = staging.setup.data.splits[name], staging.left, time.monotonic()
    deadline = began + (1 - _HEADS_SHARE) * left if left is not None else None
    with staging.view.counting(f"{name} features"[:9]) as count:
        features = extractor.extract(
            split, 0, deadline, staging.keeping_time(count), tokens="exact" if name == "val" else "half"
        )
    _add_seconds(staging, "features", features.seconds)
    staging.keeps_features = extractor.keeps
    done, kept = len(features.labels), ", which are kept for a second run" if staging.keeps_features else ""
    if (name == "val" and done < len(split)) or not done:
        raise TrainingError(
            f"the budget of {staging.budget:.0f} s is used up after the features of {done:,} of {len(split):,} {name} "
            f"images{kept}; {staging.reserved}. Give a larger --budget"
        )
    how = "from the cache"
    if features.computed:
        how = f"by {extractor.engine}, {extractor.images_per_second:,.0f} images/s, in {features.seconds:.1f} s"
    short = f", all that the budget allows of {len(split):,}" if done < len(split) else ""
    staging.view.line("features", f"{name}: {pluralize(done, 'image')}{short}, {how}")
    return features


def _refuse_late_heads(staging: Staging) -> None:
    """Raise an error if no time is left for a first head: it would be late, and fitted to few images."""
    if staging.left is None or staging.left > 0 or staging.best is not None:
        return
    raise TrainingError(
        f"the budget of {staging.budget:.0f} s is used up before the first head: {staging.used:.0f} s went into "
        f"start-up, reading and features, {staging.reserved}. Give a larger --budget"
    )


def _fit_more_views(staging: Staging, extractor: Extractor, heads: Heads, linear: Outcome, strength: float) -> None:
    """Fit a linear head to further views of the training images, where there are any and the time allows it."""
    split, first = staging.setup.data.splits["train"], heads.train
    if any(outcome.stage.startswith("linear, ") for outcome in staging.outcomes):
        return
    stage, reason = "linear, more views", None
    if not extractor.views.vary:
        reason = "the augmentation neither crops nor flips, so all views are the same"
    elif len(first.labels) < len(split):
        reason = "the budget has no time for heads on all images"
    elif not extractor.images_per_second and staging.left is not None:  # the first view was in the cache
        sample = extractor.extract(split, 1, time.monotonic() + _SAMPLE_SECONDS, tokens="none")
        _add_seconds(staging, "features", sample.seconds)
    seconds = len(split) / extractor.images_per_second if extractor.images_per_second else 0.0
    count = further_views(seconds, staging.left, linear.seconds) if reason is None else 0
    if reason is None and count == 0:
        reason = no_time_for_a_view(seconds, staging.left or 0.0, linear.seconds)
    if reason is not None:
        staging.record(Outcome(stage, skipped=reason))
        return
    views, left = [first.pooled], staging.left
    deadline = time.monotonic() + _VIEWS_SHARE * left if left is not None else None
    for view in range(1, 1 + count):
        with staging.view.counting("views") as progress:
            features = extractor.extract(split, view, deadline, staging.keeping_time(progress), tokens="none")
        _add_seconds(staging, "features", features.seconds)
        if len(features.labels) < len(split):
            break
        views.append(features.pooled)
    if len(views) == 1:
        staging.record(Outcome(stage, skipped="a further view took longer than the budget allows"))
    else:
        staging.record(heads.linear_on(views, strength))


def _attentive(staging: Staging, heads: Heads, no_tokens: str | None, strength: float) -> Outcome:
    if no_tokens is not None:
        return Outcome("attentive", skipped=no_tokens)
    if heads.train.tokens is None or not bool(torch.isfinite(heads.train.tokens).all()):
        return Outcome("attentive", skipped="the tokens exceed the range of float16")
    if (left := staging.left) is not None and left <= 0:
        return Outcome("attentive", skipped="the budget has no time for it")
    return heads.attentive(strength, None if left is None else time.monotonic() + left)


def _train(staging: Staging) -> None:
    from vitreous.train.finetune.stages.below_head import train_below_head

    if any(staging.done(mode) is None for mode in TRAININGS):
        train_below_head(staging)


def _add_seconds(staging: Staging, phase: str, seconds: float) -> None:
    staging.seconds[phase] = staging.seconds.get(phase, 0.0) + seconds


def _end_interrupted(
    staging: Staging | None, run_dir: RunDir, setup: Setup, view: Display, stopped: Stopped
) -> RunResult:
    """End a run after a signal: print what is saved, and how to resume; at a second Ctrl-C re-raise."""
    best = staging.best if staging is not None else None
    folder = run_dir.path
    model = folder / "model.safetensors"
    if best is None or best.candidate is None:
        kept = "; features computed so far are kept" if staging is not None and staging.keeps_features else ""
        view.result(f"{stopped} before the first head{kept}")
    else:
        name, value = best.candidate.scores.headline
        score = f"val {name} {100 * value:.1f} %"
        view.result(f"{stopped}: the best model so far ({best.stage}, {score}, or a better epoch since) is in {model}")
    view.line("continue", resume_command(setup, folder), whole=True)
    if stopped.at_once:
        raise stopped
    return RunResult(
        folder=folder,
        model=model,
        epochs=len(best.history) if best else 0,
        seconds=staging.seconds if staging is not None else {},
        val=best.candidate.scores if best and best.candidate else None,
        exit_code=stopped.exit_code,
    )
