"""Where a file lies: home folders put in, or links resolved."""

from __future__ import annotations

import os
from pathlib import Path

from vitreous.errors import UsageError
from vitreous.files.text import visible

__all__ = ["expand_home", "is_below"]


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder in the place of ``~``; an existing name that begins with it stays.

    Raises:
        UsageError: If there is no such user, or the user has no home folder.
    """
    expanded = os.path.expanduser(path)
    if expanded.startswith("~") and not os.path.lexists(expanded):
        raise UsageError(f"there is no home folder for '{visible(expanded)}': give the whole path, or set HOME")
    return Path(expanded)


def is_below(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Return whether a path, of a file that may not exist yet, leads into a folder; paths may be on other drives."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
