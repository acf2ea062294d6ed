"""Labelled files before any of them is opened: path, label and split; and the list of files to exclude.

Files are opened in :mod:`vitreous.data.sources.scan`.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.errors import DataError, pluralize
from vitreous.files.opening import read_regular
from vitreous.files.text import visible

if TYPE_CHECKING:
    from vitreous.data.images.stored import ImagePath  # imports Pillow

__all__ = [
    "SPLIT_NAMES",
    "UNLABELLED",
    "Entry",
    "Listing",
    "exclusion_line",
    "first_ten",
    "match_exclusions",
    "ordered_classes",
    "plain_name",
    "read_list",
]

_LIST_BYTES = 1 << 30  # size limit of a list of exclusions

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of splits in folders and manifests, in lower case, and the split that each stands for."""

UNLABELLED = "unlabelled"
"""Stands for the class of an image without a label, where labels do not matter."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One labelled file."""

    path: ImagePath
    name: str  # the path as the user writes it: relative to the data folder, or as in the manifest
    label: str  # class name, or several joined by semicolons
    split: str | None  # `train`, `val` or `test`; None if the data does not say
    labels: tuple[str, ...] | None = None  # class names, in data where an image has several or none

    @property
    def is_unlabelled(self) -> bool:
        """Whether the data does not say which label the image has; an image that has none of several is labelled."""
        return self.labels is None and self.label == UNLABELLED


@dataclass
class Listing:
    """All labelled files of a source."""

    root: Path  # the data folder, to which names are relative
    entries: list[Entry]
    notes: list[str] = field(default_factory=list)  # lines to print, about what was ignored
    classes: tuple[str, ...] | None = None  # in their official order; None: sorted by :func:`ordered_classes`
    unlabelled: list[Entry] = field(default_factory=list)  # images without a label, where they are set aside
    trusted: bool = False  # the files are known to be intact (verified archives) and need not be read before training


def ordered_classes(names: Collection[str]) -> tuple[str, ...]:
    """Sort distinct class names: by number if all are whole numbers, else by Unicode code point."""
    unique = set(names)
    numeric = all(name.isdecimal() for name in unique)
    return tuple(sorted(unique, key=lambda name: (int(name) if numeric else 0, name)))


def plain_name(name: str) -> str:
    """Return a class name in Unicode form NFC: macOS writes 'é' as two characters, other systems as one."""
    return unicodedata.normalize("NFC", name)


def first_ten(items: Sequence[object], separator: str = ", ") -> str:
    """Join the first ten items, and append how many more there are."""
    more = f" and {len(items) - 10:,} more" if len(items) > 10 else ""
    return separator.join(str(item) for item in items[:10]) + more


def match_exclusions(
    list_file: str, names: Sequence[str], paths: Sequence[ImagePath] | None = None, root: Path | None = None
) -> tuple[set[int], list[str]]:
    """Return the positions of the images that a list of exclusions names, and notes, also about lines without effect.

    A line is an image's name as this package prints it, a path relative to the data folder or the current folder, an
    absolute path, or a file name that only one image has. Lines that start with `#` are comments. If a line matches
    nothing, the text after a colon is ignored, so that a run's `unreadable.txt`, which contains reasons, is a valid
    list. Any name may be written as a JSON string, as :func:`exclusion_line` does if necessary.
    """
    by_name: dict[str, list[int]] = {}
    by_path: dict[str, list[int]] = {}  # name, file name and absolute path
    for position, name in enumerate(names):
        by_name.setdefault(name, []).append(position)
        keys = {name, os.path.basename(name)}
        if paths is not None:
            keys.add(os.path.abspath(paths[position]))
        for key in keys:
            by_path.setdefault(key, []).append(position)
    positions: set[int] = set()
    unmatched: list[str] = []
    ambiguous: list[str] = []
    for line in (line.strip() for line in read_list(list_file)):
        if line.startswith("#"):
            continue
        keys_of_line = _keys(line, root)
        exact = next((by_name[key] for key in keys_of_line if key in by_name), None)
        matches = exact or next((by_path[key] for key in keys_of_line if key in by_path), [])
        if exact or len(matches) == 1:
            positions.update(matches)
        else:
            (ambiguous if matches else unmatched).append(visible(line))
    notes = [f"{pluralize(len(positions), 'image')} excluded by {list_file}"]
    if unmatched:
        notes.append(f"{list_file}: {pluralize(len(unmatched), 'line')} without an image: {first_ten(unmatched)}")
    if ambiguous:
        lines = f"{pluralize(len(ambiguous), 'line')} for several images, add the folder"
        notes.append(f"{list_file}: {lines}: {first_ten(ambiguous)}")
    return positions, notes


def read_list(list_file: str) -> list[str]:
    """Return the lines of a list of exclusions, with comments and without empty lines."""
    try:
        text = read_regular(os.path.expanduser(list_file), _LIST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"the list of images to exclude, {list_file}, cannot be read: {reason}") from error
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def exclusion_line(name: str) -> str:
    """Return a name as a line of a list of exclusions; as a JSON string if it would not be read back unchanged."""
    plain = name.isprintable() and name == name.strip() and not name.startswith(("#", '"', "~")) and ": " not in name
    return name if plain and name else json.dumps(name)


def _keys(line: str, root: Path | None) -> list[str]:
    """Return the names and paths that a line may stand for, the most literal first."""
    colons = [at for at in range(len(line)) if line.startswith(": ", at)]
    keys = []
    for text in (line, *_unquoted(line), *(text for at in colons for text in (line[:at], *_unquoted(line[:at])))):
        expanded = os.path.expanduser(text)
        keys += [text, os.path.normpath(text).replace(os.sep, "/")]
        if root is not None:
            keys.append(os.path.abspath(os.path.join(root, expanded)))
        keys.append(os.path.abspath(expanded))
    return keys


def _unquoted(line: str) -> list[str]:
    """Return the content of a JSON string; empty if the line is none."""
    if not line.startswith('"'):
        return []
    try:
        content = json.loads(line)
    except ValueError:
        return []
    return [content] if isinstance(content, str) else []
