"""The pictures of a folder, at any depth, by name or by content. What is in one is :mod:`vitreous.data.images.reading`."""

from __future__ import annotations

import heapq
import os
import stat
from collections import deque
from pathlib import Path
from typing import NamedTuple

from vitreous.data.images.formats import extensions, recognise, refused
from vitreous.errors import DataError
from vitreous.files.opening import open_regular

__all__ = ["Found", "find_pictures", "walk"]

_EXTENSIONS = frozenset(extensions())
_START = 64  # bytes that tell a format
_NAMED = 3  # folders that a note names


class Found(NamedTuple):
    """What lies under a folder.

    Attributes:
        pictures: Files that are pictures by extension or first bytes, also of formats that are not read; sorted.
        others: The other files that are not hidden; sorted.
        notes: A line about folders that are listed once though several paths lead to them; none where all is plain.
    """

    pictures: list[Path]
    others: list[Path]
    notes: list[str]


def find_pictures(folder: str | os.PathLike[str]) -> Found:
    """Find the pictures under a folder, at any depth.

    A file is a picture by its extension in any case, or by its first bytes. Hidden files and folders are left out.
    Links are followed, and each real folder is visited once (:func:`walk`).

    Raises:
        DataError: If a folder cannot be listed.
    """
    pictures: list[Path] = []
    others: list[Path] = []
    files, again = walk(folder)
    for path in files:
        (pictures if _looks_like_picture(path) else others).append(path)
    notes = []
    if again:
        named = "; ".join(f"{link} is {first}" for link, first in again[:_NAMED])
        more = f"; and {len(again) - _NAMED:,} more" if len(again) > _NAMED else ""
        count = "1 link leads" if len(again) == 1 else f"{len(again):,} links lead"
        notes.append(f"{count} to folders that are listed already, their pictures count once: {named}{more}")
    return Found(sorted(pictures), sorted(others), notes)


def walk(folder: str | os.PathLike[str]) -> tuple[list[Path], list[tuple[str, str]]]:
    """List the files under a folder that are not hidden, visiting each real folder once, however many links lead there.

    A folder is named by its own path where that lies under ``folder``; else by the shortest path over links, and among
    those by the first in order.

    Returns:
        The files, and the links that were not followed, each with the path that its folder has, both relative.

    Raises:
        DataError: If a folder cannot be listed.
    """
    root = os.fspath(folder)
    files: list[Path] = []
    again: list[tuple[str, str]] = []
    names: dict[tuple[int, int], str] = {}  # by device and inode of each folder that was visited
    links = [(0, root)]  # the shortest first
    while links:
        waiting = deque([heapq.heappop(links)[1]])  # a folder that a link leads to, and all that really lies in it
        while waiting:
            parent = waiting.popleft()
            try:
                status = os.stat(parent)
                key = (status.st_dev, status.st_ino)
                if key in names:
                    again.append((os.path.relpath(parent, root), names[key]))
                    continue
                names[key] = os.path.relpath(parent, root)
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
                    waiting.append(entry.path)
    return files, again


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one; a link to itself is neither."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _looks_like_picture(path: Path) -> bool:
    """Whether the extension or the first bytes say picture; only files with another extension are opened.

    A link to nothing is one by its extension, to be reported; a pipe is none: reading it could wait for ever.
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
    return recognise(start) != "" or refused(start) in ("JPEG 2000", "QOI", "JPEG XL", "Photoshop")
