"""One training for train, finetune and pretrain: in this process, or in several (docs/explanation/scale.md)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from vitreous.errors import UsageError

if TYPE_CHECKING:
    from vitreous.train.config import RunConfig
    from vitreous.train.finish import RunResult
    from vitreous.train.scale.place import Place

__all__ = ["process_start", "train"]

_IMPORTED = time.monotonic()


def train(
    words: Sequence[str],
    config: RunConfig,
    explicit: Collection[str],
    *,
    to_stderr: bool,
    resume: bool,
    on: str | None = None,
) -> RunResult | int:
    """Train, and print the lines of the run to stdout or stderr.

    Args:
        words: Verb and arguments of this command, which other processes of the run repeat.
        config: What they mean.
        explicit: As for :func:`vitreous.train.run.run`.
        to_stderr: Whether a JSON document goes to stdout.
        resume: As for :func:`vitreous.train.run.run`.
        on: The Ray cluster whose machines are to do it; None is this machine.

    Returns:
        The result, or the exit code if all of it happens in other processes.
    """
    if on is not None:
        from vitreous.cluster.training import train_on

        return train_on(on, words, config, resume=resume)
    place = None
    sharded = config.strategy == "fsdp"
    if config.devices * config.nodes > 1 or sharded or "LOCAL_RANK" in os.environ:
        from vitreous.train.scale.launch import launch_or_join

        code, place = launch_or_join(words, config.devices, config.nodes, started=process_start(), joins=sharded)
        if code is not None:
            return code
    from rich.console import Console

    from vitreous.train.console import Display

    run = _choose_run(config, place)
    view = Display(Console(stderr=True, soft_wrap=True)) if to_stderr else None
    launched = place.launched if place is not None else None  # by the command, from which a budget counts
    return run(config, explicit=explicit, started=launched or process_start(), view=view, resume=resume)


def _choose_run(config: RunConfig, place: Place | None) -> Callable[..., RunResult]:
    """Return what runs a configuration: a pretraining, a training, or the part of one of several processes in it."""
    if config.verb == "pretrain":
        if place is not None:
            raise UsageError(f"pretraining uses one process, this is one of {place.world}: start it without torchrun")
        from vitreous.train.pretrain.run import pretrain

        return cast("Callable[..., RunResult]", pretrain)
    if place is not None:
        from vitreous.train.scale.run import run_rank

        return partial(run_rank, place)
    from vitreous.train.run import run

    return run


def process_start() -> float:
    """Return when this process started, in the seconds of time.monotonic(); a budget is counted from there."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # field 22: start after boot, in clock ticks
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return min(_IMPORTED, time.monotonic() - age)
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux
        return _IMPORTED
