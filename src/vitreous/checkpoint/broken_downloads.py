"""What becomes of a download that breaks off: how often it is resumed, and that nothing partial stays in the cache."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ending_at_sigterm", "giving_up", "nothing_partial"]

_PARTIAL = "*.incomplete"
_STALE = 3600.0  # seconds since the last byte, after which no other program is still writing
_MOST_BREAKS = 5  # in a row, none of which leaves more of the file than the one before
_CLIENT = "huggingface_hub.file_download"  # the logger that is told of each break
_TERMINATED = 143  # 128 + SIGTERM, as shells report it


@contextlib.contextmanager
def nothing_partial(folder: Path) -> Iterator[None]:
    """Remove what a download into a model's folder of the cache leaves if it breaks off, or left if it was killed."""
    before = _partial(folder)
    try:
        yield
    except BaseException:
        for path in _partial(folder) - before:
            with contextlib.suppress(OSError):
                path.unlink()
        raise
    finally:
        for path in before:
            _remove_abandoned(path, folder)


def _partial(folder: Path) -> set[Path]:
    return set((folder / "blobs").glob(_PARTIAL))


def _remove_abandoned(path: Path, folder: Path) -> None:
    """Remove a partial file of another process unless that may still write it.

    The client holds a lock while it downloads, which ends with the process.
    """
    lock = folder.parent / ".locks" / folder.name / f"{path.name.partition('.')[0]}.lock"
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _STALE or _is_free(lock):
            path.unlink()


def _is_free(lock: Path) -> bool:
    """Return whether no process holds a lock, on a file system that keeps locks: some grant them to everybody."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(lock, timeout=0):
            try:
                with FileLock(lock, timeout=0):
                    return False
            except Timeout:
                return True
    except (Timeout, OSError, NotImplementedError):
        return False


@contextlib.contextmanager
def giving_up(folder: Path) -> Iterator[None]:
    """Raise an error when the client's attempts to resume a download into a model's folder no longer get further.

    The client counts attempts that bring no byte. A server that cannot resume sends the first bytes again each time,
    so that it would try without end.

    Raises:
        ConnectionError: From within the download.
    """
    filter_, logger = _Breaks(folder), logging.getLogger(_CLIENT)
    logger.addFilter(filter_)
    try:
        yield
    finally:
        logger.removeFilter(filter_)


class _Breaks(logging.Filter):
    """Counts the breaks that the client reports."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._most, self._count = folder, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        if "resume download" not in str(record.msg):
            return True
        size = max((path.stat().st_size for path in _partial(self._folder)), default=0)
        self._count = 1 if size > self._most else self._count + 1
        self._most = max(self._most, size)
        if self._count > _MOST_BREAKS:
            raise ConnectionError(f"the connection broke off {self._count} times, each time after {size / 1e6:,.3g} MB")
        return True


@contextlib.contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that what is partial can be removed; a handler that is set already stays."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(_TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
