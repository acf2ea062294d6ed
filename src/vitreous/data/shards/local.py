"""Shards in a folder of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from vitreous.data.images.headers import UnreadableError
from vitreous.data.shards.index import INDEX, MOST_BYTES
from vitreous.files.opening import open_descriptor, read_descriptor, read_regular

__all__ = ["LocalFile", "LocalFolder"]

_MOST_FILE_BYTES = 1 << 50


class LocalFile:
    """A file with many images. It is opened for each read: processes that are forked share no position in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, os.fspath(path)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; fewer if it ends before."""
        try:
            handle, _ = open_descriptor(self.path, _MOST_FILE_BYTES)
            try:
                os.lseek(handle, offset, os.SEEK_SET)
                return read_descriptor(handle, length)
            finally:
                os.close(handle)
        except OSError as error:
            raise UnreadableError(f"{self.name} cannot be read: {(error.strerror or str(error)).lower()}") from error


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
