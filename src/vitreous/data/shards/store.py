"""A store of objects, such as S3, through fsspec: ranges are read many at a time, and what fails is asked for again.

Credentials come from the environment's standard chain, as for the store's own tools. This package never sees them, and
cuts queries and user names out of the libraries' errors.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from vitreous.errors import MissingExtraError, StoreError, first_line

__all__ = ["Range", "Store"]

_PACKAGES = {"s3": "'vitreous[remote]'", "gs": "gcsfs", "az": "adlfs", "hf": "huggingface_hub"}
_TRIES = 8
_PAUSE = 0.1  # seconds before the second try; doubled before each further one, and varied by half
_TIMEOUTS = {
    "connect_timeout": 10,
    "read_timeout": 30,
    "retries": {"total_max_attempts": 1},
}  # seconds; tries are made here
_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "last_modified", "mtime")
_SECRETS = re.compile(r"(?<=//)[^/@\s]*@|\?[^\s\"']*")

Result = TypeVar("Result")


class Range(NamedTuple):
    """Bytes of an object."""

    key: str
    offset: int
    length: int


class Store:
    """The objects under an address such as ``s3://bucket/folder``; keys are relative to it.

    Each process has a connection of its own: those of a parent are of no use after a fork.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.versions: dict[str, str] = {}  # what the store says of each object's content, by key, after `sizes`
        self._connection: tuple[int, Any, str] | None = None  # process id, file system, path of the address in it

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every object, at any depth, by key, sorted."""
        found = self._ask("", lambda system, root: self._with_keys(system.find(root, detail=True), root))
        self.versions = {key: _version(facts) for key, facts in found.items()}
        return {key: int(facts["size"]) for key, facts in sorted(found.items())}

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Return bytes of an object; fewer if it ends before."""
        return self.read_many([Range(key, offset, length)])[0]

    def read_many(self, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of each range, all asked for at once; raise StoreError if one fails in all tries."""
        if not ranges:
            return []
        found: dict[int, bytes] = {}
        failed: tuple[str, Any] = ("", None)
        for attempt in range(_TRIES):
            _pause(attempt)
            missing = [n for n in range(len(ranges)) if n not in found]
            answers = self._read_once([ranges[n] for n in missing])
            for n, answer in zip(missing, answers, strict=True):
                if isinstance(answer, bytes) and len(answer) == ranges[n].length:
                    found[n] = answer
                else:
                    failed = (ranges[n].key, answer)
            if len(found) == len(ranges):
                return [found[n] for n in range(len(ranges))]
            self._raise_if_final(*failed)
        raise self._error(*failed)

    def read_whole(self, key: str) -> bytes | None:
        """Return an object; None if there is none of that key."""

        def read(system: Any, root: str) -> bytes | None:
            try:
                return bytes(system.cat_file(f"{root}/{key}"))
            except FileNotFoundError:
                return None

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
            self._ask(keys[0], lambda system, root: system.rm([f"{root}/{key}" for key in keys]))

    def _read_once(self, ranges: Sequence[Range]) -> list[Any]:
        """Return the bytes of each range, or the error."""
        system, root = self._connect()
        paths = [f"{root}/{each.key}" for each in ranges]
        starts = [each.offset for each in ranges]
        ends = [each.offset + each.length for each in ranges]
        try:
            return list(system.cat_ranges(paths, starts, ends, on_error="return"))
        except Exception as error:
            return [error] * len(ranges)

    def _ask(self, key: str, ask: Callable[[Any, str], Result]) -> Result:
        for attempt in range(_TRIES):
            _pause(attempt)
            try:
                return ask(*self._connect())
            except MissingExtraError:
                raise
            except Exception as error:
                last = error
                self._raise_if_final(key, error)
        raise self._error(key, last)

    def _raise_if_final(self, key: str, answer: Any) -> None:
        """Raise if asking again cannot help: the object is not there, or may not be read."""
        if isinstance(answer, FileNotFoundError | PermissionError) or type(answer).__name__ == "NoCredentialsError":
            raise self._error(key, answer)

    def _error(self, key: str, answer: Any) -> StoreError:
        name = f"{self.address}/{key}" if key else self.address
        if isinstance(answer, FileNotFoundError):
            return StoreError(f"{name} is not there: check the address, and whether it was moved")
        if isinstance(answer, PermissionError) or type(answer).__name__ == "NoCredentialsError":
            return StoreError(
                f"{name} may not be read or written: credentials come from the environment, as for "
                "the store's own tools"
            )
        reason = f"{len(answer):,} bytes came" if isinstance(answer, bytes) else _SECRETS.sub("", first_line(answer))
        return StoreError(f"{name} failed {_TRIES} times ({reason}): run the same command again when the store answers")

    @staticmethod
    def _with_keys(found: dict[str, Any], root: str) -> dict[str, Any]:
        return {path.removeprefix(root).lstrip("/"): facts for path, facts in found.items()}

    def _connect(self) -> tuple[Any, str]:
        """Return the file system of this process, and the path of the address in it."""
        if self._connection is None or self._connection[0] != os.getpid():
            self._connection = (os.getpid(), *_open(self.address))
        return self._connection[1:]


def _version(facts: dict[str, Any]) -> str:
    """Return what changes with the content of an object; empty if the store says nothing of the kind."""
    return next((str(facts[name]) for name in _VERSIONS if facts.get(name)), "")


def _open(address: str) -> tuple[Any, str]:
    scheme = address.partition(":")[0]
    # A listing that is kept would hide what another process has written meanwhile.
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        import fsspec

        if scheme == "s3":
            options |= {"config_kwargs": _TIMEOUTS, "session": _s3_session()}
        system, root = fsspec.core.url_to_fs(address, **options)
    except ImportError as error:
        raise MissingExtraError(
            f"{scheme}:// needs a package that is not installed: pip install {_PACKAGES[scheme]}"
        ) from error
    if scheme == "s3":
        system.retries = 1
    return system, root


@cache
def _s3_session() -> Any:
    """Return what connections of this process and of its forks share: no connection, but the service's description."""
    from aiobotocore.session import get_session

    return get_session()


def _pause(attempt: int) -> None:
    if attempt:
        time.sleep(_PAUSE * 2 ** (attempt - 1) * (0.5 + random.random()))
