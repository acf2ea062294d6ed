"""What each process of a run shows of itself, once a second, in a file of the run directory: RUN/ranks/3.json.

A thread writes the file, so it shows whether the process runs at all; what it says of the training loop shows whether
that goes on. Files reach the other machines where sockets may be what hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.files.opening import read_facts

__all__ = ["FOLDER", "Pulse", "beat_file", "read_beat", "stack_file", "write_beat"]

FOLDER = "ranks"
"""Name of the folder in the run directory."""

_LARGEST = 1 << 14  # bytes; an error alone may take 6,000


@dataclass
class Pulse:
    """Where a process is. The training loop sets the fields, and the thread that writes them only reads."""

    phase: str = "starting"  # "training" while all processes take the same steps together; "done" at the end
    epoch: int = 0  # counted from 1
    step: int = 0  # optimiser steps of the whole run
    position: int = 0  # exchanges completed in training
    is_waiting: bool = False  # whether it waits for the others
    work: str | None = None  # what it does alone while the others wait, such as saving; this is never stuck
    failure: str | None = None  # its error, for the others to see
    lost: bool = False  # whether the error is that another process is gone

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark that the process waits for the others."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False
            self.position += 1

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Mark that the process does something alone."""
        before, self.work = self.work, what
        try:
            yield
        finally:
            self.work = before

    def fail(self, error: BaseException, lost: bool) -> None:
        """Show an error to the other processes."""
        self.failure, self.lost = " ".join(str(error).split())[:1000] or type(error).__name__, lost


def beat_file(run_dir: Path, rank: int) -> Path:
    """Return the file in which a process shows itself."""
    return run_dir / FOLDER / f"{rank}.json"


def stack_file(run_dir: Path, rank: int) -> Path:
    """Return the file to which a process writes its Python stacks."""
    return run_dir / FOLDER / f"{rank}.stacks"


def write_beat(path: Path, pulse: Pulse, beats: int) -> None:
    """Write the file; a full disk is left to the next checkpoint to report."""
    facts = {**vars(pulse), "beats": beats, "pid": os.getpid(), "host": platform.node()}
    with contextlib.suppress(OSError):
        written = path.with_suffix(".tmp")
        written.write_text(json.dumps(facts), encoding="utf-8")
        written.replace(path)


def read_beat(path: Path) -> dict[str, Any]:
    """Read the file of a process; an empty dict if there is none yet."""
    return read_facts(path, _LARGEST)
