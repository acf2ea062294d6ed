"""Expand the IMAGES of a verb: files, folders, globs and lists on standard input."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vitreous.cli.output.terminal import narrate
from vitreous.data.config import DataConfig
from vitreous.errors import DataError, UsageError, VitreousError
from vitreous.files.text import printable
from vitreous.files.writing import Read

if TYPE_CHECKING:
    from vitreous.data.images.stored import StoredImage

__all__ = ["expand", "image_files"]

_MAX_LIST_BYTES = 1 << 28


def expand(words: Iterable[str], cache_gb: float = DataConfig.cache_gb) -> list[str | StoredImage]:
    """Return the paths of images, in the order of the arguments; those of a folder or a glob are sorted.

    Args:
        words: Each a file; a folder, searched recursively, or with shards; a folder in a store, such as s3://; a glob
            such as ``'photos/**/*.jpg'``, for shells that do not expand it; or ``-`` for a list of paths on standard
            input, one per line, or NUL-terminated as by ``find -print0``. A missing file is returned too, and reported
            when it is opened.
        cache_gb: GiB of shards from a store to keep on this machine.
    """
    return [path for word in words for path in _expand_one(word, narrate, cache_gb)]


def image_files(words: Sequence[str]) -> Callable[[], Iterable[Read]]:
    """Return a function that lists the files of the arguments, for overwrite checks; standard input is 0."""

    def list_files() -> Iterable[Read]:
        for word in (each for each in words if not each.startswith(("s3://", "gs://", "az://", "hf://"))):
            with contextlib.suppress(VitreousError):  # reported when the images are opened
                yield from [0] if word == "-" else _expand_one(word, warn=lambda note: None)

    return list_files


def _expand_one(
    word: str, warn: Callable[[str], None], cache_gb: float = DataConfig.cache_gb
) -> Iterator[str | StoredImage]:
    from vitreous.data.shards.listing import find_shards, images_of  # imports Pillow
    from vitreous.data.sources.finding import find_images
    from vitreous.data.sources.urls import is_store, refuse_url

    if word == "-":
        yield from _read_list()
    elif "\0" in word:
        yield word  # reported when it is opened; the functions below would raise
    elif is_store(word):
        from vitreous.data.shards.remote import list_store

        yield from (cast("StoredImage", entry.path) for entry in list_store(word, cache_gb, needs_labels=False).entries)
    elif (shards := find_shards(Path(word))) is not None:
        yield from images_of(shards)
    elif os.path.isdir(word):
        images, others, notes, outputs = find_images(word)
        if not images:
            content = f"only {len(others):,} other files" if others else "it is empty"
            content = notes[0] if outputs else content
            raise DataError(f"no images in the folder '{word}': {content}")
        for note in notes:
            warn(f"{word}: {printable(note)}")
        yield from map(os.fspath, images)
    elif not os.path.lexists(word) and glob.has_magic(word):
        paths = _glob(word)
        if not paths:
            raise DataError(f"no files match '{word}'")
        yield from paths
    else:
        try:
            refuse_url(word)
        except DataError as error:
            raise DataError(f"'{word}': {error}") from error
        yield word


def _glob(pattern: str) -> list[str]:
    """Return the files that match a glob, sorted.

    Python's ``**`` follows symbolic links repeatedly, without end for folders that link to each other. Here each real
    folder below ``**`` is visited once, as in a folder search.
    """
    parts = pattern.split("/") if os.sep == "/" else re.split(r"[/\\]", pattern)
    if "**" not in parts:
        return sorted(path for path in glob.glob(pattern) if Path(path).is_file())
    from vitreous.data.sources.finding import walk

    depth = parts.index("**")
    above = "/".join(parts[:depth])
    bases = (glob.glob(above) if glob.has_magic(above) else [above]) if above else ["/" if depth else os.curdir]
    below = re.compile("".join(_part_regex(part, n == len(parts) - 1) for n, part in enumerate(parts) if n >= depth))
    matches = set()
    for base in filter(os.path.isdir, bases):
        for path in walk(base)[0]:
            inside = os.path.relpath(path, base).replace(os.sep, "/")
            if below.fullmatch(inside) and path.is_file():
                matches.add(inside if base == os.curdir else os.path.join(base, inside))
    return sorted(matches)


def _part_regex(part: str, is_last: bool) -> str:
    if part == "**":
        return "(?s:.*)" if is_last else "(?:[^/]+/)*"
    pieces = re.split(r"(\*|\?|\[!?\]?[^\]]*\])", part)
    wildcards = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        wildcards.get(piece)
        or (_set_regex(piece) if piece.startswith("[") and piece.endswith("]") else re.escape(piece))
        for piece in pieces
    ) + ("" if is_last else "/")


def _set_regex(piece: str) -> str:
    """Translate a set of characters such as ``[!a-c]``."""
    inside = piece[1:-1].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
    return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"


def _read_list() -> list[str]:
    if sys.stdin.isatty():
        raise UsageError("- means a list of paths on standard input: pipe one in, such as `find . -name '*.jpg' | ...`")
    text = sys.stdin.buffer.read(_MAX_LIST_BYTES + 1)
    if len(text) > _MAX_LIST_BYTES:
        raise DataError(f"the list of paths on standard input is longer than {_MAX_LIST_BYTES:,} bytes: is it a list?")
    rows = text.split(b"\0") if b"\0" in text else [line.rstrip(b"\r") for line in text.split(b"\n")]
    paths = [os.fsdecode(row) for row in rows if row.strip()]
    if not paths:
        raise DataError("the list of paths on standard input is empty")
    return paths
