"""The files of a run directory: their names, the report of a finished run, and removing or refusing what is unsafe.

A run directory may be untrusted, so a link in it may lead to any file of the user.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from vitreous.errors import OutputError
from vitreous.files.opening import read_regular
from vitreous.runs.lock import NAME

__all__ = ["FILES", "read_report", "refuse_outward_links", "remove_empty_dirs", "remove_preamble", "remove_unfinished"]

FILES = (
    *("recipe.yaml", "metrics.csv", "last.ckpt", "previous.ckpt", "model.safetensors", "report.json"),
    *("curves.png", "report.html", "example.png", "unreadable.txt"),
    *(
        f"{name}.png"
        for name in ("curves-dark", "reconstructions", "reconstructions-dark", "neighbours", "neighbours-dark")
    ),
    *("last-good.safetensors", "nonfinite.replay", "stages.ckpt"),
)
"""Names of all files that a run writes itself; its loggers write others."""

_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")  # how files/writing.py names a file until it is complete
_UNFINISHED_SHARDS = re.compile(r"\.shards-[0-9a-f]{8}-\d{1,9}\.tmp")  # a folder, of runs/shards.py
_WRITTEN = re.compile(r".+\.(ckpt|csv|html|json|png|replay|safetensors|txt|yaml)")  # what a run writes
_PREAMBLE = {"recipe.yaml", "unreadable.txt"}  # what a run writes before it has anything to resume from
_LARGEST_REPORT = 1 << 28  # bytes
_LOGGER_FILES = ("tensorboard", "wandb", "mlflow.db", "mlruns", "mlartifacts")  # written through links


def read_report(run_dir: Path) -> dict[str, Any] | None:
    """Return the report.json of a finished run; None if it is missing or damaged."""
    try:
        report = json.loads(read_regular(run_dir / "report.json", _LARGEST_REPORT))
        is_complete = report["training"].keys() >= {"epochs", "selected_epoch", "seconds"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return report if is_complete else None


def remove_unfinished(run_dir: Path) -> None:
    """Remove the temporary files of a killed process; a user's files have other names and stay."""
    for path in run_dir.iterdir():
        if _UNFINISHED_SHARDS.fullmatch(path.name) and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        name = _UNFINISHED.fullmatch(path.name)
        if name and _WRITTEN.fullmatch(name[1]):
            with contextlib.suppress(OSError):  # one that stays does no harm
                if stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()


def refuse_outward_links(run_dir: Path) -> None:
    """Refuse directories in the place of a run's files, and links through which a logger would write elsewhere.

    Links in the place of the run's own files are harmless: they are replaced, not followed.
    """
    for name in FILES:
        if (run_dir / name).is_dir() and not (run_dir / name).is_symlink():
            raise OutputError(
                f"'{run_dir / name}' is a directory, but a run writes a file of that name: remove it, or use another "
                "--out"
            )
    inside = os.path.realpath(run_dir)
    for path in (each for name in _LOGGER_FILES for each in _walk(run_dir / name)):
        status = path.lstat()
        outward = stat.S_ISLNK(status.st_mode) and not os.path.realpath(path).startswith(inside + os.sep)
        if outward or (path.name.startswith("mlflow.db") and stat.S_ISREG(status.st_mode) and status.st_nlink > 1):
            raise OutputError(
                f"'{path}' is a link that leads out of the run directory, and a logger would write through it: remove "
                "it, or use another --out"
            )


def _walk(path: Path) -> Iterator[Path]:
    """Yield a path, if it exists, and everything below it, without following links."""
    if os.path.lexists(path):
        yield path
    for parent, folders, files in [] if path.is_symlink() else os.walk(path):
        yield from (Path(parent, name) for name in (*folders, *files))


@contextlib.contextmanager
def remove_preamble(run_dir: Path) -> Iterator[None]:
    """Remove the files of a new run if it fails before it has written anything to resume from."""
    before = set(os.listdir(run_dir))
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):  # the failure itself is what the user must see
            new = set(os.listdir(run_dir)) - before - {NAME}
            for name in new if new <= _PREAMBLE else ():
                (run_dir / name).unlink()
        raise


@contextlib.contextmanager
def remove_empty_dirs(folders: Collection[Path]) -> Iterator[None]:
    """Remove directories that were created for a run, the innermost first, if it fails and leaves them empty."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):  # one is not empty
            for folder in folders:
                folder.rmdir()
        raise
