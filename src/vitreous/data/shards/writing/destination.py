"""Where shards are written: a folder, in which an interrupted job is found again."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from vitreous.data.shards.index import INDEX, MOST_BYTES, ShardEntry, is_index
from vitreous.errors import OutputError, UsageError
from vitreous.files.opening import read_facts, read_regular
from vitreous.files.writing import atomic_write

__all__ = ["JOB", "UNFINISHED", "Destination", "LocalDestination", "recorded", "refuse_other_job", "refuse_taken"]

UNFINISHED = ".unfinished"
"""Folder of the records of a job that is not finished."""

JOB = "job.json"
"""Name of the record of its options."""


class Destination(Protocol):
    """Where shards are written."""

    name: str

    def begin(self, job: Mapping[str, Any]) -> None:
        """Create the folder; raise UsageError if it has other content, or an interrupted job that differs."""
        ...

    def keep_only(self, files: Collection[str]) -> None:
        """Remove what an interrupted job left, other than these shards."""
        ...

    def find(self, file: str, digest: str) -> ShardEntry | None:
        """Return a shard that is written and recorded with this digest of its plan; else None."""
        ...

    def create(self, file: str) -> contextlib.AbstractContextManager[Path]:
        """Yield a path to write a shard to, which is in its place after the block, whole."""
        ...

    def record(self, shard: ShardEntry, digest: str) -> None:
        """Record that a shard is written."""
        ...

    def finish(self, index: str) -> None:
        """Write the index and remove the records."""
        ...


def refuse_other_job(name: str, begun: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    """Raise UsageError if an interrupted job has other options."""
    changed = [f"{key} was {begun.get(key)!r}, now {value!r}" for key, value in job.items() if begun.get(key) != value]
    if changed:
        raise UsageError(
            f"'{name}' has unfinished shards of another job ({'; '.join(changed)}): give the same options, remove the "
            "folder, or name another"
        )


def refuse_taken(name: str, has_index: bool, overwrite: bool) -> None:
    """Raise UsageError for a folder that has other content, or shards that may not be replaced."""
    if not has_index:
        raise UsageError(f"the folder '{name}' is not empty, and has no shards: name another")
    if not overwrite:
        raise UsageError(f"'{name}' has shards already: --overwrite replaces them, or name another folder")


def recorded(stored: Mapping[str, Any], digest: str) -> ShardEntry | None:
    """Return the shard of a record with this digest of its plan; else None."""
    try:
        return ShardEntry.from_dict(stored["shard"], 1 << 31) if stored["plan"] == digest else None
    except (KeyError, ValueError, TypeError):
        return None


class LocalDestination:
    """A folder of this machine; ``overwrite`` replaces finished shards."""

    def __init__(self, folder: Path, *, overwrite: bool = False) -> None:
        self.folder, self.name, self.overwrite = folder, os.fspath(folder), overwrite
        self._records = folder / UNFINISHED

    def begin(self, job: Mapping[str, Any]) -> None:
        """Create the folder; raise UsageError if it has other content, or an interrupted job that differs."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            names = set(os.listdir(self.folder))
        except OSError as error:
            raise OutputError(f"the folder '{self.name}' cannot be made: {error.strerror}") from error
        if UNFINISHED in names:
            begun = read_facts(self._records / JOB, MOST_BYTES)
            refuse_other_job(self.name, begun, job)
            return
        if names:
            self._refuse_or_empty(names)
        self._records.mkdir()
        with atomic_write(self._records / JOB, follow=False) as path:
            path.write_text(json.dumps(dict(job)), encoding="utf-8")

    def _refuse_or_empty(self, names: Collection[str]) -> None:
        has_index = INDEX in names and is_index(read_regular(self.folder / INDEX, MOST_BYTES)[:64])
        refuse_taken(self.name, has_index, self.overwrite)
        (self.folder / INDEX).unlink()  # first: without it no reader takes a half-replaced folder for whole
        self.keep_only(())

    def keep_only(self, files: Collection[str]) -> None:
        """Remove what an interrupted job left, other than these shards."""
        for path in self.folder.iterdir():
            is_left = path.suffix == ".tar" or (path.name.startswith(".") and path.suffix == ".tmp")
            if is_left and path.name not in files:
                path.unlink()

    def find(self, file: str, digest: str) -> ShardEntry | None:
        """Return a shard that is written and recorded with this digest of its plan; else None."""
        shard = recorded(read_facts(self._records / f"{file}.json", MOST_BYTES), digest)
        try:
            return shard if shard and (self.folder / file).stat().st_size == shard.bytes else None
        except OSError:
            return None

    @contextlib.contextmanager
    def create(self, file: str) -> Iterator[Path]:
        """Yield a path to write a shard to, which is in its place after the block, whole."""
        with atomic_write(self.folder / file, follow=False) as path:
            yield path

    def record(self, shard: ShardEntry, digest: str) -> None:
        """Record that a shard is written."""
        with atomic_write(self._records / f"{shard.file}.json", follow=False) as path:
            path.write_text(json.dumps({"plan": digest, "shard": shard.to_dict()}), encoding="utf-8")

    def finish(self, index: str) -> None:
        """Write the index and remove the records."""
        with atomic_write(self.folder / INDEX, follow=False) as path:
            path.write_text(index, encoding="utf-8")
        for path in self._records.iterdir():
            path.unlink()
        self._records.rmdir()
