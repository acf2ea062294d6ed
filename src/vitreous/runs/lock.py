"""One run per directory: a lock file says which process uses it, and a lock of the operating system ends with it.

The lock belongs to the process (a POSIX record lock), so data loader workers that outlive a killed run for some seconds
do not hold it. For directories shared between machines, where the file system may not support locks, the holder also
updates the file regularly.
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
from vitreous.files.opening import read_facts

try:
    import fcntl
except ImportError:  # Windows: the process id and the updates have to suffice
    fcntl = None  # type: ignore[assignment,unused-ignore]

__all__ = ["NAME", "Lock", "locked"]

NAME = "run.lock"
"""Name of the lock file in a run directory."""

_UPDATE_EVERY = 10.0  # minimum seconds between two updates of the file
_PATIENCE = 30.0  # seconds within which a holder on another machine must update it
_LENGTH = 512  # bytes of the file, constant so that one write replaces all of it
_LARGEST = 1 << 12  # bytes of a file that is read as a lock
_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

_held: set[str] = set()  # directories that this process has locked: a process is never refused its own record locks
_guard = threading.Lock()


class Lock:
    """The lock of a run directory, held by this process; `previous_holder` ended without releasing it, in words."""

    def __init__(self, path: Path, handle: int, previous_holder: str | None) -> None:
        self.previous_holder = previous_holder
        self._path, self._handle = path, handle
        self._writing = threading.Lock()
        self._facts: dict[str, Any] = {
            "host": platform.node(),
            "pid": os.getpid(),
            "since": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "boot": _boot_id(),
            "phase": "starting",
            "saving": False,
        }
        self._beats = 0
        self._write()

    def record(self, **facts: Any) -> None:
        """Record what the run is doing: `phase` in words, and `saving` while a checkpoint is being written."""
        self._facts.update(facts)
        self._write()

    def keep_alive(self) -> None:
        """Update the file if the last update is old. The training loop calls this: threads and forked workers clash."""
        if time.monotonic() - self._written > _UPDATE_EVERY:
            self._beats += 1
            self._write()

    def release(self) -> None:
        """Remove the file and release the lock."""
        with contextlib.suppress(OSError):  # the directory may be gone or read-only by now
            self._path.unlink()
        with self._writing:
            os.close(self._handle)
            self._handle = -1

    def _write(self) -> None:
        self._written = time.monotonic()
        text = json.dumps({**self._facts, "beats": self._beats}).encode().ljust(_LENGTH - 1) + b"\n"
        with self._writing, contextlib.suppress(OSError):  # saving the next checkpoint reports a full disk
            if self._handle >= 0:
                os.lseek(self._handle, 0, os.SEEK_SET)
                os.write(self._handle, text)


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[Lock]:
    """Lock an existing run directory; refuse if another run holds the lock."""
    key = os.path.realpath(run_dir)
    with _guard:
        if key in _held:
            raise TrainingError(
                f"'{run_dir}' is in use by another run of this process: wait for it, or use another --out"
            )
        _held.add(key)
    try:
        lock = _acquire(run_dir, run_dir / NAME)
        try:
            yield lock
        finally:
            lock.release()
    finally:
        _held.discard(key)


def _acquire(run_dir: Path, path: Path) -> Lock:
    """Open and lock the file; start again whenever its holder removes it in between."""
    while True:
        handle = _open(run_dir, path)
        try:
            # Before locking: closing any descriptor of the file would release the lock.
            holder = read_facts(path, _LARGEST)
            if _is_alive_elsewhere(path, holder) or not _lock(handle, holder):
                raise TrainingError(
                    f"'{run_dir}' is in use by {_describe(holder)}: wait for it, stop it, or use another --out"
                )
            with contextlib.suppress(FileNotFoundError):
                status = os.fstat(handle)
                if os.path.samestat(os.stat(path, follow_symlinks=False), status):
                    if status.st_nlink == 1:
                        return Lock(path, handle, _describe(holder) if holder else None)
                    path.unlink()  # a hard link: writing would change a file outside the run directory
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _open(run_dir: Path, path: Path) -> int:
    """Open the lock file, or create it. In an untrusted directory, a link could lead to any file of the user."""
    with contextlib.suppress(FileNotFoundError):
        _refuse_special(path, os.lstat(path))  # before opening, which can have side effects on a device
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o666)
    except OSError as error:
        raise OutputError(
            f"cannot write to the run directory '{run_dir}': {error.strerror or error}. Use another --out"
        ) from error
    try:
        _refuse_special(path, os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _refuse_special(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise OutputError(f"'{path}' is {kind}, but a run writes its lock there: remove it, or use another --out")


def _lock(handle: int, holder: dict[str, Any]) -> bool:
    """Take the system's lock; on a file system without locks, check whether the recorded process is running."""
    try:
        if fcntl is not None:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        pass
    same_boot, pid = holder.get("host") == platform.node() and holder.get("boot") == _boot_id(), holder.get("pid")
    return not (same_boot and isinstance(pid, int) and 0 < pid < 1 << 31 and _is_running(pid))


def _is_alive_elsewhere(path: Path, holder: dict[str, Any]) -> bool:
    """Return whether a run on another machine, whose lock may not be visible here, updates the file."""
    until = time.monotonic() + _PATIENCE
    while holder and holder.get("host") != platform.node() and time.monotonic() < until:
        time.sleep(1)
        now = read_facts(path, _LARGEST)
        if not now:  # it has just ended
            return False
        if now != holder:
            return True
    return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return pid != os.getpid()


def _describe(facts: dict[str, Any]) -> str:
    return f"a run on {facts.get('host', 'an unknown host')}, process {facts.get('pid')}, since {facts.get('since')}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
