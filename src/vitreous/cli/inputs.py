"""Which pictures a command means: files, folders, globs and lists on standard input."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from vitreous.errors import DataError, UsageError, VitreousError

__all__ = ["expand", "files_of_images"]

_LONGEST_LIST = 1 << 28  # bytes: some three million paths


def expand(words: Iterable[str]) -> list[str]:
    """Return the paths that words mean, in the order of the words; within a folder or a glob sorted.

    Args:
        words: Each a file; a folder, searched at any depth; a glob such as ``'photos/**/*.jpg'``, for shells that do
            not expand it; or ``-`` for a list of paths on standard input, one a line. A file that does not exist is
            kept, for it to be reported beside the others.

    Raises:
        DataError: If a folder, a glob or the list has no pictures, or a word is a URL: nothing is fetched.
        UsageError: If ``-`` is given while standard input is a terminal.
    """
    return [path for word in words for path in _expand_one(word)]


def files_of_images(words: Sequence[str]) -> Callable[[], Iterable[str | int]]:
    """Return what lists the files that words mean, for a command that must not write them; standard input is 0."""

    def files() -> Iterable[str | int]:
        for word in words:
            if word == "-":
                yield 0
            else:
                with contextlib.suppress(VitreousError):  # nothing found: that is told where images are opened
                    yield from _expand_one(word)

    return files


def _expand_one(word: str) -> Iterator[str]:
    from vitreous.data.finding import find_pictures  # here: a wrong option should be told before Pillow is loaded
    from vitreous.data.urls import refuse_url

    if word == "-":
        yield from _listed()
    elif os.path.isdir(word):
        pictures, others = find_pictures(word)
        if not pictures:
            files = f"only {len(others):,} other files" if others else "it is empty"
            raise DataError(f"no pictures in the folder '{word}': {files}")
        yield from map(os.fspath, pictures)
    elif not os.path.lexists(word) and glob.has_magic(word):
        found = sorted(path for path in glob.glob(word, recursive=True) if Path(path).is_file())
        if not found:
            raise DataError(f"no files match '{word}'")
        yield from found
    else:
        try:
            refuse_url(word)
        except DataError as error:
            raise DataError(f"'{word}': {error}") from error
        yield word


def _listed() -> Iterator[str]:
    """Read paths from standard input, one a line or, as `find -print0` writes them, each ended by a NUL."""
    if sys.stdin.isatty():
        raise UsageError("- means a list of paths on standard input: pipe one in, such as `find . -name '*.jpg' | ...`")
    text = sys.stdin.buffer.read(_LONGEST_LIST + 1)
    if len(text) > _LONGEST_LIST:
        raise DataError(f"the list of paths on standard input is longer than {_LONGEST_LIST:,} bytes: is it a list?")
    rows = text.split(b"\0") if b"\0" in text else [line.rstrip(b"\r") for line in text.split(b"\n")]
    paths = [os.fsdecode(row) for row in rows if row.strip()]
    if not paths:
        raise DataError("the list of paths on standard input is empty")
    yield from paths
