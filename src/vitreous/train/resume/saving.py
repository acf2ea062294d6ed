"""How the state of a run is saved, and which of the two kept checkpoints a resume reads.

A state is a copy, written by a thread while training continues. When that happens is in `checkpoint.py`, what a state
holds in `state.py`, the file format in `vitreous.runs.state_file`.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitreous.errors import CheckpointError
from vitreous.runs.folder import LAST, PREVIOUS
from vitreous.runs.lock import Lock
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.resume.state import RunState

__all__ = ["LAST", "PREVIOUS", "Saver", "load_newest"]


def load_newest(run_dir: Path, warn: Callable[[str], None], *, whole: bool = True) -> tuple[Path, RunState] | None:
    """Read the newest intact state of a run, and return it with its file; None if nothing has been saved yet.

    `warn` is called with a line about each damaged file that is skipped. Without `whole`, tensors in shards are left to
    the caller to read (:mod:`vitreous.runs.shards`).
    """
    damaged = []
    for name in (LAST, PREVIOUS):
        path = run_dir / name
        if not os.path.lexists(path):
            continue
        try:
            state = _read(path, whole)
        except CheckpointError as error:
            damaged.append(f"{error}" if str(path) in str(error) else f"'{path}' cannot be used: {error}")
            continue
        for line in damaged:
            warn(f"{line}; '{path}' is used instead")
        return path, state
    if damaged:
        raise CheckpointError(f"no usable checkpoint: {'; '.join(damaged)}. Start a new run with another --out")
    return None


def _read(path: Path, whole: bool) -> RunState:
    content = read_state(path)
    if isinstance(content, dict) and "shards" in content:
        from vitreous.runs.shards import open_shards, read_whole  # no run of one process pays for it

        content = open_shards(path.parent, content)
        content = read_whole(path.parent, content) if whole else content
    return RunState.from_dict(content)


class Saver:
    """Writes states one at a time, in a background thread.

    The newest checkpoint becomes the previous one only if it is known to be intact: either this process wrote it, or it
    passes its checksum when read again. Otherwise it is overwritten, and the previous one stays.
    """

    def __init__(self, run_dir: Path, lock: Lock) -> None:
        self._run_dir, self._lock = run_dir, lock
        self.saved: str | None = None
        """The point of the run that is safe on disk, in words; None if nothing is."""
        self._written: tuple[int, ...] | None = None  # the signature of the newest file, as this process wrote it
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a state is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, state: RunState) -> None:
        """Start writing a state, which must not be modified afterwards."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(state,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the state is written; raise the error if it could not be."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of the background thread, if there is one, without waiting."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, state: RunState) -> None:
        self._lock.record(saving=True)
        try:
            self._store(state)
            self.saved = state.where
        except BaseException as error:
            self._error = error
        finally:
            self._lock.record(saving=False)

    def _store(self, state: RunState) -> None:
        """Write a state, in the background thread."""
        self._replace(state.to_dict(), state.identity)

    def _replace(self, content: dict[str, Any], identity: dict[str, str]) -> None:
        last, previous = self._run_dir / LAST, self._run_dir / PREVIOUS
        write_state(last, content, keep=previous if self._is_intact(last, identity) else None)
        self._written = _signature(last)
        if any(self._run_dir.glob("shards-*")):  # of this run, or of one that it continues
            from vitreous.runs.shards import remove_unused

            remove_unused(self._run_dir, (last, previous))

    def _is_intact(self, last: Path, identity: dict[str, str]) -> bool:
        """Return whether the newest file is an intact state of this run, which may replace the previous one."""
        signature = _signature(last)
        if signature is None or signature == self._written:
            return signature is not None
        try:
            stored = _read(last, whole=False).identity
        except CheckpointError:
            return False
        return {**stored, "recipe": ""} == {**identity, "recipe": ""}  # the recipe may ask for more epochs by now


def _signature(path: Path) -> tuple[int, ...] | None:
    """Return what changes whenever a file is rewritten; None if the path is not a regular file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
