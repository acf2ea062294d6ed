"""Which pictures a command means: files, folders, globs and lists on standard input."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from vitreous.cli.output.terminal import narrate
from vitreous.errors import DataError, UsageError, VitreousError
from vitreous.files.text import printable

__all__ = ["expand", "files_of_images"]

_LONGEST_LIST = 1 << 28  # bytes: some three million paths


def expand(words: Iterable[str]) -> list[str]:
    """Return the paths that words mean, in the order of the words; within a folder or a glob sorted.

    Args:
        words: Each a file; a folder, searched at any depth; a glob such as ``'photos/**/*.jpg'``, for shells that do
            not expand it; or ``-`` for a list of paths on standard input, one a line, or with a NUL after each as
            ``find -print0`` writes it. A file that does not exist is kept, for it to be reported beside the others.

    Raises:
        DataError: If a folder, a glob or the list has no pictures, the list is too long, or a word is a URL: nothing is
            fetched.
        UsageError: If ``-`` is given while standard input is a terminal.
    """
    return [path for word in words for path in _expand_one(word, narrate)]


def files_of_images(words: Sequence[str]) -> Callable[[], Iterable[str | int]]:
    """Return what lists the files that words mean, for a command that must not write them; standard input is 0."""

    def files() -> Iterable[str | int]:
        for word in words:
            if word == "-":
                yield 0
            else:
                with contextlib.suppress(VitreousError):  # nothing found: that is told where images are opened
                    yield from _expand_one(word, lambda note: None)

    return files


def _expand_one(word: str, tell: Callable[[str], None]) -> Iterator[str]:
    """The paths that a word means; ``tell`` is told what was passed over in a folder."""
    from vitreous.data.sources.finding import (
        find_pictures,  # here: a wrong option should be told before Pillow is loaded
    )
    from vitreous.data.sources.urls import refuse_url

    if word == "-":
        yield from _listed()
    elif "\0" in word:
        yield word  # to be reported: the system's own functions raise
    elif os.path.isdir(word):
        pictures, others, notes = find_pictures(word)
        if not pictures:
            files = f"only {len(others):,} other files" if others else "it is empty"
            raise DataError(f"no pictures in the folder '{word}': {files}")
        for note in notes:
            tell(f"{word}: {printable(note)}")
        yield from map(os.fspath, pictures)
    elif not os.path.lexists(word) and glob.has_magic(word):
        found = _matching(word)
        if not found:
            raise DataError(f"no files match '{word}'")
        yield from found
    else:
        try:
            refuse_url(word)
        except DataError as error:
            raise DataError(f"'{word}': {error}") from error
        yield word


def _matching(pattern: str) -> list[str]:
    """The files that a glob means, sorted. Below ``**`` each real folder is visited once, as in a folder that is given.

    Python's own ``**`` follows links to folders again and again: a dozen folders with links to each other never end.
    """
    parts = pattern.split("/") if os.sep == "/" else re.split(r"[/\\]", pattern)
    if "**" not in parts:
        return sorted(path for path in glob.glob(pattern) if Path(path).is_file())
    from vitreous.data.sources.finding import walk

    depth = parts.index("**")
    above = "/".join(parts[:depth])
    bases = (glob.glob(above) if glob.has_magic(above) else [above]) if above else ["/" if depth else os.curdir]
    wanted = re.compile("".join(_as_regex(part, n == len(parts) - 1) for n, part in enumerate(parts) if n >= depth))
    found = set()
    for base in filter(os.path.isdir, bases):
        for path in walk(base)[0]:
            inside = os.path.relpath(path, base).replace(os.sep, "/")
            if wanted.fullmatch(inside) and path.is_file():
                found.add(inside if base == os.curdir else os.path.join(base, inside))
    return sorted(found)


def _as_regex(part: str, last: bool) -> str:
    """One part of a glob, between slashes, as a regular expression."""
    if part == "**":
        return "(?s:.*)" if last else "(?:[^/]+/)*"
    pieces = re.split(r"(\*|\?|\[!?\]?[^\]]*\])", part)
    meanings = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        meanings.get(piece) or (_as_set(piece) if piece.startswith("[") and piece.endswith("]") else re.escape(piece))
        for piece in pieces
    ) + ("" if last else "/")


def _as_set(piece: str) -> str:
    """A set of characters such as ``[!a-c]``."""
    inside = piece[1:-1].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
    return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"


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
