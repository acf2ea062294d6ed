"""Simulates a whole run: checkpoints, failures, machines that are taken away, GPUs that are slow for a while.

The program's own watch decides when a failure is noticed (`vitreous.train.scale.watch.judge`), and its own settings say
when a checkpoint is due and for how long it waits. Failures come at times that are given, so the same run can be
simulated with and without each.
"""

from __future__ import annotations

import heapq
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from vitreous.data.rng import generator
from vitreous.train.scale import watch
from vitreous.train.scale.watch import Seen, judge

__all__ = ["CAUSES", "Run", "arrivals", "ending_seconds", "noticed_after", "simulate_run"]

CAUSES = ("checkpoints", "failures", "preemption", "slow GPUs")
"""Why a run takes longer than its steps."""


def arrivals(rate: float, end: float, seed: int, stream: str) -> tuple[float, ...]:
    """Return the times before `end` of events that come at random, `rate` of them per second."""
    if not rate:
        return ()
    times, now, gaps = [], 0.0, generator(seed, stream=stream)
    while (now := now + float(gaps.standard_exponential()) / rate) < end:
        times.append(now)
    return tuple(times)


@cache
def noticed_after(world: int, per_machine: int, rank: int, *, hangs: bool) -> float:
    """Return the seconds until the watch of the first process ends a run of which one process is lost or hangs.

    All others have entered the exchange and wait. One that hangs still shows its heartbeat; one that is lost does not.
    """
    here, seen = platform.node(), {}
    for each in range(world):
        host = here if each < per_machine else f"machine-{each // per_machine}"
        lost = each == rank and not hangs
        pid = 1 << 30 if lost else os.getpid()  # no process has this id
        facts = {"phase": "training", "position": 1000, "epoch": 1, "step": 100, "host": host, "pid": pid}
        seen[each] = Seen(facts | {"is_waiting": each != rank, "beats": 0}, beat_at=0.0, moved_at=0.0)
    now = 0.0
    while judge(seen, now) is None:
        now += watch._INTERVAL
        for each, other in seen.items():
            if each != rank or hangs:
                other.update({**other.facts, "beats": other.facts["beats"] + 1}, now)
    return now


def ending_seconds(*, hangs: bool) -> float:
    """Return how long the program takes from its verdict to its end: stacks are collected from processes that hang.

    On a GPU no checkpoint is saved then.
    """
    return watch._COLLECT * hangs + 2 * watch._INTERVAL


@dataclass(frozen=True)
class Run:
    """A run to simulate. All times are in seconds."""

    steps: int
    step: float
    every: float  # interval of checkpoints
    capture: float  # for which training waits
    write: float  # beside training
    failures: Sequence[float] = ()  # when they happen; those while the run stands still do not count
    noticed: Sequence[float] = ()  # how long each takes until the run has ended
    preemptions: Sequence[float] = ()  # when a machine is announced to be taken
    slow: Sequence[float] = ()  # when a GPU becomes slow
    restart: float = 0.0  # from the end of the run to its first step
    replace: float = 0.0  # until there is a machine for the one that was taken
    notice: float = 120.0
    slow_factor: float = 1.0
    slow_seconds: float = 0.0


def simulate_run(run: Run) -> dict[str, float]:
    """Return the seconds of the whole run, `total`, and of each of CAUSES; the rest are its steps."""
    return _Simulation(run).simulate()


class _Simulation:
    def __init__(self, run: Run) -> None:
        self.run, self.now, self.done, self.saved = run, 0.0, 0.0, 0.0  # done and saved are steps
        self.lost = dict.fromkeys(CAUSES, 0.0)
        self._pending: float | None = None  # steps in the checkpoint that is being written
        self._due, self._write_ends = run.every, float("inf")
        self._slow_ends = 0.0
        self._events = [(time, "failure", number) for number, time in enumerate(run.failures)]
        self._events += [(time, "preemption", number) for number, time in enumerate(run.preemptions)]
        self._events += [(time, "slow", number) for number, time in enumerate(run.slow)]
        heapq.heapify(self._events)

    def simulate(self) -> dict[str, float]:
        """Simulate the run."""
        while self.done < self.run.steps:
            time, kind, number = self._next()
            if self._slow_ends > self.now:
                time, kind = min((time, kind), (self._slow_ends, "end of slow"))
            end = self.now + (self.run.steps - self.done) * self._pace()
            self._advance(min(time, end))
            if end <= time:
                self.done = self.run.steps
            elif kind == "checkpoint":
                self._save()
            elif kind == "written":
                self.saved, self._pending, self._write_ends = self._pending or 0.0, None, float("inf")
            elif kind != "end of slow":
                heapq.heappop(self._events)
                getattr(self, f"_{kind}")(number)
        return {"total": self.now, **self.lost}

    def _next(self) -> tuple[float, str, int]:
        """Return the next event; those while the run stood still are dropped."""
        while self._events and self._events[0][0] < self.now:
            heapq.heappop(self._events)
        due = float("inf") if self._pending is not None else max(self._due, self.now)
        first = min((due, "checkpoint", 0), (self._write_ends, "written", 0))
        return min(first, self._events[0]) if self._events else first

    def _pace(self) -> float:
        return self.run.step * (self.run.slow_factor if self.now < self._slow_ends else 1.0)

    def _advance(self, time: float) -> None:
        steps = (time - self.now) / self._pace()
        self.lost["slow GPUs"] += time - self.now - steps * self.run.step
        self.now, self.done = time, self.done + steps

    def _stand_still(self, seconds: float, cause: str) -> None:
        self.now += seconds
        self.lost[cause] += seconds

    def _save(self) -> None:
        """Save after the step in progress, as Checkpoint does: at most one state is being written."""
        self._advance(self.now + (-self.done % 1) * self._pace())
        self._pending = float(round(self.done))
        self._stand_still(self.run.capture, "checkpoints")
        self._due, self._write_ends = self.now + self.run.every, self.now + self.run.write

    def _go_on(self) -> None:
        """Resume from the newest checkpoint."""
        self.done, self._pending = self.saved, None
        self._due, self._write_ends = self.now + self.run.every, float("inf")

    def _failure(self, number: int) -> None:
        self._lose_work("failures")
        self._stand_still(self.run.noticed[number] + self.run.restart, "failures")
        self._go_on()

    def _preemption(self, number: int) -> None:
        """All processes save after the same step and end, if the notice is long enough for that."""
        if self.run.capture + self.run.write + self._pace() <= self.run.notice:
            self._advance(self.now + (-self.done % 1) * self._pace())
            self.saved = float(round(self.done))
            self._stand_still(self.run.capture + self.run.write, "preemption")
        else:
            self._lose_work("preemption")
        self._stand_still(self.run.replace + self.run.restart, "preemption")
        self._go_on()

    def _slow(self, number: int) -> None:
        self._slow_ends = self.now + self.run.slow_seconds

    def _lose_work(self, cause: str) -> None:
        """Count the steps since the checkpoint as lost; they are made again."""
        self.lost[cause] += (self.done - self.saved) * self.run.step
