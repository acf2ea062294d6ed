"""Where a file lies, links resolved."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_below"]


def is_below(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Return whether a path, of a file that may not exist yet, leads into a folder; paths may be on other drives."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
