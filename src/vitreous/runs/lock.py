"""One run to a folder: a file says who holds it, and the system's lock on that file ends with whoever held it.

The lock is the process's own (POSIX record locks): workers that outlive a killed run for some seconds do not hold it.
Where a folder is shared between machines and the file system keeps no locks, a sign of life in the file counts.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.errors import OutputError, TrainingError
from vitreous.files.opening import read_regular

try:
    import fcntl
except ImportError:  # Windows: the process's number and the sign of life have to do
    fcntl = None  # type: ignore[assignment,unused-ignore]

__all__ = ["NAME", "Lock", "locked"]

NAME = "run.lock"
"""Of the file in a run's folder."""

_BEAT = 10.0  # seconds, at least, between two signs of life
_PATIENCE = 30.0  # seconds in which a holder on another machine must give one
_LENGTH = 512  # bytes of the file, always: it is written over in one piece

_LARGEST = 1 << 12  # bytes of a file that may be a lock's
_AS_IT_IS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

_held: set[str] = set()  # by this process, whose own locks never stand in its way
_guard = threading.Lock()


class Lock:
    """A folder that is held.

    Attributes:
        taken_over: Who held it last and is gone; None where nobody did.
    """

    def __init__(self, path: Path, handle: int, taken_over: str | None) -> None:
        self.taken_over = taken_over
        self._path, self._handle = path, handle
        self._writing = threading.Lock()
        self._facts: dict[str, Any] = {
            "host": platform.node(),
            "pid": os.getpid(),
            "since": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "boot": _boot(),
            "phase": "starting",
            "saving": False,
        }
        self._beats = 0
        self._write()

    def say(self, **facts: Any) -> None:
        """Write what the run is doing: `phase`, a text, or `saving`, while a checkpoint is being written."""
        self._facts.update(facts)
        self._write()

    def live(self) -> None:
        """Give a sign of life, if the last one is old. Called from the loops: a thread of its own would be forked."""
        if time.monotonic() - self._written > _BEAT:
            self._beats += 1
            self._write()

    def release(self) -> None:
        """Let the folder go; the file is removed."""
        with contextlib.suppress(OSError):  # the folder may be gone, or read-only by now
            self._path.unlink()
        with self._writing:
            os.close(self._handle)
            self._handle = -1

    def _write(self) -> None:
        self._written = time.monotonic()
        text = json.dumps({**self._facts, "beats": self._beats}).encode().ljust(_LENGTH - 1) + b"\n"
        with self._writing, contextlib.suppress(OSError):  # a full disk is the checkpoint's to report
            if self._handle >= 0:
                os.lseek(self._handle, 0, os.SEEK_SET)
                os.write(self._handle, text)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Lock]:
    """Hold a run's folder.

    Args:
        folder: It must exist.

    Raises:
        TrainingError: If another run holds it; the message says which.
        OutputError: If nothing can be written into it.
    """
    path = folder / NAME
    key = os.path.realpath(folder)
    with _guard:
        if key in _held:
            raise TrainingError(
                f"'{folder}' is in use by another run of this process: wait for it, or give another --out"
            )
        _held.add(key)
    try:
        lock = _take(folder, path)
        try:
            yield lock
        finally:
            lock.release()
    finally:
        _held.discard(key)


def _take(folder: Path, path: Path) -> Lock:
    """Open the file and lock it, as often as it was removed by its holder in between."""
    while True:
        handle = _open(folder, path)
        try:
            there = _read(path)  # before the lock: to close any handle of the file would let it go again
            if _alive_elsewhere(path, there) or not _lock(handle, there):
                raise TrainingError(
                    f"'{folder}' is in use by {_who(there)}: wait for it, stop it, or give another --out"
                )
            with contextlib.suppress(FileNotFoundError):
                status = os.fstat(handle)
                if os.path.samestat(os.stat(path, follow_symlinks=False), status):
                    if status.st_nlink == 1:
                        return Lock(path, handle, _who(there) if there else None)
                    path.unlink()  # the file has another name too, whose content is not a run's to write over
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _open(folder: Path, path: Path) -> int:
    """Open the file of a lock, which is made where it is missing; nothing but a regular file, and no link.

    A folder may come from elsewhere: what is written would go through a link to any file of the user.
    """
    with contextlib.suppress(FileNotFoundError):
        _refuse_special(path, os.lstat(path))  # before opening: to open a device may have effects
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _AS_IT_IS, 0o666)
    except OSError as error:
        raise OutputError(
            f"cannot write into the run's folder '{folder}': {error.strerror or error}. Give another with --out"
        ) from error
    try:
        _refuse_special(path, os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _refuse_special(path: Path, status: os.stat_result) -> None:
    """Raise where a lock's name is that of a link, a pipe or the like."""
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no regular file"
        raise OutputError(f"'{path}' is {kind}, where a run keeps a file: remove it, or give another --out")


def _lock(handle: int, there: dict[str, Any]) -> bool:
    """Take the system's lock; where it has none for this file, look whether the process that is named still runs."""
    try:
        if fcntl is not None:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        pass
    same_start, pid = there.get("host") == platform.node() and there.get("boot") == _boot(), there.get("pid")
    return not (same_start and isinstance(pid, int) and 0 < pid < 1 << 31 and _runs(pid))


def _alive_elsewhere(path: Path, there: dict[str, Any]) -> bool:
    """Whether a run on another machine, whose lock may not reach this one, gives a sign of life."""
    until = time.monotonic() + _PATIENCE
    while there and there.get("host") != platform.node() and time.monotonic() < until:
        time.sleep(1)
        now = _read(path)
        if not now:  # it ended just now
            return False
        if now != there:
            return True
    return False


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is someone else's
        return True
    return pid != os.getpid()


def _read(path: Path) -> dict[str, Any]:
    """What the file says; empty where it says nothing."""
    try:
        facts = json.loads(read_regular(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _who(facts: dict[str, Any]) -> str:
    """A holder for people."""
    return f"a run on {facts.get('host', 'an unknown host')}, process {facts.get('pid')}, since {facts.get('since')}"


def _boot() -> str:
    """What tells one start of this machine from another; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
