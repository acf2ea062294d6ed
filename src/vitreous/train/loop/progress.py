"""The clock of a run: how much of it is done, by optimiser steps or, with a budget, by wall-clock time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Budget", "Clock", "Steps", "exit_after"]

_EXIT_OVER_IMPORT = 0.1  # on exit, unloading the libraries takes this share of the time it took to import them


def exit_after(started: float) -> float:
    """Estimate the seconds that a program's exit takes for what it has imported since `started`, and nothing else."""
    return _EXIT_OVER_IMPORT * (time.monotonic() - started)


@dataclass
class Steps:
    """Clock of a run with a fixed number of optimiser steps, `total`."""

    total: int

    def begin(self) -> None:
        """Do nothing: the steps are the time."""

    def state(self) -> dict[str, float]:
        """Return an empty state."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Do nothing."""

    def progress(self, step: int) -> float:
        """Return the fraction of the run at the middle of a step, so that no update has a learning rate of zero."""
        return (step + 0.5) / self.total

    def over(self, steps_done: int) -> bool:
        """Return whether training is over."""
        return steps_done >= self.total

    def seconds_left(self, steps_done: int, seconds_per_step: float) -> float:
        """Estimate the remaining training time in seconds."""
        return max(0, self.total - steps_done) * seconds_per_step


@dataclass
class Budget:
    """Clock of a run with a wall-clock budget.

    Args:
        started: ``time.monotonic()`` at the start of the command.
        seconds: Wall-clock time for the whole command.
        reserve: Seconds of it reserved for what follows the last step; callbacks update it as they measure.
    """

    started: float
    seconds: float
    reserve: float
    ending: float = field(init=False)  # the initial reserve: report and exit, without any evaluation
    _begun: float = field(default=0.0, init=False)
    _progress_at_begin: float = field(default=0.0, init=False)
    _progress: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Store the initial reserve."""
        self.ending = self.reserve

    def begin(self) -> None:
        """Start to measure; a resumed run spreads its remaining progress over the remaining time."""
        self._begun, self._progress_at_begin = time.monotonic(), self._progress

    def state(self) -> dict[str, float]:
        """Return the seconds used, the progress and the current reserve."""
        return {"used": time.monotonic() - self.started, "progress": self._progress, "reserve": self.reserve}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what :meth:`state` returned, and count the seconds that earlier processes used."""
        self.started -= state["used"]
        self._progress, self.reserve = state["progress"], state["reserve"]

    @property
    def _training_ends(self) -> float:
        return self.started + self.seconds - self.reserve

    def progress(self, step: int) -> float:
        """Return the fraction of the training time that has passed, in [0, 1]; it never decreases."""
        length = max(self._training_ends - self._begun, 1e-3)
        share = min(1.0, (time.monotonic() - self._begun) / length)
        progress = self._progress_at_begin + (1 - self._progress_at_begin) * share
        self._progress = max(self._progress, progress)
        return self._progress

    def over(self, steps_done: int) -> bool:
        """Return whether training is over."""
        return time.monotonic() >= self._training_ends

    def seconds_left(self, steps_done: int, seconds_per_step: float) -> float:
        """Return the remaining training time in seconds."""
        return max(0.0, self._training_ends - time.monotonic())


Clock = Steps | Budget
"""What a run counts to its end: steps, or seconds."""
