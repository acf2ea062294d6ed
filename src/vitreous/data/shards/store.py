"""A store of objects, such as S3, through fsspec: ranges are read many at a time, and what fails is asked for again.

Credentials come from the environment's standard chain, as for the store's own tools. This package never sees them, and
cuts queries and user names out of the libraries' errors.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vitreous.data.shards.filesystem import is_absent, is_denied, open_filesystem, read_whole, remove
from vitreous.data.shards.requests import TRIES, Range, Tail, is_final, pause, read_ranges
from vitreous.errors import MissingExtraError, StoreError, first_line

__all__ = ["Range", "Store"]

_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "last_modified", "mtime")
_SECRETS = re.compile(r"(?<=//)[^/@\s]*@|\?[^\s\"']*")

Result = TypeVar("Result")


class Store:
    """The objects under an address such as ``s3://bucket/folder``; keys are relative to it.

    Each process has a connection of its own: those of a parent are of no use after a fork.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.versions: dict[str, str] = {}  # what the store says of each object's content, by key, after `sizes`
        self._connection: tuple[int, Any, str] | None = None  # process id, file system, path of the address in it
        self._tail = Tail()

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every object, at any depth, by key, sorted."""

        def find(system: Any, root: str) -> dict[str, Any]:
            system.invalidate_cache()
            return self._with_keys(system.find(root, detail=True), root)

        found = self._ask("", find)
        self.versions = {key: _version(facts) for key, facts in found.items()}
        return {key: int(facts["size"]) for key, facts in sorted(found.items())}

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Return bytes of an object; fewer if it ends before."""
        return self.read_many([Range(key, offset, length)])[0]

    def read_many(self, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of each range, all asked for at once; raise StoreError if one fails in all tries."""
        if not ranges:
            return []
        from fsspec.asyn import get_loop, sync

        system, root = self._connect()
        answers = sync(get_loop(), read_ranges, system, root, ranges, self._tail)
        for each, answer in zip(ranges, answers, strict=True):
            if not isinstance(answer, bytes) or len(answer) != each.length:
                raise self._error(each.key, answer)
        return answers

    def read_whole(self, key: str) -> bytes | None:
        """Return an object; None if there is none of that key."""

        def read(system: Any, root: str) -> bytes | None:
            try:
                return read_whole(system, f"{root}/{key}")
            except Exception as error:
                if is_absent(error):
                    return None
                raise

        return self._ask(key, read)

    def write(self, key: str, file: str | os.PathLike[str]) -> None:
        """Store a file under a key, whole or not at all."""
        self._ask(key, lambda system, root: system.put_file(os.fspath(file), f"{root}/{key}"))

    def write_bytes(self, key: str, content: bytes) -> None:
        """Store bytes under a key."""
        self._ask(key, lambda system, root: system.pipe_file(f"{root}/{key}", content))

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        if keys:
            self._ask(keys[0], lambda system, root: remove(system, [f"{root}/{key}" for key in keys]))

    def _ask(self, key: str, ask: Callable[[Any, str], Result]) -> Result:
        last: Exception
        for attempt in range(TRIES):
            time.sleep(pause(attempt))
            try:
                return ask(*self._connect())
            except MissingExtraError:
                raise
            except Exception as error:
                last = error
                if is_final(error):
                    break
        raise self._error(key, last)

    def _error(self, key: str, answer: Any) -> StoreError:
        name = f"{self.address}/{key}" if key else self.address
        if is_absent(answer):
            return StoreError(f"{name} is not there: check the address, and whether it was moved")
        if is_denied(answer):
            return StoreError(
                f"{name} may not be read or written: credentials come from the environment, as for "
                "the store's own tools"
            )
        reason = f"{len(answer):,} bytes came" if isinstance(answer, bytes) else _SECRETS.sub("", first_line(answer))
        return StoreError(f"{name} failed {TRIES} times ({reason}): run the same command again when the store answers")

    @staticmethod
    def _with_keys(found: dict[str, Any], root: str) -> dict[str, Any]:
        return {path.removeprefix(root).lstrip("/"): facts for path, facts in found.items()}

    def _connect(self) -> tuple[Any, str]:
        """Return the file system of this process, and the path of the address in it."""
        if self._connection is None or self._connection[0] != os.getpid():
            self._connection = (os.getpid(), *open_filesystem(self.address))
        return self._connection[1:]


def _version(facts: dict[str, Any]) -> str:
    """Return what changes with the content of an object; empty if the store says nothing of the kind."""
    return next((str(facts[name]) for name in _VERSIONS if facts.get(name)), "")
