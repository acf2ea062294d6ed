"""Processes that look at files, each watched: a file that hangs or crashes its decoder is named, and the rest go on.

A thread per process hands it one file after another and waits for the answer. Nothing here opens a picture.
"""

from __future__ import annotations

import base64
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from vitreous.audit.look import Look
from vitreous.audit.worker import SECONDS
from vitreous.data.images.watched.child import Child, Gone
from vitreous.data.images.watched.limits import reason_of
from vitreous.data.images.watched.pool import STOPS
from vitreous.data.sources.scan import Progress
from vitreous.errors import DataError

__all__ = ["STOPS", "cores", "look_at", "pixels_of", "shown"]

_WALL = 60.0  # seconds after which a file is given up that waits for something else: a dead network disk
_FEW = 16  # files a process is worth starting for
_WORKER = ("-m", "vitreous.audit.worker")
_TICK = 0.25  # seconds between two looks at the clock

Task = tuple[Literal["look", "pixels", "shown"], str]


class _Stopped(str):
    """Why there is no answer."""

    __slots__ = ()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def look_at(paths: Sequence[Path], workers: int | None = None, progress: Progress | None = None) -> list[Look]:
    """Look at files, in processes of their own.

    Args:
        paths: Files.
        workers: Processes; None is one per core.
        progress: Called with (done, total), from this thread.

    Returns:
        A look per path, in the order of the paths. A file that a process did not survive has a reason like any other
        that cannot be used.

    Raises:
        DataError: If no process can be started.
    """

    def read(found: Any) -> Look:
        if isinstance(found, _Stopped):
            return Look(STOPS + found)
        lists = {"size": tuple(found["size"]), "hashes": tuple(found["hashes"])}
        return Look(**{**found, **lists, "thumb": base64.b64decode(found["thumb"])})

    return _all([("look", os.fspath(path)) for path in paths], read, workers, progress)


def pixels_of(paths: Sequence[Path], workers: int | None = None, progress: Progress | None = None) -> list[str]:
    """Hash the pixels of pictures, as :func:`vitreous.audit.look.pixels_digest`; empty where that fails."""
    tasks: list[Task] = [("pixels", os.fspath(path)) for path in paths]
    return _all(tasks, lambda found: "" if isinstance(found, _Stopped) else str(found), workers, progress)


def shown(paths: Sequence[Path], workers: int | None = None, progress: Progress | None = None) -> list[str]:
    """Small JPEGs of pictures in base 64, as :func:`vitreous.audit.look.small_jpeg`; empty where that fails."""
    tasks: list[Task] = [("shown", os.fspath(path)) for path in paths]
    return _all(tasks, lambda found: "" if isinstance(found, _Stopped) else str(found), workers, progress)


def _all(
    tasks: Sequence[Task], read: Callable[[Any], Any], workers: int | None, progress: Progress | None
) -> list[Any]:
    """Have every task answered, in processes; the answers in the order of the tasks."""
    results: list[Any] = [None] * len(tasks)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for position in range(len(tasks)):
        waiting.put(position)
    count = min(workers or cores(), -(-len(tasks) // _FEW))
    hands = [_Hand(tasks, waiting, done) for _ in range(count)]
    try:
        for finished in range(len(tasks)):
            position, found = _next(done, hands)
            results[position] = read(found)
            if progress is not None:
                progress(finished + 1, len(tasks))
    finally:
        for hand in hands:
            hand.stop()
    return results


def _next(done: queue.SimpleQueue[tuple[int, Any]], hands: Iterable[_Hand]) -> tuple[int, Any]:
    """The next answer; meanwhile those that take too long are ended."""
    while True:
        try:
            position, found = done.get(timeout=_TICK)
        except queue.Empty:
            for hand in hands:
                hand.check_the_clock()
            continue
        if position < 0:
            raise DataError(f"a process that looks at pictures could not be started: {found}")
        return position, found


class _Hand:
    """A thread with a process, which it replaces when a file ends it."""

    def __init__(
        self, tasks: Sequence[Task], waiting: queue.SimpleQueue[int], done: queue.SimpleQueue[tuple[int, Any]]
    ) -> None:
        self.tasks, self.waiting, self.done = tasks, waiting, done
        self.child: Child | None = None
        self.since = float("inf")  # when the present file was given to it
        self.late = False
        self.stopped = False
        self.thread = threading.Thread(target=self._run, name="vitreous-audit", daemon=True)
        self.thread.start()

    def check_the_clock(self) -> None:
        """End the process if its file takes too long; without a limit on processor time, sooner."""
        limit = _WALL if hasattr(signal, "SIGXCPU") else SECONDS
        if time.monotonic() - self.since > limit and self.child is not None:
            self.late = True
            self.child.kill()

    def stop(self) -> None:
        """End the process and the thread."""
        self.stopped = True
        if self.child is not None:
            self.child.kill()
        self.thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self.stopped:
                try:
                    position = self.waiting.get_nowait()
                except queue.Empty:
                    break
                self.done.put((position, self._ask(self.tasks[position])))
        except OSError as error:
            self.done.put((-1, error))
        finally:
            child, self.child = self.child, None
            if child is not None:
                child.end()

    def _ask(self, task: Task) -> Any:
        """The answer to a task; a :class:`Stopped` that says why there is none where the process did not survive it."""
        if self.child is None:
            self.child = _start()
        self.late, self.since = False, time.monotonic()
        try:
            return self.child.ask(task)[0]
        except Gone as gone:
            self.child = None
            return _Stopped(reason_of(gone.code, self.late, SECONDS))
        finally:
            self.since = float("inf")


def _start() -> Child:
    """Start a process that looks at files.

    Raises:
        OSError: If it cannot be started.
    """
    return Child(_WORKER)
