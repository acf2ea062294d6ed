"""A pool of watched processes that inspect files: a file that hangs or crashes its decoder is reported, the rest go on.

One thread per process sends it one file after another and waits for the result. No image is opened in this process.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from vitreous.audit.look import Inspection
from vitreous.audit.worker import SECONDS
from vitreous.data.images.headers import UnreadableError
from vitreous.data.images.stored import ImagePath, StoredImage
from vitreous.data.images.watched.child import Child, ChildExited
from vitreous.data.images.watched.limits import exit_reason
from vitreous.data.images.watched.pool import DECODER_EXIT_PREFIX
from vitreous.data.sources.scan import Progress
from vitreous.errors import DataError, VitreousError
from vitreous.machine.cores import num_cores

__all__ = ["DECODER_EXIT_PREFIX", "hash_pixels", "look_at", "make_thumbnails"]

_WALL_SECONDS = 60.0  # after which a file is given up that uses no processor time, as on a dead network disk
_MIN_FILES = 16  # per process
_WORKER = ("-m", "vitreous.audit.worker")
_TICK = 0.25  # seconds between checks for files that take too long

Action = Literal["look", "pixels", "thumbnail"]


class _Failed(str):
    """Why a process did not survive a file."""

    __slots__ = ()


def look_at(
    paths: Sequence[ImagePath], workers: int | None = None, progress: Progress | None = None
) -> list[Inspection]:
    """Inspect files in processes, by default one per core; a file that its process did not survive has a `reason`."""

    def read(result: Any) -> Inspection:
        if isinstance(result, _Failed):
            return Inspection(DECODER_EXIT_PREFIX + result)
        tuples = {"size": tuple(result["size"]), "hashes": tuple(result["hashes"])}
        return Inspection(**{**result, **tuples, "thumb": base64.b64decode(result["thumb"])})

    return [read(result) for result in _process("look", paths, workers, progress)]


def hash_pixels(paths: Sequence[ImagePath], workers: int | None = None, progress: Progress | None = None) -> list[str]:
    """Hash the pixels of files, as :func:`vitreous.audit.look.pixels_digest`; empty where that fails."""
    return ["" if isinstance(r, _Failed) else str(r) for r in _process("pixels", paths, workers, progress)]


def make_thumbnails(
    paths: Sequence[ImagePath], workers: int | None = None, progress: Progress | None = None
) -> list[str]:
    """Return base64 JPEGs of files, as :func:`vitreous.audit.look.small_jpeg`; empty where that fails."""
    return ["" if isinstance(r, _Failed) else str(r) for r in _process("thumbnail", paths, workers, progress)]


def _process(action: Action, paths: Sequence[ImagePath], workers: int | None, progress: Progress | None) -> list[Any]:
    results: list[Any] = [None] * len(paths)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for index in range(len(paths)):
        waiting.put(index)
    count = min(workers or num_cores(), math.ceil(len(paths) / _MIN_FILES))
    pool = [_Worker(action, paths, waiting, done) for _ in range(count)]
    try:
        for finished in range(len(paths)):
            index, result = _next(done, pool)
            results[index] = result
            if progress is not None:
                progress(finished + 1, len(paths))
    finally:
        for worker in pool:
            worker.stop()
    return results


def _next(done: queue.SimpleQueue[tuple[int, Any]], pool: Iterable[_Worker]) -> tuple[int, Any]:
    """Wait for the next result, and kill processes that take too long."""
    while True:
        try:
            index, result = done.get(timeout=_TICK)
        except queue.Empty:
            for worker in pool:
                worker.check_time()
            continue
        if isinstance(result, VitreousError):  # the images lie in a store, which fails
            raise result
        if index < 0:
            raise DataError(f"a process for reading images could not be started: {result}")
        return index, result


class _Worker:
    """A thread with a process, which it replaces when a file ends it."""

    def __init__(
        self,
        action: Action,
        paths: Sequence[ImagePath],
        waiting: queue.SimpleQueue[int],
        done: queue.SimpleQueue[tuple[int, Any]],
    ) -> None:
        self.action, self.paths, self.waiting, self.done = action, paths, waiting, done
        self.child: Child | None = None
        self.started = float("inf")  # when the process received its current file
        self.is_late = False
        self.is_stopped = False
        self.thread = threading.Thread(target=self._run, name="vitreous-audit", daemon=True)
        self.thread.start()

    def check_time(self) -> None:
        """Kill the process if its file takes too long: sooner where the system cannot limit processor time."""
        limit = _WALL_SECONDS if hasattr(signal, "SIGXCPU") else SECONDS
        if time.monotonic() - self.started > limit and self.child is not None:
            self.is_late = True
            self.child.kill()

    def stop(self) -> None:
        """End process and thread."""
        self.is_stopped = True
        if self.child is not None:
            self.child.kill()
        self.thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self.is_stopped:
                try:
                    index = self.waiting.get_nowait()
                except queue.Empty:
                    break
                self.done.put((index, self._request(self.paths[index])))
        except (OSError, VitreousError) as error:
            self.done.put((-1, error))
        finally:
            child, self.child = self.child, None
            if child is not None:
                child.end()

    def _request(self, path: ImagePath) -> Any:
        """Return the result for a file, or :class:`_Failed` if the process did not survive it."""
        if self.child is None:
            self.child = _start()
        try:
            stored = [path.read()] if isinstance(path, StoredImage) else []
        except UnreadableError as error:
            return dataclasses.asdict(Inspection(str(error))) | {"thumb": ""} if self.action == "look" else ""
        self.is_late, self.started = False, time.monotonic()
        try:
            return self.child.ask((self.action, os.fspath(path)), stored, sum(map(len, stored)))[0]
        except ChildExited as gone:
            self.child = None
            return _Failed(exit_reason(gone.code, self.is_late, SECONDS))
        finally:
            self.started = float("inf")


def _start() -> Child:
    return Child(_WORKER)
