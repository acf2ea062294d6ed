"""Private folders below the user's cache folder: for what a program computed once and trusts when it reads it again.

None is used that another user could have made or can write to. XDG_CACHE_HOME names another place than ``~/.cache``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from vitreous.files.private import check_private, make_private_folder

__all__ = ["check_cache", "make_cache", "remove", "remove_abandoned", "remove_oldest", "user_cache"]

_ABANDONED = 24 * 3600  # seconds after which an unfinished file or folder is that of a process that died
_OTHERS_WRITE = 0o002  # the parent folder may be group-writable, as a umask of 002 makes it


def user_cache(name: str) -> Path:
    """Return the path of a folder in ``$XDG_CACHE_HOME/vitreous``, by default below ``~/.cache``.

    Raises:
        OSError: If there is no home folder.
    """
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    try:  # the XDG Base Directory Specification says to ignore a relative path
        home = Path(xdg) if os.path.isabs(xdg) else Path("~/.cache").expanduser()
    except RuntimeError as error:
        raise OSError(0, "there is no home folder: set XDG_CACHE_HOME") from error
    return home / "vitreous" / name


def check_cache(name: str) -> Path:
    """Return a cache folder that exists; raise OSError if it does not, or is not private."""
    folder = user_cache(name)
    check_private(folder.parent, _OTHERS_WRITE)
    check_private(folder)
    return folder


def make_cache(name: str) -> Path:
    """Create a cache folder if it does not exist, and return it; raise OSError if it is not private."""
    folder = user_cache(name)
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    make_private_folder(folder.parent, _OTHERS_WRITE)
    make_private_folder(folder)
    return folder


def remove(path: Path) -> None:
    """Remove a folder, or a file or link in its place, as far as the system allows."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def remove_abandoned(unfinished: Iterable[Path]) -> None:
    """Remove those unfinished files and folders that processes left which died: no one wrote to them for a day."""
    for path in unfinished:
        with suppress(OSError):  # another process is removing it
            if time.time() - path.lstat().st_mtime > _ABANDONED:
                remove(path)


def remove_oldest(entries: Iterable[tuple[bool, float, int, Path]], most: int, more: int = 0) -> int:
    """Remove the least recently used entries of a cache until it has at most `most` bytes.

    Args:
        entries: Of each: whether it is kept in any case, when it was last used, its bytes, and its path.
        most: Bytes.
        more: Bytes that are still to be added.

    Returns:
        The bytes of what is left, with those to be added.
    """
    entries = sorted(entries)
    total = more + sum(size for _, _, size, _ in entries)
    for is_kept, _, size, path in entries:
        if total <= most or is_kept:
            break
        remove(path)
        total -= size
    return total
