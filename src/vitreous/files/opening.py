"""Opening untrusted files: only regular files of a bounded size, never one that blocks or does not end.

The open descriptor is checked as well as the path, so that a file cannot be swapped between check and read.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import IO, Any

__all__ = ["open_descriptor", "open_regular", "read_descriptor", "read_facts", "read_regular"]

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FLAGS = (  # O_NONBLOCK: opening a pipe without a writer would block
    os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
)


def open_regular(path: str | os.PathLike[str], limit: int) -> IO[bytes]:
    """Open a regular file of at most ``limit`` bytes for reading; symbolic links are followed.

    The ``strerror`` of an OSError is the reason, worded to follow the file's name. A NUL in the path is a ValueError.
    """
    return open(path, "rb", opener=lambda name, _: open_descriptor(name, limit)[0])


def open_descriptor(path: str | os.PathLike[str], limit: int) -> tuple[int, int]:
    """Return a file descriptor, which the caller closes, and the file's size; otherwise as :func:`open_regular`."""
    _check_regular(os.stat(path), path, limit)  # before opening: opening a device may have side effects
    handle = os.open(path, _FLAGS)
    try:
        status = os.fstat(handle)
        _check_regular(status, path, limit)
    except BaseException:
        os.close(handle)
        raise
    return handle, status.st_size


def read_descriptor(handle: int, size: int) -> bytes:
    """Read ``size`` bytes, or up to the end of the file; a single system call for most files."""
    content = os.read(handle, size)
    if len(content) == size:
        return content
    parts = [content]
    while parts[-1]:
        size -= len(parts[-1])
        parts.append(os.read(handle, size))
    return b"".join(parts)


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a whole file, of the size that it has when opened; arguments and errors as :func:`open_regular`."""
    handle, size = open_descriptor(path, limit)
    try:
        return read_descriptor(handle, size)
    finally:
        os.close(handle)


def read_facts(path: str | os.PathLike[str], limit: int) -> dict[str, Any]:
    """Read a small JSON object that another process writes; empty if there is none that can be read."""
    try:
        facts = json.loads(read_regular(path, limit))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _check_regular(status: os.stat_result, path: str | os.PathLike[str], limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
        code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(code, f"{kind}, not a regular file", os.fspath(path))
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"{status.st_size:,} bytes, the limit is {limit:,}", os.fspath(path))
