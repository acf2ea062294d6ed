"""Which options take the name of a file, a folder or a model: shells complete it, and it may not be empty."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

__all__ = ["takes_file_name"]

_PLACEHOLDERS = (
    *("FILE", "FILE.png", "FILE.csv", "DIR", "FOLDER", "MODEL", "IMAGES", "DATA", "SRC", "DST", "DEST", "[FILE.png]"),
)
_OPTIONS = {
    *("--config", "--out", "--data.dir", "--data-dir", "--data.exclude", "--exclude", "--from", "--tune.source"),
    *("--teacher", "--distil.teacher", "--aux.model", "--unlabelled", "--aux.unlabelled"),
}


def takes_file_name(action: argparse.Action, aliases: Iterable[str] = ()) -> bool:
    """Whether the value of an option or argument is such a name; ``aliases`` are other names of the option."""
    return str(action.metavar) in _PLACEHOLDERS or not _OPTIONS.isdisjoint([*action.option_strings, *aliases])
