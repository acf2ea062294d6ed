"""The index of a folder of shards, `index.json`: which image lies where, its label, its hash and its size.

docs/reference/files.md describes the format. An index may come from a stranger, so everything that it says is checked.
"""

from __future__ import annotations

import itertools
import json
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitreous.data.images.formats import MAX_BYTES, MAX_SIDE
from vitreous.errors import DataError

__all__ = ["INDEX", "MOST_BYTES", "Index", "Row", "ShardEntry", "is_index", "parse_index"]

INDEX = "index.json"
"""Name of the index in its folder."""

MOST_BYTES = 4 << 30
"""Limit of an index; a million images take about 130 MB."""

_FORMAT, _VERSION = "vitreous shards", 1
_VERSION_OF_SEVERAL = 2  # of an index in which an image has several labels, so that earlier versions refuse it
_LATEST = 3  # of one in which, besides, some images have no label
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COLUMNS = ("names", "labels", "splits", "offsets", "lengths", "digests", "heights", "widths", "grey")
_SPLITS = {None, "train", "val", "test"}
_HEX = re.compile("[0-9a-f]*")


class Row(NamedTuple):
    """One image of a shard."""

    name: str
    label: int | tuple[int, ...] | None  # position in the index's classes; all of them, ascending, if there may be
    # several, and None for an image that does not say which it has
    split: str | None  # as the data has it; None if it does not say
    offset: int
    length: int
    digest: str  # :func:`~vitreous.data.images.content.content_hash` of its bytes
    height: int
    width: int
    grey: bool


@dataclass(frozen=True)
class ShardEntry:
    """One shard."""

    file: str
    bytes: int
    sha256: str
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        """Return the shard as the index stores it: a column for each field of its images."""
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in _COLUMNS)
        images = {name: list(column) for name, column in zip(_COLUMNS, columns, strict=True)}
        return {"file": self.file, "bytes": self.bytes, "sha256": self.sha256, "images": images}

    @classmethod
    def from_dict(cls, stored: Any, num_classes: int) -> ShardEntry:
        """Read a shard; raise ValueError, KeyError or TypeError if it is none."""
        file, size, sha256 = stored["file"], stored["bytes"], stored["sha256"]
        _require(_FILE.fullmatch(file) is not None, "a file's name")
        _require(type(size) is int and re.fullmatch("[0-9a-f]{64}", sha256) is not None, f"the hash of {file}")
        columns = {name: list(stored["images"][name]) for name in _COLUMNS}
        columns["labels"] = [tuple(label) if type(label) is list else label for label in columns["labels"]]
        _check_columns(columns, file, size, num_classes)
        return cls(file, size, sha256, [Row(*values) for values in zip(*columns.values(), strict=True)])


@dataclass(frozen=True)
class Index:
    """The index of a folder of shards.

    Args:
        classes: Names of the classes.
        has_order: Whether their order is official, so that a class without images counts too.
        shards: The shards.
        created_by: Program and version.
        without_labels: Whether images may lack a label, which is then the class `unlabelled`, or None if `several`.
        several: Whether an image may have several labels, or none.
    """

    classes: tuple[str, ...]
    has_order: bool
    shards: Sequence[ShardEntry]
    created_by: str = ""
    without_labels: bool = False
    several: bool = False

    def to_json(self) -> str:
        """Return the content of `index.json`."""
        version = _version(several=self.several, without_labels=self.without_labels)
        head = {"format": _FORMAT, "format_version": version, "created_by": self.created_by}
        classes = {"classes": self.classes, "classes_have_order": self.has_order}
        classes |= {"without_labels": True} if self.without_labels else {}
        classes |= {"several_labels": True} if self.several else {}
        return json.dumps(head | classes | {"shards": [shard.to_dict() for shard in self.shards]})


def _version(*, several: bool, without_labels: bool) -> int:
    return _VERSION if not several else _LATEST if without_labels else _VERSION_OF_SEVERAL


def is_index(start: bytes) -> bool:
    """Return whether a file that begins with these bytes is an index of shards, of any version."""
    return start.lstrip().startswith(f'{{"format": "{_FORMAT}"'.encode())


def parse_index(content: bytes, name: str) -> Index:
    """Read the content of an index; ``name`` is its path or address in errors."""
    try:
        stored = json.loads(content)
        version = stored["format_version"] if stored["format"] == _FORMAT else None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{name} is damaged, or not an index of shards: write the shards again") from error
    if type(version) is int and version > _LATEST:
        raise DataError(
            f"{name} has format_version {version}, this version of vitreous reads up to {_LATEST}: update "
            "vitreous, or write the shards again"
        )
    try:
        several = stored.get("several_labels") is True
        without_labels = stored.get("without_labels") is True
        _require(version == _version(several=several, without_labels=without_labels), "the version")
        classes = stored["classes"]
        _require(type(classes) is list and set(map(type, classes)) == {str} and "" not in classes, "a class")
        shards = [ShardEntry.from_dict(each, len(classes)) for each in stored["shards"]]
        _require(len({shard.file for shard in shards}) == len(shards), "the files' names")
        has_order = stored["classes_have_order"] is True
        kinds = {type(row.label) for shard in shards for row in shard.rows}
        none = {type(None)} if without_labels else set()
        _require(kinds <= ({tuple, *none} if several else {int}), "a label")
        _require(len(set(classes)) == len(classes), "a class")
        _require(not several or has_order, "several labels")
        return Index(tuple(classes), has_order, shards, str(stored["created_by"]), without_labels, several)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)[:200]
        raise DataError(f"{name} is damaged ({reason}): write the shards again, or copy it again") from error


def _check_columns(columns: Mapping[str, list[Any]], file: str, size: int, num_classes: int) -> None:
    """Check the columns of a shard as wholes: an index has millions of rows."""
    if not columns["names"]:
        return
    texts, digests = columns["names"], columns["digests"]
    _require(all(set(map(type, column)) == {str} for column in (texts, digests)), f"an image's name in {file}")
    _require("" not in texts and "\0" not in "".join(texts), f"an image's name in {file}")
    _require(set(map(len, digests)) == {32} and _HEX.fullmatch("".join(digests)) is not None, f"a hash in {file}")
    _require(set(columns["splits"]) <= _SPLITS and set(map(type, columns["grey"])) == {bool}, f"a split in {file}")
    _check_labels(columns["labels"], num_classes, f"labels of {file}")
    limits = {"lengths": (1, MAX_BYTES), "heights": (1, MAX_SIDE)}
    for name, (least, most) in {**limits, "widths": (1, MAX_SIDE), "offsets": (0, size)}.items():
        numbers = columns[name]
        _require(
            set(map(type, numbers)) == {int} and least <= min(numbers) <= max(numbers) <= most, f"{name} of {file}"
        )
    ends = map(operator.add, columns["offsets"], columns["lengths"])
    _require(max(ends) <= size, f"the place of an image in {file}")


def _check_labels(labels: Sequence[Any], num_classes: int, what: str) -> None:
    """Check that all are positions of classes, or all are tuples of them, each in ascending order, or None."""
    if set(map(type, labels)) <= {tuple, type(None)}:
        labels = [label for label in labels if label is not None]
        _require(all(a < b for each in labels for a, b in itertools.pairwise(each)), what)
        labels = [label for each in labels for label in each]
    _require(set(map(type, labels)) <= {int} and all(0 <= label < num_classes for label in labels), what)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} is not valid")
