"""Estimates the memory, time and FLOPs of a run on this machine from a few of its own steps.

The steps use the setup, module, loaders and Trainer of :mod:`vitreous.train.run`. Nothing is saved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitreous.machine.peak_memory import MemoryMeter
from vitreous.runs.folder import lock_run_dir
from vitreous.train.advice import few_images, imbalance_note
from vitreous.train.assembly import Kit, Session, assemble
from vitreous.train.config import AUTO, RunConfig, parse_duration
from vitreous.train.console import Display
from vitreous.train.loop.silence import silence_lightning
from vitreous.train.planning.trials import Trials, backbone_of, training_batch, validation_seconds
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import scoring_seconds
from vitreous.train.resume.signals import Signals
from vitreous.train.run import kit_of
from vitreous.train.setup import Setup, describe_hardware, describe_model, one_thread_if_tiny, prepare

__all__ = ["Memory", "Plan", "plan"]

_STAGES = (
    "the run begins with heads on frozen features, and trains other weights only if time, memory and images allow it: "
    "the figures are those of training all weights"
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a run, in bytes; None if the device does not report it."""

    weights: int  # weights, gradients, optimiser state and moving average: independent of the batch size
    activations: int | None  # what a step with the measured micro-batch needs besides
    pictures: int  # decoded images in main memory; 0 if they are read from files in each epoch
    total: int | None  # peak: on a CPU of the whole process, on CUDA of what torch allocates
    left: int | None  # free memory when the steps began


@dataclasses.dataclass(frozen=True)
class Plan:
    """The estimated cost of a run."""

    model: str  # description in one line
    machine: str  # hardware and precision
    parameters: int  # of the model
    pictures: dict[str, int]  # images of each split, and `unlabelled` ones
    batch_size: int  # images per optimiser step
    parts: int  # micro-batches per step; more than configured if the memory does not hold them
    steps_per_epoch: int
    memory: Memory
    step_seconds: float  # median time of a step, averaged over the phases of the run
    step_spread: tuple[float, float]  # first and third quartile of that time
    steps_timed: int
    epoch_seconds: float  # one epoch with its validation
    start_seconds: float  # from the start of the command to the first step, without the teacher's answers
    teacher_seconds: float  # for answers that a teacher computes once, before the first step
    epochs: float  # by the configuration or the budget
    total_seconds: float  # of the whole command; the budget if there is one
    total_flops: float  # of all steps and validations, 2 per multiply-add
    largest_batch: int | None  # images of the largest micro-batch that fits, at most the training split
    checked: bool  # whether a step of that size was made
    advice: tuple[str | list[str], ...] = ()  # sentences, and commands as lists of words

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)


def plan(config: RunConfig, *, explicit: Collection[str] = (), started: float | None = None) -> Plan:
    """Measure the cost of a run; nothing stays on disk. Arguments are those of :func:`vitreous.train.run.run`.

    Of a run in stages it is the training of all weights. A :class:`PretrainConfig` is a run of `vitreous pretrain`.
    """
    has_stages = config.tune.mode == AUTO
    if has_stages:
        config = dataclasses.replace(config, tune=dataclasses.replace(config.tune, mode="full"))
    started = time.monotonic() if started is None else started
    view, silent = Display(), Display(Console(file=io.StringIO(), force_terminal=False))
    silent.counting = view.counting  # type: ignore[method-assign]  # shows progress bars and nothing else
    budget = parse_duration(config.budget) if config.budget is not None else None
    with silence_lightning(), tempfile.TemporaryDirectory(prefix="vitreous-plan-") as folder:
        config, begin, kit = _kind_of(config)
        setup = begin(dataclasses.replace(config, loggers=(), budget=None), explicit, view)
        meter = MemoryMeter(setup.device)
        with lock_run_dir(Path(folder), recipe_text(setup.config), resume=False) as run_dir:
            session = assemble(
                setup, run_dir, silent, Signals(), None, started=started, exit_seconds=0.0, kit=kit or kit_of(setup)
            )
            start_seconds = time.monotonic() - started
            teacher_seconds = _rehearse_teacher(setup)
            with one_thread_if_tiny(setup):
                found = _measure(session, meter, budget, (start_seconds, teacher_seconds))
    return dataclasses.replace(found, advice=(_STAGES, *found.advice)) if has_stages else found


def _kind_of(
    config: RunConfig,
) -> tuple[RunConfig, Callable[[RunConfig, Collection[str], Display], Setup], Kit | None]:
    """Return the configuration of the trial steps, what prepares a run, and its kit.

    The kit is None for that of a run on labels.
    """
    if config.verb != "pretrain":
        return config, prepare, None
    from vitreous.train.pretrain import run as pretraining  # no other plan pays for it
    from vitreous.train.pretrain.setup import prepare as prepare_pretraining

    own: Any = config  # the steps skip the warm-up, and may collapse where the run does not
    unwatched: RunConfig = dataclasses.replace(own, monitor=dataclasses.replace(own.monitor, stop=False))
    return unwatched, prepare_pretraining, pretraining.KIT


def _rehearse_teacher(setup: Setup) -> float:
    """Estimate the seconds of a teacher that answers once; its answers in the trial steps are zeros."""
    if setup.distiller is None or setup.distiller.in_loop:
        return 0.0
    from vitreous.train.distil.phase import rehearse

    return rehearse(setup, setup.distiller)


def _measure(session: Session, meter: MemoryMeter, budget: float | None, before: tuple[float, float]) -> Plan:
    """Measure a run; `before` are the seconds of start-up and of a teacher's answers."""
    setup, loading, starting = session.setup, session.setup.data_module, sum(before)
    trials = Trials(session, meter)
    micro_batch = trials.choose_micro_batch()
    timed = trials.time_phases()
    trials.record_growth(micro_batch, trials.last_growth)
    if session.kit.measures_start and setup.pretrained is not None:
        starting += session.module.extra_seconds
    validation = validation_seconds(session)
    _, reporting = session.kit.ending(setup, math.inf if budget is None else budget)
    memory = _memory(trials, micro_batch, meter.most())  # after drawing is imported, before larger batches are tried
    largest, checked = trials.largest(micro_batch)
    config, per_epoch = setup.config, loading.steps_per_epoch
    means = [statistics.fmean(times) for times in timed]
    weights = _phase_weights(config, means, by_time=budget is not None)
    quartiles = [statistics.quantiles(times, n=4) for times in timed]
    lower, step, upper = (_weighted_mean(weights, [phase[i] for phase in quartiles]) for i in range(3))
    epoch_seconds = per_epoch * _weighted_mean(weights, means) + validation
    test_share = len(setup.data.splits.get("test", ())) / len(setup.data.splits["val"])
    ending = reporting
    if session.kit.scores_weights:
        ending += scoring_seconds(validation, test_share, setup.precision)
    epochs = config.epochs if config.steps is None else config.steps / per_epoch
    if budget is not None:
        epochs = max(0.0, (budget - starting - ending) / epoch_seconds)
    validations = epochs if budget is not None else math.ceil(epochs)  # one follows steps that fill no epoch too
    training = epochs * epoch_seconds + (validations - epochs) * validation
    total = budget if budget is not None else starting + training + ending
    images = epochs * per_epoch * min(config.batch_size, len(setup.data.splits["train"]))
    validated = validations * len(setup.data.splits["val"])
    return Plan(
        model=describe_model(config.model, setup.cost.parameters, setup.cost.flops),
        machine=describe_hardware(setup.device, setup.precision),
        parameters=setup.cost.parameters,
        pictures={name: len(split) for name, split in loading.splits.items()},
        batch_size=config.batch_size,
        parts=loading.train_sampler.accumulate,
        steps_per_epoch=per_epoch,
        memory=memory,
        step_seconds=step,
        step_spread=(lower, upper),
        steps_timed=sum(map(len, timed)),
        epoch_seconds=epoch_seconds,
        start_seconds=before[0],
        teacher_seconds=before[1],
        epochs=epochs,
        total_seconds=total,
        total_flops=images * _weighted_mean(weights, _step_flops(setup, session))
        + validated * setup.cost.flops
        + _teacher_flops(setup, images),
        largest_batch=largest,
        checked=checked,
        advice=tuple(_advice(setup)),
    )


def _advice(setup: Setup) -> Iterator[str | list[str]]:
    if setup.config.verb == "pretrain":
        return
    yield from few_images(setup)
    if (imbalance := imbalance_note(setup)) is not None:
        yield f"classes are {imbalance}"


def _phase_weights(config: RunConfig, seconds: list[float], by_time: bool) -> list[float]:
    """Return the fraction of the steps in each phase, given its seconds per step; with a budget, phases last a time."""
    lengths = [end - start for start, end in config.phases]
    if by_time:
        lengths = [length / each for length, each in zip(lengths, seconds, strict=True)]
    return [length / sum(lengths) for length in lengths]


def _weighted_mean(weights: list[float], values: list[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def _memory(trials: Trials, micro_batch: int, peak: int) -> Memory:
    setup, image_bytes = trials.session.setup, 0
    if setup.data_module.in_memory:
        image_bytes = setup.data_module.decoded_bytes
    if trials.free is None:
        return Memory(trials.fixed, None, image_bytes, None, None)
    growth = trials.growth[micro_batch]
    weights = sum(p.nbytes for p in setup.model.parameters()) if setup.device.type == "cpu" else 0  # allocated before
    activations = max(0, growth + weights - trials.fixed)
    return Memory(trials.fixed, activations, image_bytes, max(peak, trials.before + growth), trials.free)


def _step_flops(setup: Setup, session: Session | None = None) -> list[float]:
    """Count the FLOPs of training per image in each phase, in a forward and backward pass of two images.

    Those of a pretraining run are images of its `session`.
    """
    model, config, backbone, counts = setup.model, setup.config, backbone_of(setup), []
    dropped, training = backbone.patch_dropout, model.training
    model.train()
    try:
        for middle in map(statistics.fmean, config.phases):  # not an edge, which rounding may put into the next phase
            backbone.patch_dropout = config.patches_dropped(middle)
            counts.append(_count_flops(setup, session, middle))
    finally:
        backbone.patch_dropout = dropped
        model.train(training)
        for trained in (model, setup.auxiliary):
            if trained is not None:
                trained.zero_grad(set_to_none=True)
    return counts


def _teacher_flops(setup: Setup, images: float) -> float:
    """Return the operations of a teacher in a run that trains on so many images."""
    distiller = setup.distiller
    if distiller is None:
        return 0.0
    seen = images if distiller.views is None else distiller.views.count * len(setup.data.splits["train"])
    return seen * distiller.teacher.flops


def _count_flops(setup: Setup, session: Session | None, progress: float) -> float:
    """Count the FLOPs per labelled image at a point of the run, with those of the unlabelled images beside it.

    Uses torch's plain attention, the only backend whose products FlopCounterMode counts on every device.
    """
    device = next(setup.model.parameters()).device
    size = (setup.config.augment.side_at(side, progress) for side in setup.pipeline.size)
    images = torch.zeros(2, setup.pipeline.channels, *size, device=device)
    eager = torch.compiler.set_stance("force_eager") if setup.config.compile else contextlib.nullcontext()
    targets = torch.zeros(2, len(setup.data.classes), device=device)
    losses: Iterable[tuple[float, Callable[[], Tensor]]]
    if session is not None and setup.config.verb == "pretrain":
        losses = [(1.0, lambda: _objective_loss(session, progress))]
    elif setup.auxiliary is None:
        losses = [(1.0, lambda: F.cross_entropy(setup.model(images).float(), targets))]
    else:
        losses = setup.auxiliary.step_losses(setup.model, images, targets, progress)
    found = 0.0
    for share, loss in losses:
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), eager:
            loss().backward()
        found += share * counter.get_total_flops() / 2
    return found


def _objective_loss(session: Session, progress: float) -> Tensor:
    """Return the loss of a pretraining objective for two images."""
    objective: Any = session.setup.model
    batch = training_batch(session, 2)
    tensors = {
        key: value.to(session.setup.device) if isinstance(value, Tensor) else value for key, value in batch.items()
    }
    loss: Tensor = objective(objective.views(tensors, session.setup.data_module.batch_augment, progress)).loss
    return loss
