"""Opening files that somebody else chose: regular files of a bounded size, and nothing that blocks or never ends.

What is opened is checked by its descriptor, so that a file cannot be exchanged between the check and the reading.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import IO

__all__ = ["open_descriptor", "open_regular", "read_descriptor", "read_regular"]

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer would block the opening itself
)


def open_regular(path: str | os.PathLike[str], limit: int) -> IO[bytes]:
    """Open a regular file for reading; symbolic links are followed.

    Args:
        path: The file.
        limit: Largest size in bytes.

    Raises:
        OSError: If it cannot be opened, is no regular file, or is larger than ``limit``. ``strerror`` is the reason, in
            words that follow a file's name.
        ValueError: If the path holds a NUL, as :func:`open` has it.
    """
    handle, _ = open_descriptor(path, limit)
    try:
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def open_descriptor(path: str | os.PathLike[str], limit: int) -> tuple[int, int]:
    """Return a descriptor, which is the caller's to close, and the file's size; else as :func:`open_regular`."""
    _refuse(os.stat(path), path, limit)  # before opening: to open a device may have effects
    handle = os.open(path, _FLAGS)
    try:
        status = os.fstat(handle)
        _refuse(status, path, limit)
    except BaseException:
        os.close(handle)
        raise
    return handle, status.st_size


def read_descriptor(handle: int, size: int) -> bytes:
    """Read so many bytes, or all that there are; one call of the system for most files."""
    content = os.read(handle, size)
    if len(content) == size:
        return content
    parts = [content]
    while parts[-1]:
        size -= len(parts[-1])
        parts.append(os.read(handle, size))
    return b"".join(parts)


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a regular file whole; arguments and errors as :func:`open_regular`.

    A file that grows while it is read gives the bytes that it had when it was opened.
    """
    handle, size = open_descriptor(path, limit)
    try:
        return read_descriptor(handle, size)
    finally:
        os.close(handle)


def _refuse(status: os.stat_result, path: str | os.PathLike[str], limit: int) -> None:
    """Refuse what is no regular file, and what is too large."""
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
        code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(code, f"{kind}, not a regular file", os.fspath(path))
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"{status.st_size:,} bytes, the limit is {limit:,}", os.fspath(path))
