"""Shards in a folder of this machine."""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from pathlib import Path

from vitreous.data.images.headers import UnreadableError
from vitreous.data.shards.index import INDEX, MOST_BYTES
from vitreous.files.opening import open_descriptor, read_regular

__all__ = ["LocalFile", "LocalFolder"]

_MOST_FILE_BYTES = 1 << 50
_MOST_OPEN = 128
_WINDOWS = threading.Lock()


class _Handle:
    """An open file, closed when nothing refers to it any more: a thread may still read while others open more files."""

    def __init__(self, path: Path) -> None:
        self.number, _ = open_descriptor(path, _MOST_FILE_BYTES)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


class LocalFile:
    """A file with many images. It stays open, and is read without a position, which forked processes would share."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, os.fspath(path)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; fewer if it ends before."""
        try:
            handle, content = _opened(self), b""
            while len(content) < length and (more := _read_at(handle, offset + len(content), length - len(content))):
                content += more
            return content
        except OSError as error:
            raise UnreadableError(f"{self.name} cannot be read: {(error.strerror or str(error)).lower()}") from error


@lru_cache(maxsize=_MOST_OPEN)
def _opened(file: LocalFile) -> _Handle:
    return _Handle(file.path)


def _read_at(handle: _Handle, offset: int, length: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle.number, length, offset)
    with _WINDOWS:  # which has no such call, and no forks
        os.lseek(handle.number, offset, os.SEEK_SET)
        return os.read(handle.number, length)


class LocalFolder:
    """A folder with shards and their index; ``only`` one of its files, if a single file is given as data."""

    def __init__(self, path: Path, only: str | None = None) -> None:
        self.path, self.name, self.root, self.only = path, os.fspath(path), path, only

    def read_index(self) -> bytes | None:
        """Return the content of the index; None if there is none."""
        if self.only is not None:
            return None
        try:
            return read_regular(self.path / INDEX, MOST_BYTES)
        except FileNotFoundError:
            return None

    def files(self) -> dict[str, int]:
        """Return the bytes of each file in the folder, by name, sorted."""
        if self.only is not None:
            return {self.only: (self.path / self.only).stat().st_size}
        with os.scandir(self.path) as entries:
            files = sorted((entry for entry in entries if entry.is_file()), key=lambda entry: entry.name)
            return {entry.name: entry.stat().st_size for entry in files}

    def open(self, file: str, size: int, sha256: str = "") -> LocalFile:
        """Return a file of the folder, which is opened when it is read."""
        return LocalFile(self.path / file)
