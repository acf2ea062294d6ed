"""Files that only the user can have written: each of their owner, closed to others' writing, and reached by no link.

On systems without owners and modes, such as Windows, only the kind of a file is checked.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO

__all__ = ["check_private", "digest_private", "make_private_folder", "read_private", "write_private"]

_CHUNK = 1 << 24  # bytes read at a time
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer would block the opening itself
)


def check_private(folder: Path, others: int = 0o022) -> None:
    """Refuse a folder that somebody else could have put there or written to.

    Args:
        folder: The folder; a link to one is refused.
        others: Bits of the mode that must not be set: writing by the group and by all others.

    Raises:
        OSError: If it is not there, or not private; ``strerror`` says why.
    """
    _refuse(os.lstat(folder), folder, others, stat.S_ISDIR, "folder")


def make_private_folder(folder: Path, others: int = 0o022) -> None:
    """Make a folder that only the user can write to, unless it is there; then refuse as :func:`check_private` does."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_private(folder, others)


def read_private(file: Path, limit: int) -> bytes:
    """Read a small file whole.

    Raises:
        OSError: If it is not there, not private, or larger than ``limit`` bytes.
    """
    with _open(file) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"more than {limit:,} bytes", os.fspath(file))
    return content


def digest_private(file: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        OSError: If it is not there, or not private.
    """
    found = hashlib.sha256()
    with _open(file) as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def write_private(file: Path, content: bytes) -> None:
    """Write a new file that only the user can read and write; one that is there already is an error."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)


def _open(file: Path) -> IO[bytes]:
    """Open a private regular file; checked by its descriptor, so that it cannot be exchanged in between."""
    if stat.S_ISLNK(os.lstat(file).st_mode):  # where the system has no flag that refuses links
        raise OSError(errno.ELOOP, "a link, which is not followed", os.fspath(file))
    handle = os.open(file, _FLAGS)
    try:
        _refuse(os.fstat(handle), file, 0o022, stat.S_ISREG, "regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _refuse(status: os.stat_result, path: Path, others: int, is_kind: Callable[[int], bool], kind: str) -> None:
    """Refuse what is of another kind, of another user, or open to others' writing."""
    reason = None
    if stat.S_ISLNK(status.st_mode):
        reason = "a link, which is not followed"
    elif not is_kind(status.st_mode):
        reason = f"no {kind}"
    elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        reason = f"it belongs to user {status.st_uid}, not to you (user {os.geteuid()})"
    elif hasattr(os, "geteuid") and status.st_mode & others:
        reason = f"others may write to it (mode {stat.S_IMODE(status.st_mode):o})"
    if reason:
        raise OSError(errno.EPERM, reason, os.fspath(path))
