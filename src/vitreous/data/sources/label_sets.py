"""Tables in which an image has several labels, or none: one column of lists, or one column of 0 and 1 for each label.

A list is a cell such as `cat;dog`, or a list of text in Parquet and JSON lines. It is read if the table has no column
for a single label (:mod:`vitreous.data.sources.manifest`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.data.sources.listing import first_ten, ordered_classes, plain_name, pluralize
from vitreous.data.sources.tables import LISTS
from vitreous.errors import DataError
from vitreous.files.text import visible

__all__ = ["SEPARATOR", "LabelSets", "label_sets"]

SEPARATOR = ";"
"""Between the labels of a cell, and in the text that stands for a set of labels."""

_OTHER_SEPARATOR = "|"  # as ChestX-ray14 has it; only if no cell has the usual one
_TRUE, _FALSE = ("1", "true"), ("0", "false")
_FEWEST_COLUMNS = 2
_BRACKETS = re.compile(r"""\[.*\]|\{.*\}|\(\s*['"].*\)""", re.DOTALL)  # as pandas and Python write lists to CSV


@dataclass(frozen=True)
class LabelSets:
    """The labels of each row of a table."""

    classes: tuple[str, ...]  # all labels, in the order of the model's outputs
    of_rows: list[tuple[str, ...]]  # the labels of each row, without repeats and in the order of the classes
    notes: tuple[str, ...] = ()  # about what is no label, or may be several

    @property
    def texts(self) -> list[str]:
        """The labels of each row as one text, empty for a row without labels."""
        return [SEPARATOR.join(labels) for labels in self.of_rows]


def label_sets(
    manifest: Path, header: Sequence[str], columns: Sequence[Sequence[Any]], numbers: Sequence[int]
) -> LabelSets | None:
    """Return the labels of each row, from columns whose path and split are left out; None if no column has labels.

    Raises:
        DataError: If a cell of a column of 0 and 1 is empty, or one of lists has brackets.
    """
    by_name = {name.strip().lower(): n for n, name in enumerate(header)}
    if (found := next((by_name[name] for name in LISTS if name in by_name), None)) is not None:
        return _from_lists(manifest, header[found], columns[found], numbers)
    flags = [n for n, cells in enumerate(columns) if header[n].strip() and _has_flags(cells)]
    if len(flags) < _FEWEST_COLUMNS:
        return None
    for n in flags:
        if empty := [row for row, cell in zip(numbers, columns[n], strict=True) if not cell]:
            name = visible(header[n])
            raise DataError(
                f"{manifest}: rows {first_ten(empty)} have neither 0 nor 1 in column {name!r}: fill them in, or remove "
                "the column if it is no label"
            )
    classes = tuple(plain_name(header[n].strip()) for n in flags)
    present = [[cell.lower() in _TRUE for cell in columns[n]] for n in flags]
    rows = zip(*present, strict=True)
    others = [visible(header[n]) for n in range(len(header)) if n not in flags and header[n].strip()]
    notes = (f"no labels, because a cell is neither 0 nor 1: {first_ten(others)}",) if others else ()
    return LabelSets(classes, [tuple(c for c, has in zip(classes, row, strict=True) if has) for row in rows], notes)


def _from_lists(
    manifest: Path, column: str, cells: Sequence[str | tuple[str, ...]], numbers: Sequence[int]
) -> LabelSets:
    texts = [cell for cell in cells if isinstance(cell, str) and cell]
    rows = zip(numbers, cells, strict=True)
    if bracketed := [row for row, cell in rows if isinstance(cell, str) and _BRACKETS.fullmatch(cell)]:
        raise DataError(
            f"{manifest}: rows {first_ten(bracketed)} have a list in brackets in column {visible(column)!r}: write "
            "cat;dog, or save the table as Parquet or JSON lines, whose lists are read"
        )
    other = not any(SEPARATOR in text for text in texts) and any(_OTHER_SEPARATOR in text for text in texts)
    separator = _OTHER_SEPARATOR if other else SEPARATOR
    split = [cell.split(separator) if isinstance(cell, str) else cell for cell in cells]
    sets = [{plain_name(name.strip()) for name in names if name.strip()} for names in split]
    classes = ordered_classes(set().union(*sets))
    place = {name: n for n, name in enumerate(classes)}
    commas = sum("," in text for text in texts)
    notes = []
    if 2 * commas > len(texts) and not any(SEPARATOR in text or _OTHER_SEPARATOR in text for text in texts):
        notes.append(
            f"{commas:,} of {pluralize(len(texts), 'cell')} in column {visible(column)!r} have a comma, which "
            "separates no labels, so that each cell is one label: write cat;dog for two"
        )
    return LabelSets(classes, [tuple(sorted(names, key=place.__getitem__)) for names in sets], tuple(notes))


def _has_flags(cells: Sequence[Any]) -> bool:
    """Return whether every cell that is not empty is 0 or 1, and one is."""
    seen = {cell.lower() if isinstance(cell, str) else "list" for cell in cells} - {""}
    return bool(seen) and seen <= {*_TRUE, *_FALSE}
