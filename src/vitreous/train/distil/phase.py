"""The phase of a run in which a teacher answers once for all views, before training; and its rehearsal for a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from vitreous import __version__
from vitreous.data.config import AugmentConfig
from vitreous.engines.choose import EngineChoice
from vitreous.engines.every_token import tokens_alone
from vitreous.errors import CheckpointError, TrainingError
from vitreous.train.distil.answers import Answers, AnswerStore, gather
from vitreous.train.distil.distiller import Distiller
from vitreous.train.distil.teacher import Compute
from vitreous.train.setup import Setup

__all__ = ["answer_once", "answering_seconds", "check_answers", "rehearse"]

Progress = Callable[[int, int], None]
_REHEARSED = 3  # batches that a plan times; the first is a warm-up
_FIRST_ESTIMATE = 2.0  # seconds after which the remaining time is estimated
_FEW = 2  # images on which a slow teacher is timed


def answer_once(
    setup: Setup, distiller: Distiller, notify: Callable[[str], None], progress: Progress, seconds_left: float
) -> str:
    """Give a distiller the answers to all its views, from the store or computed now. Return where they come from.

    Raises:
        TrainingError: If computing them would take longer than `seconds_left`.
    """
    views, total = distiller.views, len(setup.data.splits["train"])
    assert views is not None  # else the teacher computes in every step
    store = AnswerStore(_origin(setup, distiller), notify)
    found = [store.load(view) for view in range(views.count)]
    missing = [view for view, answers in enumerate(found) if answers is None]
    text = "from the cache"
    if missing:
        compute, text = _fastest(setup, distiller, total * len(missing))
        started = time.monotonic()

        def checked(done: int) -> None:
            progress(done, total * len(missing))
            elapsed = time.monotonic() - started
            if elapsed > _FIRST_ESTIMATE and (needed := elapsed / done * total * len(missing)) > seconds_left:
                raise TrainingError(
                    f"the teacher's answers take about {needed:.0f} s, and {max(seconds_left, 0):.0f} s of the budget "
                    "are left: give a larger --budget, fewer --distil.views, or a smaller teacher"
                )

        for number, view in enumerate(missing):
            done, parts = number * total, []
            for images in views.images(setup.data_module, view, setup.device):
                parts.append(distiller.stored(distiller.ask(images, compute, distiller.grid)))
                done += len(images)
                checked(done)
            found[view] = answers = gather(parts)
            store.save(view, answers)
    answers = gather([each for each in found if each is not None], lambda column: torch.stack(column, 1))
    distiller.answers, distiller.digest = answers.to(setup.device), answers.digest()
    return text


def check_answers(distiller: Distiller, stored: dict[str, Any] | None) -> None:
    """Raise an error unless a resumed run has the answers that it began with."""
    was = (stored or {}).get("answers")
    if was is not None and distiller.digest != was:
        raise CheckpointError(
            "the teacher's answers were computed again, and differ from those that the run began with: it cannot "
            "continue to the same bits. Use another --out"
        )


def answering_seconds(setup: Setup, distiller: Distiller, at_most: float = math.inf) -> float:
    """Estimate the seconds that :func:`answer_once` takes; 0 for answers that exist, or that are asked in each step.

    The estimate itself takes about `at_most` seconds: a teacher too slow to rehearse is timed on a few images.
    """
    if distiller.views is None or distiller.answers is not None:
        return 0.0
    store = AnswerStore(_origin(setup, distiller), lambda line: None)
    missing = [view for view in range(distiller.views.count) if store.load(view) is None]
    if not missing:
        return 0.0
    of_image = _time_few(setup, distiller)
    if of_image * _REHEARSED * setup.config.batch_size > at_most:
        return of_image * len(setup.data.splits["train"]) * len(missing)
    seconds = rehearse(setup, distiller)
    distiller.answers = None
    return seconds * len(missing) / distiller.views.count


def _time_few(setup: Setup, distiller: Distiller) -> float:
    """Return the seconds that the teacher takes for an image in PyTorch, measured on blank images."""
    compute = distiller.teacher.in_loop(setup.device, distiller.kind)
    images, times = torch.zeros(_FEW, setup.pipeline.channels, *setup.pipeline.size, device=setup.device), []
    for _ in range(2):  # the first time has to warm up
        started = time.monotonic()
        distiller.stored(distiller.ask(images, compute, distiller.grid))  # the copy waits for a GPU
        times.append(time.monotonic() - started)
    return min(times) / _FEW


def rehearse(setup: Setup, distiller: Distiller) -> float:
    """Estimate the seconds that :func:`answer_once` takes, and give the distiller answers of zeros for trial steps."""
    views, total = distiller.views, len(setup.data.splits["train"])
    assert views is not None
    compute, _ = _fastest(setup, distiller, total * views.count)
    times, count = [], 0
    for batch, images in enumerate(views.images(setup.data_module, 0, setup.device)):
        started = time.monotonic()
        distiller.stored(distiller.ask(images, compute, distiller.grid))  # the copy waits for a GPU
        if batch or total <= len(images):
            times.append(time.monotonic() - started)
            count += len(images)
        if batch + 1 >= _REHEARSED:
            break
    blank = distiller.blank(1)
    distiller.answers = Answers(
        *(
            None if each is None else each.unsqueeze(1).expand(total, views.count, *each.shape[1:]).to(setup.device)
            for each in (blank.logits, blank.features)
        )
    )
    return sum(times) / max(count, 1) * total * views.count


def _fastest(setup: Setup, distiller: Distiller, images: int) -> tuple[Compute, str]:
    """Return a function that computes the teacher with the fastest engine, and a description of that engine."""
    teacher = distiller.teacher
    model, with_patches = teacher.model.to(setup.device), distiller.kind == "patches"
    computed = tokens_alone(model).to(setup.device).eval() if with_patches else model
    choice = EngineChoice(computed, teacher.pipeline, 1.0, precision="auto")
    engine = choice.engine(images, setup.config.batch_size)

    def patches(images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = engine(images)[1].to(setup.device)
        with torch.inference_mode():
            return model.head(model.read_out(tokens)), tokens[:, model.config.prefix_tokens :]

    return patches if with_patches else engine, f"with {engine.name} in {engine.precision}"


def _origin(setup: Setup, distiller: Distiller) -> dict[str, Any]:
    """Return all that the answers depend on, as JSON values."""
    config, views = setup.config, distiller.views
    assert views is not None
    augment = config.augment
    drawn = {} if views.are_flips else {"augment": _plain(augment), "seed": config.seed, "views": views.count}
    return {
        "teacher": [distiller.teacher.digest, list(distiller.teacher.classes)],
        "their_pipeline": distiller.teacher.pipeline.to_dict(),
        "pipeline": setup.pipeline.to_dict(),
        "images": [setup.data.fingerprint, setup.data.order, setup.data_module.in_memory],
        "classes": list(setup.data.classes),
        "targets": [distiller.options.targets, distiller.options.features, list(distiller.grid)],
        "flips": [views.are_flips, views.count, augment.flip == 1],
        "device": setup.device.type,
        "versions": [__version__, torch.__version__],
        **drawn,
    }


def _plain(augment: AugmentConfig) -> dict[str, Any]:
    """Return the augmentation that draws views, without what only the schedule reads."""
    drop = ("small_first", "small_until", "off_last", "mix_after", "mixup", "cutmix", "mix_chance")
    return {name: value for name, value in asdict(augment).items() if name not in drop}
