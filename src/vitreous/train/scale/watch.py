"""Ends a run whose processes are stuck or gone: names them, saves a checkpoint, and writes the stacks of all.

Each process has a thread that shows a heartbeat (heartbeat.py) and reads those of the others. The first process decides
what is wrong; if it is itself silent, the next one does. The decision is a file, RUN/ranks/verdict.json, on which all
processes end. The training loop takes no part, since it may be what hangs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vitreous.train.scale.heartbeat import FOLDER, Pulse, beat_file, read_beat, stack_file, write_beat

__all__ = ["STACKS", "Seen", "Verdict", "Watch", "judge"]

STACKS = "stacks.txt"
"""Name of the file in the run directory with the Python stacks of all processes of a run that was stuck."""

_INTERVAL = 1.0  # seconds between two looks
_SILENT = 40.0  # seconds after which a process that shows nothing is stuck; its report follows within 60 s
_LONGEST_STEP = 40.0  # seconds that processes wait in training for one that does not
_LONGEST_OTHER = 600.0  # seconds that they wait for it before the second step, which may compile, and after training
_FIRST_POSITIONS = 8  # exchanges of the first steps
_COLLECT = 3.0  # seconds that all have to write their stacks
_SAVE = 60.0  # seconds for the checkpoint of a run that ends
_LINGER = 90.0  # seconds after which a process ends that waits for the report of another


@dataclass(frozen=True)
class Verdict:
    """Why a run ends: which processes, and the reason in words."""

    ranks: list[int]
    text: str
    stuck: bool  # whether they still exist, so that stacks help


@dataclass
class Seen:
    """What another process showed last, and for how long nothing else."""

    facts: dict[str, Any] = field(default_factory=dict)
    beat_at: float = 0.0  # time.monotonic() of this process, when the last new beat was seen
    moved_at: float = 0.0  # the same for the last change of its position or of its waiting

    def update(self, facts: dict[str, Any], now: float) -> None:
        """Take in the file of the process; one that cannot be read says nothing."""
        if not facts:
            return
        if facts.get("beats") != self.facts.get("beats"):
            self.beat_at = now
        names = ("position", "is_waiting", "phase", "work")
        if [facts.get(name) for name in names] != [self.facts.get(name) for name in names]:
            self.moved_at = now
        self.facts = facts

    def describe(self, rank: int) -> str:
        """Name the process, and where it is."""
        if not self.facts:
            return f"process {rank}, which has not begun"
        where = f"epoch {self.facts['epoch']}, step {self.facts['step']}" if self.facts["epoch"] else "no step yet"
        return f"process {rank} (pid {self.facts['pid']} on {self.facts['host']}, {where})"


def judge(seen: dict[int, Seen], now: float) -> Verdict | None:
    """Decide from what the processes show whether the run has to end, and why."""
    present = {rank: each for rank, each in seen.items() if each.facts.get("phase") != "done"}
    for rank, each in present.items():
        if each.facts.get("failure") and not each.facts.get("lost"):
            return Verdict([rank], f"{each.describe(rank)} failed: {each.facts['failure']}", stuck=False)
    if gone := [rank for rank, each in present.items() if _is_gone(each.facts)]:
        return Verdict(gone, f"{_names(present, gone)} was killed or has crashed", stuck=False)
    if silent := [rank for rank, each in present.items() if now - each.beat_at > _SILENT]:
        longest = max(now - present[rank].beat_at for rank in silent)
        return Verdict(silent, f"{_names(present, silent)} is stuck: no sign of life for {longest:.0f} s", stuck=True)
    return _judge_waiting(present, now)


def _judge_waiting(present: dict[int, Seen], now: float) -> Verdict | None:
    """Decide whether some processes have waited for too long for the others, all of which run."""
    waiting = {rank for rank, each in present.items() if each.facts.get("is_waiting") or each.facts.get("lost")}
    others = [rank for rank in present if rank not in waiting]
    if not waiting or any(present[rank].facts.get("work") for rank in others):
        return None
    longest = max(now - present[rank].moved_at for rank in waiting)
    in_training = all(
        each.facts.get("phase") == "training" and each.facts["position"] >= _FIRST_POSITIONS
        for each in present.values()
    )
    if longest <= (_LONGEST_STEP if in_training else _LONGEST_OTHER):
        return None
    if others:
        return Verdict(
            others, f"{_names(present, others)} is stuck: the others have waited for {longest:.0f} s", stuck=True
        )
    return Verdict([], f"all processes have waited for each other for {longest:.0f} s: check the network", stuck=True)


def _names(seen: dict[int, Seen], ranks: list[int]) -> str:
    return " and ".join(seen[rank].describe(rank) for rank in ranks)


def _is_gone(facts: dict[str, Any]) -> bool:
    """Return whether a process of this machine has ended."""
    if facts.get("host") != platform.node():
        return False
    try:
        with open(f"/proc/{facts['pid']}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except FileNotFoundError:
        return os.path.isdir("/proc/self")
    except (OSError, IndexError):
        return False


class Watch:
    """The thread of a process that shows its heartbeat and watches the others; use it as a context.

    `rescue` saves a checkpoint and returns the advice to print; it is called in the thread of one process.
    """

    def __init__(self, run_dir: Path, rank: int, world: int, pulse: Pulse, rescue: Callable[[], str]) -> None:
        self._run_dir, self._rank, self._world, self._pulse, self._rescue = run_dir, rank, world, pulse, rescue
        self._seen = {each: Seen(beat_at=time.monotonic(), moved_at=time.monotonic()) for each in range(world)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="vitreous-watch", daemon=True)
        self._stacks: IO[str] | None = None
        self._parent = os.getppid()

    def __enter__(self) -> Watch:
        (self._run_dir / FOLDER).mkdir(exist_ok=True)
        self._stacks = stack_file(self._run_dir, self._rank).open("w", encoding="utf-8")
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if error is not None and isinstance(error, Exception):
            self.post(Verdict([self._rank], str(error), stuck=False))  # this process says it; the others end
        self._over.set()
        self._thread.join()
        faulthandler.unregister(signal.SIGUSR1)
        if self._stacks is not None:
            self._stacks.close()
        self._pulse.phase = "done"
        write_beat(beat_file(self._run_dir, self._rank), self._pulse, -1)

    def post(self, verdict: Verdict) -> bool:
        """Announce the end of the run; return False if another process has done so already."""
        text = json.dumps({**vars(verdict), "by": self._rank})
        try:
            with (self._run_dir / FOLDER / "verdict.json").open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            return False
        return True

    def wait_for_end(self) -> None:
        """Wait until the thread ends this process, after another process is lost."""
        time.sleep(_SILENT + _SAVE + _LINGER)

    def _loop(self) -> None:
        beats = 0
        while not self._over.wait(_INTERVAL if beats else 0):
            beats += 1
            write_beat(beat_file(self._run_dir, self._rank), self._pulse, beats)
            if (self._run_dir / FOLDER / "verdict.json").exists():
                self._obey()
            elif self._is_in_charge():
                verdict = judge(self._seen, time.monotonic())
                if verdict is not None and self.post(verdict):
                    self._end(verdict)
            if os.getppid() != self._parent:  # the command that started this process is gone
                self._parent = os.getppid()
                os.kill(os.getpid(), signal.SIGTERM)

    def _is_in_charge(self) -> bool:
        """Look at the others; return whether this process decides: the first one that shows a sign of life."""
        now = time.monotonic()
        for rank in range(self._rank):
            self._seen[rank].update(read_beat(beat_file(self._run_dir, rank)), now)
            each = self._seen[rank]
            alive = now - each.beat_at <= _SILENT and not _is_gone(each.facts)
            if alive and each.facts.get("phase") != "done":
                return False
        for rank in range(self._rank, self._world):
            self._seen[rank].update(read_beat(beat_file(self._run_dir, rank)), now)
        return True

    def _end(self, verdict: Verdict) -> None:
        """Save, collect the stacks of all, print the reason, and end this process."""
        advice = _within(_SAVE, self._rescue) or "no checkpoint could be saved"
        where = ""
        if verdict.stuck:
            self._dump()
            self._signal(verdict.ranks)
            time.sleep(_COLLECT)
            self._write_stacks(verdict)
            where = f" The Python stacks of all processes are in {self._run_dir / STACKS}."
        with contextlib.suppress(OSError):  # nobody may be left to read it
            sys.stderr.write(f"vitreous: {verdict.text}.{where} {advice}\n")
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            (self._run_dir / FOLDER / "reported").touch()
        time.sleep(2 * _INTERVAL)
        if not self._over.is_set():
            shutil.rmtree(self._run_dir / FOLDER, ignore_errors=True)
        _exit()

    def _obey(self) -> None:
        """End this process, as another one has decided."""
        try:
            verdict = json.loads((self._run_dir / FOLDER / "verdict.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if verdict["by"] == self._rank:
            return
        self._dump()
        with contextlib.suppress(LookupError, TypeError):
            if verdict["stuck"] and self._rank not in verdict["ranks"]:
                self._signal(verdict["ranks"])
        deadline = time.monotonic() + _LINGER
        while time.monotonic() < deadline and verdict["stuck"]:
            if (self._run_dir / FOLDER / "reported").exists() or not (self._run_dir / FOLDER).exists():
                break
            time.sleep(_INTERVAL / 2)
        _exit()

    def _dump(self) -> None:
        if self._stacks is not None:
            faulthandler.dump_traceback(self._stacks, all_threads=True)

    def _signal(self, ranks: list[int]) -> None:
        """Make stuck processes of this machine write their stacks, stopped ones too, and then kill them."""
        own = [read_beat(beat_file(self._run_dir, rank)) for rank in ranks if rank != self._rank]
        pids = [facts["pid"] for facts in own if facts.get("host") == platform.node()]
        for number in (signal.SIGUSR1, signal.SIGCONT, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            time.sleep(_INTERVAL if number == signal.SIGCONT else 0)

    def _write_stacks(self, verdict: Verdict) -> None:
        texts = [f"{verdict.text}\n"]
        for rank in range(self._world):
            with contextlib.suppress(OSError):
                stacks = stack_file(self._run_dir, rank).read_text(encoding="utf-8", errors="replace")
                texts.append(f"\n{self._seen[rank].describe(rank)}:\n{stacks}")
        with contextlib.suppress(OSError):
            (self._run_dir / STACKS).write_text("".join(texts), encoding="utf-8")


def _within(seconds: float, function: Callable[[], str]) -> str | None:
    """Return the result of a function, or None if it fails or takes longer."""
    results: list[str] = []

    def call() -> None:
        with contextlib.suppress(Exception):
            results.append(function())

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def _exit() -> None:
    """End the process at once: its other threads may wait for ever."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)
