"""Where the time of a run goes: the simulated steps and the simulated run of a case, divided into causes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from scale.paper import DAY, Case
from scale.run_events import Run, arrivals, ending_seconds, noticed_after, simulate_run
from scale.step_events import Steps, simulate_steps
from vitreous.data.rng import generator

__all__ = ["LOST", "Outcome", "failure_noticed", "simulate"]

LOST = ("small shares", "exchange", "stragglers", "decoding", "store", "checkpoints", "failures", "preemption")
"""Causes of lost time. Small shares: what a step costs however few images it has, and shares that differ by a pair.
Stragglers: waiting for the slowest of the GPUs that compute, also while one is slow for long."""


@dataclass(frozen=True)
class Outcome:
    """A run as simulated; times in seconds, means over the seeds."""

    case: Case
    step: float
    total: float
    lost: dict[str, float]  # by cause, of the whole run
    longest_wait: float  # of the processes for the last one, in a step

    @property
    def useful(self) -> float:
        """Fraction of the time that the GPUs would need if nothing were lost."""
        return 1.0 - sum(self.lost.values()) / self.total

    @property
    def bottleneck(self) -> tuple[str, float]:
        """The cause that costs most, and its fraction of the time."""
        cause = max(LOST, key=lambda each: self.lost[each])
        return cause, self.lost[cause] / self.total

    @property
    def images_per_second(self) -> float:
        """Images of all GPUs while they train."""
        return self.case.batch / self.step


def failure_noticed(case: Case, *, near: bool = False, hangs: bool = False) -> float:
    """Return the time from a failure to the end of the command, on the first machine or on another."""
    per_machine = int(case.given["gpus_per_machine"])
    rank = min(1, case.gpus - 1) if near else case.gpus - 1
    return noticed_after(case.gpus, per_machine, rank, hangs=hangs) + ending_seconds(hangs=hangs)


def simulate(case: Case, *, seed: int = 0, runs: int = 20, steps: int = 160) -> Outcome:
    """Simulate steps once, and the whole run with so many draws of its failures."""
    even = simulate_steps(case, count=steps, seed=seed, decode=False, store=False)
    decoding = simulate_steps(case, count=steps, seed=seed, store=False)
    everything = simulate_steps(case, count=steps, seed=seed) if case.layout != "disk" else decoding
    each = {
        "small shares": case.computing - case.ideal,
        "exchange": case.exchange,
        "stragglers": even.seconds - case.computing - case.exchange,
        "decoding": decoding.seconds - even.seconds,
        "store": everything.seconds - decoding.seconds,
    }
    drawn = [simulate_run(_run(case, everything, seed + number)) for number in range(runs)]
    lost = {cause: case.steps * seconds for cause, seconds in each.items()}
    lost["stragglers"] += fmean(run["slow GPUs"] for run in drawn)
    lost |= {cause: fmean(run[cause] for run in drawn) for cause in ("checkpoints", "failures", "preemption")}
    return Outcome(case, everything.seconds, fmean(run["total"] for run in drawn), lost, everything.longest_wait)


def _run(case: Case, steps: Steps, seed: int) -> Run:
    given, end = case.given, 10 * case.steps * steps.seconds
    failures = arrivals(case.failures_per_day / DAY, end, seed, "failures")
    near, hangs = int(given["gpus_per_machine"]) / case.gpus, given["hangs"]
    kinds = generator(seed, stream="kinds").random((len(failures), 2))
    noticed = [failure_noticed(case, near=bool(place < near), hangs=bool(kind < hangs)) for place, kind in kinds]
    return Run(
        steps=case.steps,
        step=steps.seconds,
        every=case.every,
        capture=case.capture,
        write=case.write,
        failures=failures,
        noticed=noticed,
        preemptions=arrivals(case.spot * case.machines * given["preemptions_per_machine_day"] / DAY, end, seed, "spot"),
        slow=arrivals(case.gpus * given["slow_per_gpu_day"] / DAY, end, seed, "slow"),
        restart=given["requeue"] + given["start"],
        replace=given["replace"],
        notice=given["notice"],
        slow_factor=given["slow_factor"],
        slow_seconds=given["slow_seconds"],
    )
