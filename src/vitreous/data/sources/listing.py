"""What a folder or a manifest says before any picture is opened: which file has which label, and in which split.

Also the list of pictures to leave out. Files are opened in :mod:`vitreous.data.sources.scan`.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitreous.errors import DataError
from vitreous.files.opening import read_regular
from vitreous.files.text import visible

__all__ = [
    "SPLIT_NAMES",
    "Entry",
    "Listing",
    "as_line",
    "excluded",
    "first_ten",
    "many",
    "ordered_classes",
    "plain_name",
    "read_list",
]

_LIST_BYTES = 1 << 30  # of a list of exclusions

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""How people call their splits, in lower case, and what each is called here."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One labelled file.

    Args:
        path: Where it is.
        name: The path as the user would write it: relative to the data folder, or as in the manifest.
        label: Class name.
        split: `train`, `val` or `test`; None where the data does not say.
    """

    path: Path
    name: str
    label: str
    split: str | None


@dataclass
class Listing:
    """All labelled files of a source.

    Args:
        root: The data folder, that names are relative to.
        entries: The files.
        notes: Lines for the terminal: what was ignored.
        classes: The classes in their official order; None orders them by name.
        trusted: The files are known to be whole (verified archives): they are not opened before training.
    """

    root: Path
    entries: list[Entry]
    notes: list[str] = field(default_factory=list)
    classes: tuple[str, ...] | None = None
    trusted: bool = False


def first_ten(items: Sequence[object], separator: str = ", ") -> str:
    """The first ten of many, joined, and how many more there are."""
    more = f" and {len(items) - 10:,} more" if len(items) > 10 else ""
    return separator.join(str(item) for item in items[:10]) + more


def many(count: int, what: str, plural: str | None = None) -> str:
    """``1 picture``, ``2 pictures``; a plural that is not formed by an s is given."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def plain_name(name: str) -> str:
    """A class name in one Unicode form: macOS writes 'é' as two characters, others as one."""
    return unicodedata.normalize("NFC", name)


def as_line(name: str) -> str:
    """A picture's name as a line of a list of exclusions; in JSON's quotes where it would not come back as it is."""
    plain = name.isprintable() and name == name.strip() and not name.startswith(("#", '"', "~")) and ": " not in name
    return name if plain and name else json.dumps(name)


def ordered_classes(names: Collection[str]) -> tuple[str, ...]:
    """Class names in order: by number where all are whole numbers, else by Unicode code point."""
    unique = set(names)
    if all(name.isdecimal() for name in unique):
        return tuple(sorted(unique, key=lambda name: (int(name), name)))
    return tuple(sorted(unique))


def excluded(
    list_file: str, names: Sequence[str], paths: Sequence[Path] | None = None, root: Path | None = None
) -> tuple[set[int], list[str]]:
    """Which pictures a list of exclusions names.

    A line is a picture's name as this package prints it, a path relative to the data folder or to the current one, an
    absolute path, or a bare file name that only one picture has. Lines that start with `#` are comments. What
    follows a colon is ignored where the line is no path as it stands, so that a run's list of unreadable files, with
    its reasons, can be used as it is. Any name can be written as a JSON string, as :func:`as_line` does with odd ones.

    Args:
        list_file: Path of the text file, UTF-8.
        names: Name of each picture.
        paths: Path of each picture, if they are files.
        root: The data folder, if there is one.

    Returns:
        Positions of the pictures to leave out, and notes on the lines that match none.

    Raises:
        DataError: If the list cannot be read.
    """
    wanted = [line.strip() for line in read_list(list_file) if not line.strip().startswith("#")]
    exact: dict[str, list[int]] = {}
    known: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        exact.setdefault(name, []).append(position)
        keys = {name, os.path.basename(name)}
        if paths is not None:
            keys.add(os.path.abspath(paths[position]))
        for key in keys:
            known.setdefault(key, []).append(position)
    found: set[int] = set()
    missed: list[str] = []
    vague: list[str] = []
    for line in wanted:
        meanings = _meanings(line, root)
        named = next((exact[key] for key in meanings if key in exact), None)
        hits = named or next((known[key] for key in meanings if key in known), [])
        if len(hits) == 1 or named:
            found.update(hits)
        else:
            (vague if hits else missed).append(visible(line))
    notes = [f"{many(len(found), 'picture')} left out by {list_file}"]
    if missed:
        notes.append(f"in {list_file}, {many(len(missed), 'line')} without a picture: {first_ten(missed)}")
    if vague:
        notes.append(
            f"in {list_file}, {many(len(vague), 'line')} for several pictures, write the folder too: {first_ten(vague)}"
        )
    return found, notes


def read_list(list_file: str) -> list[str]:
    """The lines of a list of exclusions that are not empty, comments too.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        text = read_regular(os.path.expanduser(list_file), _LIST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"the list of images to exclude, {list_file}, cannot be read: {reason}") from error
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def _meanings(line: str, root: Path | None) -> list[str]:
    """The keys that a line may stand for, the most literal first."""
    colons = [at for at in range(len(line)) if line.startswith(": ", at)]
    meanings = []
    for text in (line, *_quoted(line), *(text for at in colons for text in (line[:at], *_quoted(line[:at])))):
        expanded = os.path.expanduser(text)
        meanings += [text, os.path.normpath(text).replace(os.sep, "/")]
        if root is not None:
            meanings.append(os.path.abspath(os.path.join(root, expanded)))
        meanings.append(os.path.abspath(expanded))
    return meanings


def _quoted(line: str) -> list[str]:
    """What a line says as a JSON string, if it is one."""
    if not line.startswith('"'):
        return []
    try:
        inside = json.loads(line)
    except ValueError:
        return []
    return [inside] if isinstance(inside, str) else []
