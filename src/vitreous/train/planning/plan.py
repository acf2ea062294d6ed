"""What a run will take on this machine: memory, time and operations, measured in a few of its own steps.

The steps are those of :mod:`vitreous.train.run`: the same preparation, module, loaders and Trainer. What follows them
(selection, checkpoints, report) is left away, and so is all that they learned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitreous.data.batches.dataset import held_bytes
from vitreous.machine.peak_memory import Meter
from vitreous.runs.folder import held
from vitreous.train.advice import few_images, unlike_classes
from vitreous.train.assembly import Assembled, assemble
from vitreous.train.config import RunConfig, parse_duration
from vitreous.train.console import View
from vitreous.train.planning.trials import Trials, validation_seconds
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import report_seconds, scoring_seconds
from vitreous.train.resume.signals import Signals
from vitreous.train.setup import Prepared, describe_model, describe_place, fitting_threads, prepare
from vitreous.train.trainer import quiet

__all__ = ["Memory", "Plan", "plan"]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a run, in bytes.

    Attributes:
        weights: Of the model, its gradients, the optimiser's state and the average, which do not grow with the batch.
        activations: What a step takes besides, at the micro-batch that was measured.
        pictures: Held decoded, in main memory: 0 where they are read from files as they come.
        total: The highest mark of the run: on the CPU of the whole process, on CUDA of what torch allocates there.
        left: What could be taken besides when the steps began.
    """

    weights: int
    activations: int | None
    pictures: int
    total: int | None
    left: int | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes:
        model: In a line.
        machine: The hardware and the precision.
        parameters: Of the model.
        pictures: Of each split.
        batch_size: Pictures of an optimiser step.
        parts: Into which the step is cut; more than was asked for where the memory does not hold a part.
        steps_per_epoch: Optimiser steps.
        memory: What it takes.
        step_seconds: Median time of a step, the mean of the run's phases where these differ.
        step_spread: Its quartiles.
        steps_timed: How many steps that is of.
        epoch_seconds: Training and validation of one epoch.
        start_seconds: From the command's start to the first step.
        epochs: That the configuration or the budget allows.
        total_seconds: Of the whole command; the budget, where there is one.
        total_flops: Floating-point operations of all steps and validations, 2 per multiply-add.
        largest_batch: Pictures in one part that fit, at most those of the training split; None where the system does
            not tell.
        checked: Whether a step of that size was made.
        advice: Sentences, and commands as lists of words.
    """

    model: str
    machine: str
    parameters: int
    pictures: dict[str, int]
    batch_size: int
    parts: int
    steps_per_epoch: int
    memory: Memory
    step_seconds: float
    step_spread: tuple[float, float]
    steps_timed: int
    epoch_seconds: float
    start_seconds: float
    epochs: float
    total_seconds: float
    total_flops: float
    largest_batch: int | None
    checked: bool
    advice: tuple[str | list[str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return dataclasses.asdict(self)


def plan(config: RunConfig, *, keep: Collection[str] = (), started: float | None = None) -> Plan:
    """Measure what a run will take, and leave nothing behind.

    Args:
        config: Of the run.
        keep: As of :func:`vitreous.train.run.run`.
        started: As there.

    Raises:
        VitreousError: Whatever is wrong with the configuration or the data; if a single picture is too much.
    """
    started = time.monotonic() if started is None else started
    view, silent = View(), View(Console(file=io.StringIO(), force_terminal=False))
    budget = parse_duration(config.budget) if config.budget is not None else None
    with quiet(), tempfile.TemporaryDirectory(prefix="vitreous-plan-") as folder:
        ready = prepare(dataclasses.replace(config, loggers=(), budget=None), keep, view)
        meter = Meter(ready.device)
        with held(Path(folder), recipe_text(ready.config), resume=False) as place:
            this = assemble(ready, place, _with_bar(view, silent), Signals(), None, started=started, leaving=0.0)
            start_seconds = time.monotonic() - started
            with fitting_threads(ready):
                return _measured(this, meter, budget, start_seconds)


def _with_bar(view: View, silent: View) -> View:
    """A view that shows the decoding and says nothing else."""
    silent.counting = view.counting  # type: ignore[method-assign]
    return silent


def _measured(this: Assembled, meter: Meter, budget: float | None, start_seconds: float) -> Plan:
    """Make the steps and put together what they showed."""
    ready, loading = this.ready, this.ready.loading
    found = Trials(this, meter)
    part = found.choose_part()
    timed = found.timed()
    found.add(part, found.last_growth)
    validation = validation_seconds(this)
    reporting = report_seconds(len(ready.data.classes))
    memory = _memory(found, part, meter.most())  # now: what draws the report is loaded, no larger batch was tried
    largest, checked = found.largest(part)
    config, per_epoch = ready.config, loading.steps_per_epoch
    means = [statistics.fmean(times) for times in timed]
    weights = _shares_of_steps(config, means, by_time=budget is not None)
    quartiles = [statistics.quantiles(times, n=4) for times in timed]
    lower, step, upper = (_mean(weights, [of[i] for of in quartiles]) for i in range(3))
    epoch_seconds = per_epoch * _mean(weights, means) + validation
    ending = reporting + scoring_seconds(validation, _test_share(ready), ready.precision)
    epochs = config.epochs if config.steps is None else config.steps / per_epoch
    if budget is not None:
        epochs = max(0.0, (budget - start_seconds - ending) / epoch_seconds)
    total = budget if budget is not None else start_seconds + epochs * epoch_seconds + ending
    images = epochs * per_epoch * min(config.batch_size, len(ready.data.splits["train"]))
    validated = epochs * len(ready.data.splits["val"])
    return Plan(
        model=describe_model(config.model, ready.cost),
        machine=describe_place(ready.device, ready.precision),
        parameters=ready.cost.parameters,
        pictures={name: len(split) for name, split in ready.data.splits.items()},
        batch_size=config.batch_size,
        parts=loading.plans.parts,
        steps_per_epoch=per_epoch,
        memory=memory,
        step_seconds=step,
        step_spread=(lower, upper),
        steps_timed=sum(map(len, timed)),
        epoch_seconds=epoch_seconds,
        start_seconds=start_seconds,
        epochs=epochs,
        total_seconds=total,
        total_flops=images * _mean(weights, _step_flops(ready)) + validated * ready.cost.flops,
        largest_batch=largest,
        checked=checked,
        advice=tuple(_advice(ready)),
    )


def _advice(ready: Prepared) -> Iterator[str | list[str]]:
    """Yield what may do better than the training that is meant."""
    yield from few_images(ready)
    if (unlike := unlike_classes(ready)) is not None:
        yield f"classes are {unlike}"


def _shares_of_steps(config: RunConfig, seconds: list[float], by_time: bool) -> list[float]:
    """The share of the run's steps that each phase has, given its seconds per step; in a budget its length is time."""
    lengths = [end - begin for begin, end in config.phases]
    if by_time:
        lengths = [length / each for length, each in zip(lengths, seconds, strict=True)]
    return [length / sum(lengths) for length in lengths]


def _mean(weights: list[float], values: list[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def _test_share(ready: Prepared) -> float:
    return len(ready.data.splits.get("test", ())) / len(ready.data.splits["val"])


def _memory(found: Trials, part: int, most: int) -> Memory:
    """The memory of the run with parts of so many pictures."""
    ready, pictures = found.this.ready, 0
    if ready.loading.in_memory:
        cropped = ready.loading.augment.resized_crop < 1
        splits = ready.data.splits.items()
        pictures = sum(held_bytes(s, ready.pipeline, cropped and name == "train") for name, s in splits)
    if found.left is None:
        return Memory(found.fixed, None, pictures, None, None)
    weights = sum(p.nbytes for p in ready.model.parameters())
    grown = found.growth[part] + (weights if ready.device.type == "cpu" else 0)  # they were there before
    return Memory(
        found.fixed, max(0, grown - found.fixed), pictures, max(most, found.before + found.growth[part]), found.left
    )


def _step_flops(ready: Prepared) -> list[float]:
    """Operations that training takes for a picture in each phase, counted in a forward and backward pass of two."""
    model, config = ready.model, ready.config
    dropped, counts = model.patch_dropout, []
    with _trained(model):
        for middle in map(statistics.fmean, config.phases):  # rounding may put a phase's edge into its neighbour
            model.patch_dropout = config.patches_dropped(middle)
            counts.append(_counted(ready, middle))
        model.patch_dropout = dropped
    return counts


@contextlib.contextmanager
def _trained(model: torch.nn.Module) -> Iterator[None]:
    before = model.training
    model.train()
    try:
        yield
    finally:
        model.train(before)
        model.zero_grad(set_to_none=True)


def _counted(ready: Prepared, progress: float) -> float:
    """Operations for a picture at a point of the run.

    With torch's plain attention, because only its products can be counted anywhere.
    """
    device = next(ready.model.parameters()).device
    size = (ready.config.augment.side(side, progress) for side in ready.pipeline.size)
    images = torch.zeros(2, ready.pipeline.channels, *size, device=device)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        compiler = torch.compiler.set_stance("force_eager") if ready.config.compile else contextlib.nullcontext()
        with compiler:
            logits = ready.model(images)
            F.cross_entropy(logits.float(), torch.zeros(2, dtype=torch.int64, device=device)).backward()
    return counter.get_total_flops() / 2
