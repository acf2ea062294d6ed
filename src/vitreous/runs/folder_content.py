"""What a run's folder may hold that no run in it is to use: links that lead out of it, and what led nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from vitreous.errors import OutputError
from vitreous.files.opening import read_regular
from vitreous.runs.lock import NAME

__all__ = ["FILES", "read_report", "refuse_ways_out", "remove_left_over", "removing_made", "removing_preamble"]

FILES = (
    *("recipe.yaml", "metrics.csv", "last.ckpt", "previous.ckpt", "model.safetensors", "report.json"),
    *("curves.png", "confusion.png", "mistakes.png", "calibration.png", "example.png", "unreadable.txt"),
    *("last-good.safetensors", "nonfinite.replay"),
)
"""Names of all that a run writes into its folder, but for what loggers do."""

_LEFT_OVER = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")  # as files/writing.py names what it has not finished
_WRITTEN = re.compile(r".+\.(ckpt|csv|json|png|replay|safetensors|txt|yaml)")  # what a run writes
_PREAMBLE = {"recipe.yaml", "unreadable.txt"}  # what a run writes before anything that could be gone on from
_LARGEST_REPORT = 1 << 28  # bytes
_OF_LOGGERS = ("tensorboard", "wandb", "mlflow.db", "mlruns", "mlartifacts")  # who write through links


def read_report(folder: Path) -> dict[str, Any] | None:
    """The report.json of a finished run; None where there is none, or a damaged one."""
    try:
        report = json.loads(read_regular(folder / "report.json", _LARGEST_REPORT))
        whole = report["training"].keys() >= {"epochs", "selected_epoch", "seconds"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return report if whole else None


def remove_left_over(folder: Path) -> None:
    """Remove what a killed process has not finished writing: files with its names, and nothing else."""
    for path in folder.iterdir():
        name = _LEFT_OVER.fullmatch(path.name)
        if name and _WRITTEN.fullmatch(name[1]):
            with contextlib.suppress(OSError):  # what cannot be removed is in nobody's way
                if stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()


def refuse_ways_out(folder: Path) -> None:
    """Refuse folders under the names of a run's files, and links of loggers that lead out of the run's folder.

    The folder may come from elsewhere. Links under the names of the run's own files are in nobody's way: their writers
    replace a link and follow none.

    Raises:
        OutputError: It names the first of them.
    """
    for name in FILES:
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            raise OutputError(
                f"'{folder / name}' is a folder, where a run keeps a file: remove it, or give another --out"
            )
    inside = os.path.realpath(folder)
    for path in (each for name in _OF_LOGGERS for each in _with_all_below(folder / name)):
        status = path.lstat()
        out = stat.S_ISLNK(status.st_mode) and not os.path.realpath(path).startswith(inside + os.sep)
        if out or (path.name.startswith("mlflow.db") and stat.S_ISREG(status.st_mode) and status.st_nlink > 1):
            raise OutputError(
                f"'{path}' is a link to what lies outside the run's folder, and a logger would write through it: "
                "remove it, or give another --out"
            )


def _with_all_below(path: Path) -> Iterator[Path]:
    """Yield a path, if it is there, and all below it; links are not entered."""
    if os.path.lexists(path):
        yield path
    for parent, folders, files in [] if path.is_symlink() else os.walk(path):
        yield from (Path(parent, name) for name in (*folders, *files))


@contextlib.contextmanager
def removing_preamble(folder: Path) -> Iterator[None]:
    """Within, a run begins in a folder that it holds; if it fails before there is more, its first files are removed."""
    before = set(os.listdir(folder))
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):  # the failure is what is told
            new = set(os.listdir(folder)) - before - {NAME}
            for name in new if new <= _PREAMBLE else ():
                (folder / name).unlink()
        raise


@contextlib.contextmanager
def removing_made(folders: Collection[Path]) -> Iterator[None]:
    """Within, folders that were made for a run, the innermost first, are removed after a failure if they are empty."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):  # something is in them
            for folder in folders:
                folder.rmdir()
        raise
