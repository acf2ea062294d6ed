"""Tables in which an image has several labels, or none: one column of lists, or one column of 0 and 1 for each label.

A list is a cell such as `cat;dog` or `["cat", "dog"]`, or a list of text in Parquet and JSON lines. It is read if the
table has no column for a single label (:mod:`vitreous.data.sources.manifest`); of the columns `labels` and `tags`, the
former. An image with an empty list has none of
the labels. One whose list is missing, or whose columns of 0 and 1 are all empty, is not labelled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.data.sources.listing import first_ten, ordered_classes, plain_name
from vitreous.data.sources.tables import LISTS, TEXT_SUFFIXES
from vitreous.errors import DataError, pluralize
from vitreous.files.text import visible

__all__ = ["SEPARATOR", "LabelSets", "label_sets"]

SEPARATOR = ";"
"""Between the labels of a cell, and in the text that stands for a set of labels."""

_OTHER_SEPARATOR = "|"  # as ChestX-ray14 has it; only if no cell has the usual one
_TRUE, _FALSE = ("1", "1.0", "true"), ("0", "0.0", "false")  # pandas writes 1.0 in a column with missing values
_FEWEST_COLUMNS = 2
_CHOICES = "choices"  # the key of a list in Label Studio's CSV
_BRACKETS = re.compile(r"""\[.*\]|\{.*\}|\(\s*['"].*\)""", re.DOTALL)  # as pandas and Python write lists to CSV


@dataclass(frozen=True)
class LabelSets:
    """The labels of each row of a table."""

    classes: tuple[str, ...]  # all labels, in the order of the model's outputs
    of_rows: list[tuple[str, ...]]  # the labels of each row, without repeats and in the order of the classes
    notes: tuple[str, ...] = ()  # about what is no label, or may be several
    unlabelled: frozenset[int] = frozenset()  # rows that do not say which labels their image has

    @property
    def texts(self) -> list[str]:
        """The labels of each row as one text, empty for a row without labels."""
        return [SEPARATOR.join(labels) for labels in self.of_rows]


def label_sets(
    manifest: Path,
    header: Sequence[str],
    columns: Sequence[Sequence[Any]],
    numbers: Sequence[int],
    *,
    needed: bool = True,
) -> LabelSets | None:
    """Return the labels of each row, from columns whose path and split are left out; None if no column has labels.

    Where they are not ``needed``, a note says which columns of 0 and 1 were taken for labels.

    Raises:
        DataError: If some columns of 0 and 1 are empty in a row and others are not, or a list in brackets is no JSON.
    """
    by_name = {name.strip().lower(): n for n, name in enumerate(header)}
    flags = [n for n, cells in enumerate(columns) if header[n].strip() and _has_flags(cells)]
    if (found := next((by_name[name] for name in LISTS if name in by_name), None)) is not None:
        beside = [visible(header[n]) for n in flags if n != found]
        note = (
            f"labels are read from column {visible(header[found])!r}, not from the columns of 0 and 1: "
            f"{first_ten(beside)}. For those, rename or remove it"
        )
        sets = _from_lists(manifest, header[found], columns[found], numbers, needed)
        return replace(sets, notes=(note, *sets.notes)) if len(beside) >= _FEWEST_COLUMNS else sets
    if len(flags) < _FEWEST_COLUMNS:
        return None
    bare = {row for row in range(len(numbers)) if not any(columns[n][row] for n in flags)}
    for n in flags:
        if empty := [numbers[row] for row, cell in enumerate(columns[n]) if not cell and row not in bare]:
            name = visible(header[n])
            raise DataError(
                f"{manifest}: rows {first_ten(empty)} have neither 0 nor 1 in column {name!r}: fill them in, or remove "
                "the column if it is no label"
            )
    classes = tuple(plain_name(header[n].strip()) for n in flags)
    present = [[cell.lower() in _TRUE for cell in columns[n]] for n in flags]
    rows = zip(*present, strict=True)
    others = [visible(header[n]) for n in range(len(header)) if n not in flags and header[n].strip()]
    notes: tuple[str, ...] = (f"no labels, because a cell is neither 0 nor 1: {first_ten(others)}",) if others else ()
    if not needed:
        notes += (f"the columns of 0 and 1 say which labels an image has: {first_ten(classes)}",)
    of_rows = [tuple(c for c, has in zip(classes, row, strict=True) if has) for row in rows]
    return LabelSets(classes, of_rows, notes, frozenset(bare))


def _from_lists(
    manifest: Path, column: str, cells: Sequence[str | tuple[str, ...]], numbers: Sequence[int], needed: bool
) -> LabelSets:
    # An empty cell of a text file is an empty list; elsewhere it is a missing one.
    is_text = manifest.suffix.lower() in TEXT_SUFFIXES
    bare = frozenset() if is_text else frozenset(n for n, cell in enumerate(cells) if cell == "")
    cells = [_from_json(cell) if isinstance(cell, str) else cell for cell in cells]
    texts = [cell for cell in cells if isinstance(cell, str) and cell]
    rows = zip(numbers, cells, strict=True)
    if bracketed := [row for row, cell in rows if isinstance(cell, str) and _BRACKETS.fullmatch(cell)]:
        raise DataError(
            f"{manifest}: rows {first_ten(bracketed)} have a list in brackets in column {visible(column)!r}: write "
            'cat;dog or ["cat", "dog"], or save the table as Parquet or JSON lines, whose lists are read'
        )
    other = not any(SEPARATOR in text for text in texts) and any(_OTHER_SEPARATOR in text for text in texts)
    separator = _OTHER_SEPARATOR if other else SEPARATOR
    split = [cell.split(separator) if isinstance(cell, str) else cell for cell in cells]
    sets = [{plain_name(name.strip()) for name in names if name.strip()} for names in split]
    classes = ordered_classes(set().union(*sets))
    place = {name: n for n, name in enumerate(classes)}
    commas = sum("," in text for text in texts)
    notes = []
    if mixed := [
        n
        for n, cell in zip(numbers, cells, strict=True)
        if isinstance(cell, str) and not other and _OTHER_SEPARATOR in cell
    ]:
        notes.append(
            f"rows {first_ten(mixed)} have a {_OTHER_SEPARATOR} in column {visible(column)!r}, which separates no "
            f"labels where other cells have a {SEPARATOR}"
        )
    if is_text and needed and (none := sum(not names for names in sets)):
        notes.append(
            f"{none:,} of {pluralize(len(sets), 'image')} have none of the labels, because their cell in column "
            f"{visible(column)!r} is empty; unlabelled images are given with --unlabelled"
        )
    if 2 * commas > len(texts) and not any(SEPARATOR in text or _OTHER_SEPARATOR in text for text in texts):
        notes.append(
            f"{commas:,} of {pluralize(len(texts), 'cell')} in column {visible(column)!r} have a comma, which "
            "separates no labels, so that each cell is one label: write cat;dog for two"
        )
    return LabelSets(classes, [tuple(sorted(names, key=place.__getitem__)) for names in sets], tuple(notes), bare)


def _from_json(cell: str) -> str | tuple[str, ...]:
    """Return the labels of a cell that is a list of text in JSON, as `predict` and Label Studio write it.

    Any other cell is returned as it is.
    """
    if not _BRACKETS.fullmatch(cell):
        return cell
    try:
        found = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    names = found.get(_CHOICES) if isinstance(found, dict) else found
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else cell


def _has_flags(cells: Sequence[Any]) -> bool:
    """Return whether every cell that is not empty is 0 or 1, and one is."""
    seen = {cell.lower() if isinstance(cell, str) else "list" for cell in cells} - {""}
    return bool(seen) and seen <= {*_TRUE, *_FALSE}
