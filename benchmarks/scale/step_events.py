"""Simulates steps of all processes: loaders, the store, GPUs of different speed, and the exchange that waits for all.

Each process has the loaders that a run's DataLoader has: each prepares whole batches in turn and is two batches ahead.
Which process gets how many images is the program's own share. Draws are a function of (seed, step), the same for any
number of processes and whatever else is simulated, so two simulations differ only by what was changed.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np

from scale.paper import Case
from vitreous.data.rng import generator

__all__ = ["Steps", "simulate_steps"]

_AHEAD = 2  # batches for each loader, as DataLoader's prefetch_factor


class Steps(NamedTuple):
    """What was simulated: the mean time of a step once the first half is over, and the longest wait for a process."""

    seconds: float
    longest_wait: float


def simulate_steps(
    case: Case, *, count: int = 160, seed: int = 0, jitter: bool = True, decode: bool = True, store: bool = True
) -> Steps:
    """Simulate so many steps; without `jitter`, `decode` and `store` their causes of lost time do not exist."""
    simulation = _Simulation(case, count, seed, jitter=jitter, decode=decode, store=store and case.layout != "disk")
    ends = simulation.run()
    half = count // 2
    return Steps((ends[-1] - ends[half - 1]) / (count - half), simulation.longest_wait)


class _Simulation:
    def __init__(self, case: Case, count: int, seed: int, *, jitter: bool, decode: bool, store: bool) -> None:
        self.case, self.count, self.seed, given = case, count, seed, case.given
        self.images = case.shares()
        self.jitter, self.decode = given["jitter"] * jitter, given["decode"] * decode
        self.loaders = int(given["cores_per_gpu"])
        in_turn = math.ceil(max(self.images) / given["in_flight"])  # requests of a batch, one after the other
        self.rounds = in_turn if case.layout == "images" else 1
        self.now, self.longest_wait = 0.0, 0.0
        self._events: list[tuple[float, int, str, int, int]] = []
        self._order = itertools.count()
        self._queues = [[deque[int]() for _ in range(self.loaders)] for _ in self.images]
        self._busy = [[False] * self.loaders for _ in self.images]
        self._queued = [0] * len(self.images)
        self._loaded: list[set[int]] = [set() for _ in self.images]
        self._idle: set[int] = set()  # processes that wait for their batch
        self._step, self._computing = 0, 0
        self._finished = [0.0] * len(self.images)
        self._ends: list[float] = []
        self._draws: dict[tuple[str, int], np.ndarray] = {}
        self._store = _Store(self) if store else None

    def run(self) -> list[float]:
        """Simulate all steps; return when each ended."""
        if self._store is not None:
            self._store.begin()
        for ahead in range(1, _AHEAD * self.loaders + 1):
            for rank in range(len(self.images)):
                self._queue(rank, ahead)
        self._begin_step()
        while len(self._ends) < self.count:
            self.now, _, kind, who, number = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(who, number)
        return self._ends

    def at(self, time: float, kind: str, who: int = 0, number: int = 0) -> None:
        """Schedule an event."""
        heapq.heappush(self._events, (time, next(self._order), kind, who, number))

    def draws(self, step: int, stream: str) -> np.ndarray:
        """Return a number for each process, a function of (seed, step, stream)."""
        if (stream, step) not in self._draws:
            random, count = generator(self.seed, step, stream=stream), len(self.images)
            drawn = random.standard_normal(count) if stream == "jitter" else random.standard_gamma(self.rounds, count)
            self._draws[stream, step] = drawn
        return self._draws[stream, step]

    # Loaders

    def _queue(self, rank: int, end: int) -> None:
        for batch in range(self._queued[rank], min(end, self.count)):
            self._queues[rank][batch % self.loaders].append(batch)
            self._load_next(rank, batch % self.loaders)
        self._queued[rank] = max(self._queued[rank], min(end, self.count))

    def _load_next(self, rank: int, loader: int) -> None:
        if self._busy[rank][loader] or not self._queues[rank][loader]:
            return
        self._busy[rank][loader] = True
        batch = self._queues[rank][loader].popleft()
        if self._store is None:
            self._received(rank, batch)
        else:
            self._store.ask(rank, batch)

    def _received(self, rank: int, batch: int) -> None:
        self.at(self.now + self.images[rank] * self.decode, "decoded", rank, batch)

    def _decoded(self, rank: int, batch: int) -> None:
        self._loaded[rank].add(batch)
        self._busy[rank][batch % self.loaders] = False
        self._load_next(rank, batch % self.loaders)
        if rank in self._idle and batch == self._step:
            self._compute(rank)

    def _arrived(self, machine: int, step: int) -> None:
        assert self._store is not None
        self._store.arrived(machine, step)

    # Steps

    def _begin_step(self) -> None:
        self._computing = len(self.images)
        self._idle = set(range(len(self.images)))
        for rank in range(len(self.images)):
            if self._step in self._loaded[rank]:
                self._compute(rank)

    def _compute(self, rank: int) -> None:
        self._idle.discard(rank)
        self._loaded[rank].discard(self._step)
        self._queue(rank, self._step + 1 + _AHEAD * self.loaders)
        seconds = self.case.step.overhead + self.case.step.per_unit * self.images[rank]
        if self.jitter:
            seconds *= math.exp(self.jitter * float(self.draws(self._step, "jitter")[rank]))
        self.at(self.now + seconds, "computed", rank, self._step)

    def _computed(self, rank: int, step: int) -> None:
        self._finished[rank] = self.now
        self._computing -= 1
        if not self._computing:
            self.longest_wait = max(self.longest_wait, self.now - min(self._finished))
            self.at(self.now + self.case.exchange, "exchanged", 0, step)

    def _exchanged(self, _: int, step: int) -> None:
        self._ends.append(self.now)
        self._step = step + 1
        if self._store is not None:
            self._store.consumed(self._step)
        if self._step < self.count:
            self._begin_step()


class _Store:
    """The store and the links to it: all machines share its rate of requests, the GPUs of a machine its link."""

    def __init__(self, simulation: _Simulation) -> None:
        self._simulation, case = simulation, simulation.case
        self._case, self._given = case, case.given
        self._requests_free = 0.0
        self._link_free = [0.0] * case.machines
        self._in_shards = case.layout == "shards"
        self._step_bytes = case.batch * self._given["image_bytes"] * case.touched  # for each machine, with shards
        self._ahead = max(1, int(self._given["cache_bytes"] / self._step_bytes) - 1)
        self._asked = [0] * case.machines  # steps whose shards each machine has asked for
        self._there = [0] * case.machines  # steps whose shards have arrived
        self._waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)

    def begin(self) -> None:
        """Let each machine ask for its first shards."""
        self.consumed(0)

    def ask(self, rank: int, batch: int) -> None:
        """Ask for the images of a batch."""
        given, images = self._given, self._simulation.images[rank]
        machine = rank // int(given["gpus_per_machine"])
        if self._in_shards:
            if batch < self._there[machine]:
                self._simulation._received(rank, batch)
            else:
                self._waiting[machine, batch].append(rank)
            return
        latency = self._latency(batch, rank)
        there = max(self._simulation.now + latency, self._send(machine, images, images * given["image_bytes"]))
        self._simulation.at(there, "received", rank, batch)

    def consumed(self, step: int) -> None:
        """Let each machine ask for shards as far ahead as its cache allows."""
        if not self._in_shards:
            return
        for machine in range(self._case.machines):
            while self._asked[machine] < min(step + self._ahead, self._simulation.count):
                there = self._send(machine, self._step_bytes / self._given["shard_bytes"], self._step_bytes)
                there += self._latency(self._asked[machine], machine)
                self._simulation.at(there, "arrived", machine, self._asked[machine])
                self._asked[machine] += 1

    def arrived(self, machine: int, step: int) -> None:
        """Hand the images of a step to the loaders that wait for them."""
        self._there[machine] = max(self._there[machine], step + 1)
        for rank in self._waiting.pop((machine, step), ()):
            self._simulation._received(rank, step)

    def _latency(self, step: int, who: int) -> float:
        """Return the time that requests made in turn wait: half of the mean latency, and at random as much again."""
        drawn = float(self._simulation.draws(step, "latency")[who])
        return self._given["store_latency"] * (self._simulation.rounds + drawn) / 2

    def _send(self, machine: int, requests: float, count: float) -> float:
        """Occupy the store's requests and the machine's link; return when both are done."""
        now, given = self._simulation.now, self._given
        self._requests_free = max(self._requests_free, now) + requests / given["store_requests"]
        self._link_free[machine] = max(self._link_free[machine], now) + count / given["store_rate"]
        return max(self._requests_free, self._link_free[machine])
