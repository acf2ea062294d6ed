"""The folder of a report, written beside its place and then renamed, so that it is complete or absent."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vitreous.errors import OutputError, UsageError
from vitreous.files.locating import expand_home
from vitreous.files.text import visible
from vitreous.report.evaluation.documents import per_class_csv, predictions_csv, to_json
from vitreous.report.evaluation.page import page
from vitreous.report.evaluation.results import EvaluationResult
from vitreous.report.evaluation.thumbnails import ClassMap, ImageOf

__all__ = ["FILES", "check_report_folder", "install_folder", "write_folder"]

FILES = ("report.html", "evaluation.json", "per_class.csv", "predictions.csv")
"""The files of a report."""


def check_report_folder(path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Return the absolute path of the folder to write, or raise before any work is done.

    Raises:
        UsageError: If something is there that a report does not replace: a file, a folder with other files, or an
            earlier report without `overwrite`.
        OutputError: If the parent folder does not exist or cannot be written.
    """
    folder, shown = expand_home(path), visible(os.fspath(path))
    target = Path(os.path.realpath(folder.parent)) / folder.name if folder.name not in ("", "..") else folder.resolve()
    if target.is_symlink() or (os.path.lexists(target) and not target.is_dir()):
        raise UsageError(f"--report '{shown}' is not a folder: name a folder that does not exist, or an earlier report")
    if target.is_dir():
        found = sorted(os.listdir(target))
        if foreign := [name for name in found if name not in FILES or not (target / name).is_file()]:
            raise UsageError(
                f"--report '{shown}' contains '{visible(foreign[0])}', which is not part of a report: name a folder "
                "that does not exist"
            )
        if found and not overwrite:
            raise UsageError(f"--report '{shown}' holds a report already: --overwrite replaces it, or name another")
    if not target.parent.is_dir():
        raise OutputError(f"cannot write '{shown}': the folder '{visible(str(target.parent))}' does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write '{shown}': the folder '{visible(str(target.parent))}' is read-only")
    return target


def write_folder(
    path: str | os.PathLike[str],
    result: EvaluationResult,
    image: ImageOf | None = None,
    *,
    class_map: ClassMap | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write the page, evaluation.json and the tables into a folder, and return it; arguments as for `page`."""
    contents: dict[str, Iterator[str]] = {
        "evaluation.json": iter([to_json(result)]),
        "per_class.csv": per_class_csv(result),
        "predictions.csv": predictions_csv(result),
        "report.html": page(result, image, class_map=class_map, progress=progress),
    }
    return install_folder(path, contents, overwrite)


def install_folder(
    path: str | os.PathLike[str], contents: Mapping[str, Iterator[str]], overwrite: bool = False
) -> Path:
    """Write the :data:`FILES` of a report into a folder, each from its parts, and return the folder."""
    target = check_report_folder(path, overwrite)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        aside.mkdir()
        for name, parts in contents.items():
            with open(aside / name, "w", encoding="utf-8", newline="") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
        check_report_folder(path, overwrite)  # again: it may have been filled in the meantime
        _install(aside, target)
    except OSError as error:
        raise OutputError(f"cannot write '{visible(os.fspath(path))}': {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _install(aside: Path, target: Path) -> None:
    """Rename the finished folder to its place; an earlier report is moved away first, and put back if that fails."""
    if not target.is_dir():
        os.rename(aside, target)
        return
    old = target.with_name(f"{aside.name}.old")
    os.rename(target, old)
    try:
        os.rename(aside, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
