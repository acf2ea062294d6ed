"""How much of a run is done: by counted steps, or by the wall clock where it has a budget."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Budget", "Clock", "Steps"]


@dataclass
class Steps:
    """A run of a known number of optimiser steps.

    Args:
        total: Steps in all.
    """

    total: int

    def begin(self) -> None:
        """Training starts."""

    def state(self) -> dict[str, float]:
        """Nothing: the steps tell."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Nothing is needed."""

    def progress(self, step: int) -> float:
        """The middle of a step as a share of all, so that neither the first nor the last update has rate zero."""
        return (step + 0.5) / self.total

    def over(self, steps_done: int) -> bool:
        """Whether no further step is to be made."""
        return steps_done >= self.total

    def seconds_left(self, steps_done: int, seconds_per_step: float) -> float:
        """Training time left, in seconds."""
        return max(0, self.total - steps_done) * seconds_per_step


@dataclass
class Budget:
    """A run that ends at a time.

    Args:
        started: When the command started, in the seconds of ``time.monotonic()``.
        seconds: Wall-clock time for the whole command.
        reserve: Seconds of it that are kept for what comes after the last step; callbacks correct it as they measure.

    Attributes:
        ending: The reserve as it was given, for what is no scoring.
    """

    started: float
    seconds: float
    reserve: float
    ending: float = field(init=False)
    _begun: float = field(default=0.0, init=False)
    _from: float = field(default=0.0, init=False)
    _progress: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Keep the reserve as it was given."""
        self.ending = self.reserve

    def begin(self) -> None:
        """Training starts, or goes on where it was: its progress then covers what is left in the time that is left."""
        self._begun, self._from = time.monotonic(), self._progress

    def state(self) -> dict[str, float]:
        """The seconds that were used, the progress, and the reserve as it was corrected."""
        return {"used": time.monotonic() - self.started, "progress": self._progress, "reserve": self.reserve}

    def restore(self, state: Mapping[str, float]) -> None:
        """Count what was used before this command started, as of :meth:`state`."""
        self.started -= state["used"]
        self._progress, self.reserve = state["progress"], state["reserve"]

    @property
    def _last_step(self) -> float:
        return self.started + self.seconds - self.reserve

    def progress(self, step: int) -> float:
        """Share of the training time that has passed, in [0, 1]; never falls when the reserve is corrected."""
        length = max(self._last_step - self._begun, 1e-3)
        share = min(1.0, (time.monotonic() - self._begun) / length)
        self._progress = max(self._progress, self._from + (1 - self._from) * share)
        return self._progress

    def over(self, steps_done: int) -> bool:
        """Whether no further step is to be made."""
        return time.monotonic() >= self._last_step

    def seconds_left(self, steps_done: int, seconds_per_step: float) -> float:
        """Training time left, in seconds."""
        return max(0.0, self._last_step - time.monotonic())


Clock = Steps | Budget
