"""Finding the image files under a folder. Reading them is in :mod:`vitreous.data.images.reading`."""

from __future__ import annotations

import heapq
import os
import stat
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from vitreous.data.images.formats import detect_format, detect_unsupported, image_extensions
from vitreous.errors import DataError
from vitreous.files.opening import open_regular

__all__ = ["Found", "find_images", "walk"]

_EXTENSIONS = frozenset(image_extensions())
_START = 64  # bytes that identify a format
_NAMED = 3  # folders that a note names
_PAGES = {"report.html": "recipe.yaml", "inspection.html": "inspection.json"}
"""The page of a run or an inspection, and the document that is then beside it."""


class Found(NamedTuple):
    """The files under a folder."""

    pictures: list[Path]  # images by extension or first bytes, including formats that cannot be read; sorted
    others: list[Path]  # the other files, except hidden ones; sorted
    notes: list[str]  # a line about folders that several paths lead to, and one about figures of this package
    outputs: Collection[Path]  # runs and inspections, whose figures are left out


def find_images(folder: str | os.PathLike[str]) -> Found:
    """Find the image files under a folder, at any depth.

    A file is an image by its extension in any case, or by its first bytes. Hidden files and folders are skipped.
    Symbolic links are followed, and each real folder is visited once (:func:`walk`). The figures of runs and
    inspections below are left out: `vitreous train .` would else learn from those of its last run.
    """
    images: list[Path] = []
    others: list[Path] = []
    files, repeated = walk(folder)
    if outputs := _outputs(Path(folder), files):
        files = [path for path in files if outputs.isdisjoint(path.parents)]
    for path in files:
        (images if _is_image(path) else others).append(path)
    notes = []
    if outputs:
        runs = sorted(os.path.relpath(output, folder) for output in outputs)
        more = f" and {len(runs) - _NAMED:,} more" if len(runs) > _NAMED else ""
        notes.append(f"figures that vitreous wrote are left out: {', '.join(runs[:_NAMED])}{more}")
    if repeated:
        named = "; ".join(f"{link} is {first}" for link, first in repeated[:_NAMED])
        more = f"; and {len(repeated) - _NAMED:,} more" if len(repeated) > _NAMED else ""
        count = "1 link leads" if len(repeated) == 1 else f"{len(repeated):,} links lead"
        notes.append(f"{count} to folders already listed, whose images count once: {named}{more}")
    return Found(sorted(images), sorted(others), notes, outputs)


def _outputs(root: Path, files: Sequence[Path]) -> set[Path]:
    """Return the runs and inspections below a folder, the outermost ones.

    One with another image than PNG is none: it is a folder of images into which a command has written.
    """
    pages = [path for path in files if path.name in _PAGES and path.parent != root]
    found = {page.parent for page in pages if page.with_name(_PAGES[page.name]).is_file()}
    for path in files if found else ():
        if path.suffix.lower() != ".png" and path.suffix.lower() in _EXTENSIONS:
            found.difference_update(path.parents)
    return {folder for folder in found if found.isdisjoint(folder.parents)}


def walk(folder: str | os.PathLike[str]) -> tuple[list[Path], list[tuple[str, str]]]:
    """List the files under a folder that are not hidden, visiting each real folder once.

    A real folder is listed under its own path if that lies under ``folder``; otherwise under the shortest path through
    links, the first in sorted order among equals. Also return the links that were not followed, each with the path
    under which its folder is listed, both relative to ``folder``.
    """
    root = os.fspath(folder)
    files: list[Path] = []
    repeated: list[tuple[str, str]] = []
    visited: dict[tuple[int, int], str] = {}  # (device, inode) of each folder -> relative path
    links = [(0, root)]  # a heap, shortest path first
    while links:
        pending = deque([heapq.heappop(links)[1]])  # the target of one link, and the real folders below it
        while pending:
            parent = pending.popleft()
            try:
                status = os.stat(parent)
                key = (status.st_dev, status.st_ino)
                if key in visited:
                    repeated.append((os.path.relpath(parent, root), visited[key]))
                    continue
                visited[key] = os.path.relpath(parent, root)
                with os.scandir(parent) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                raise DataError(f"folder {parent} cannot be listed: {error.strerror}") from error
            for entry in listed:
                is_folder = _is_folder(entry)
                if entry.name.startswith(".") or (is_folder and entry.name.startswith("__MACOSX")):
                    continue
                if not is_folder:
                    files.append(Path(entry.path))
                elif entry.is_symlink():
                    heapq.heappush(links, (entry.path.count(os.sep), entry.path))
                else:
                    pending.append(entry.path)
    return files, repeated


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one; False for a link that leads to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_image(path: Path) -> bool:
    """Whether a file is an image by its extension, or else by its first bytes.

    A broken link counts by its extension, so that it is reported later. A pipe is never opened: that could block.
    """
    by_name = path.suffix.lower() in _EXTENSIONS
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return by_name
    if by_name or not is_file:
        return is_file
    try:
        with open_regular(path, 1 << 62) as file:
            start = file.read(_START)
    except OSError:
        return False
    return detect_format(start) != "" or detect_unsupported(start) in ("JPEG 2000", "QOI", "JPEG XL", "Photoshop")
