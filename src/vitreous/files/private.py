"""Files that only the user can have written: owned by the user, writable by nobody else, and not behind a link.

On systems without owners and modes, such as Windows, only the type of a file is checked. Every function raises OSError
if a path does not exist or is not private; its ``strerror`` says why.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

__all__ = ["check_private", "digest_private", "make_private_folder", "read_private", "write_private"]

_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe without a writer would block
)


def check_private(folder: Path, forbidden: int = 0o022) -> None:
    """Refuse a folder that another user could have created or, by the `forbidden` mode bits, can write to."""
    _refuse(os.lstat(folder), folder, forbidden, stat.S_ISDIR, "folder")


def make_private_folder(folder: Path, forbidden: int = 0o022) -> None:
    """Create a folder that only the user can access; if it exists, check it as :func:`check_private` does."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_private(folder, forbidden)


def read_private(file: Path, limit: int) -> bytes:
    """Read a file; refuse one of more than ``limit`` bytes."""
    with _open(file) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"more than {limit:,} bytes", os.fspath(file))
    return content


def digest_private(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with _open(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only the user can access; refuse one that exists."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)


def _open(file: Path) -> BufferedReader:
    """Open a private regular file. The descriptor is what is checked, so the file cannot be swapped in between."""
    if stat.S_ISLNK(os.lstat(file).st_mode):  # for systems without O_NOFOLLOW
        raise OSError(errno.ELOOP, "a link, which is not followed", os.fspath(file))
    handle = os.open(file, _FLAGS)
    try:
        _refuse(os.fstat(handle), file, 0o022, stat.S_ISREG, "regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _refuse(status: os.stat_result, path: Path, forbidden: int, has_type: Callable[[int], bool], kind: str) -> None:
    reason = None
    if stat.S_ISLNK(status.st_mode):
        reason = "a link, which is not followed"
    elif not has_type(status.st_mode):
        reason = f"not a {kind}"
    elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        reason = f"it belongs to user {status.st_uid}, not to you (user {os.geteuid()})"
    elif hasattr(os, "geteuid") and status.st_mode & forbidden:
        reason = f"others may write to it (mode {stat.S_IMODE(status.st_mode):o})"
    if reason:
        raise OSError(errno.EPERM, reason, os.fspath(path))
