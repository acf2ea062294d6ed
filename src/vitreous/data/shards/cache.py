"""A cache of whole shards on this machine, bounded in bytes; the least recently used make room for others.

It lies in the user's cache folder, and all processes of a machine share it. A shard is fetched by one of them, in a
thread, to a temporary file; it is renamed when its SHA-256 is that of the index.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from vitreous.data.shards.local import LocalFile
from vitreous.errors import VitreousError
from vitreous.files.user_cache import make_cache, remove_oldest

__all__ = ["Fetched", "ShardCache"]

_FOLDER = "shards"
_PART = 8 << 20  # bytes that are asked for at a time
_AGAIN = 5.0  # seconds until a shard that could not be fetched is tried again
_ABANDONED = 3600.0  # seconds after which a temporary file is that of a process which ended


class Fetched(Protocol):
    """A shard in a store."""

    size: int
    sha256: str  # empty if it is not known
    cache_key: str  # name in the cache

    def read_store(self, offset: int, length: int) -> bytes:
        """Return bytes of the shard from the store."""
        ...


class ShardCache:
    """Whole shards on this machine, at most ``limit`` bytes; 0 keeps none."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._forget_all()

    def _forget_all(self) -> None:
        self._process = os.getpid()
        self._found: dict[str, LocalFile] = {}
        self._asked: dict[str, float] = {}  # when a shard was last asked for
        self._waiting: queue.SimpleQueue[Fetched] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._folder: Path | None = None

    def find(self, file: Fetched) -> LocalFile | None:
        """Return a shard if it is in the cache; else None."""
        if file.size > self.limit:
            return None
        if self._process != os.getpid():  # forked: threads stay behind
            self._forget_all()
        key = file.cache_key
        if (found := self._found.get(key)) is not None:
            return found
        try:
            path = self._place() / key
            if path.stat().st_size == file.size:
                os.utime(path)
                return self._found.setdefault(key, LocalFile(path))
        except OSError:  # not there yet; or no home folder, or a disk that fails: images are fetched one by one
            pass
        return None

    def want(self, file: Fetched) -> None:
        """Have a shard fetched, in a thread, unless that was tried just now."""
        key = file.cache_key
        if file.size > self.limit or key in self._found:
            return
        if time.monotonic() - self._asked.get(key, -_AGAIN) >= _AGAIN:
            self._asked[key] = time.monotonic()
            self._waiting.put(file)
            if self._thread is None:
                self._thread = threading.Thread(target=self._fetch_waiting, name="vitreous-shards", daemon=True)
                self._thread.start()

    def forget(self, file: Fetched) -> None:
        """Forget a shard that another process has removed."""
        self._found.pop(file.cache_key, None)

    def _place(self) -> Path:
        if self._folder is None:
            self._folder = make_cache(_FOLDER)
        return self._folder

    def _fetch_waiting(self) -> None:
        while True:
            file = self._waiting.get()
            with contextlib.suppress(OSError, VitreousError):  # what needs the images reports it
                self._fetch(file)

    def _fetch(self, file: Fetched) -> None:
        folder = self._place()
        path = folder / file.cache_key
        with _only_one(folder / f"{file.cache_key}.lock") as is_mine:
            if not is_mine or path.exists():
                return
            temporary = folder / f"{file.cache_key}.{os.getpid()}.tmp"
            self._make_room(folder, file.size)
            total = hashlib.sha256()
            try:
                with open(temporary, "xb") as output:
                    for offset in range(0, file.size, _PART):
                        part = file.read_store(offset, min(_PART, file.size - offset))
                        total.update(part)
                        output.write(part)
                if not file.sha256 or total.hexdigest() == file.sha256:
                    os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)

    def _make_room(self, folder: Path, size: int) -> None:
        """Remove the least recently used shards until one of ``size`` bytes has room."""
        entries = []
        for path in (one for one in folder.iterdir() if one.suffix != ".lock"):
            with contextlib.suppress(OSError):
                status = path.stat()
                is_new = time.time() - status.st_mtime < _ABANDONED
                entries.append((path.suffix == ".tmp" and is_new, status.st_mtime, status.st_size, path))
        remove_oldest(entries, self.limit, size)


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[bool]:
    """Yield whether this process is the only one within; the system releases the lock of a process that ends."""
    try:
        import fcntl
    except ImportError:  # Windows: two processes may fetch the same shard
        yield True
        return
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
        lock.unlink(missing_ok=True)
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)
