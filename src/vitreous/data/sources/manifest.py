"""Labelled images in a table: a CSV or Parquet file with columns for path, label and optionally split."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitreous.data.sources.label_sets import SEPARATOR, LabelSets, label_sets
from vitreous.data.sources.listing import SPLIT_NAMES, UNLABELLED, Entry, Listing, first_ten, plain_name
from vitreous.data.sources.tables import LISTS, TABLE_SUFFIXES, Choose, read_table
from vitreous.errors import DataError, pluralize
from vitreous.files.text import visible

__all__ = ["MANIFEST_SUFFIXES", "list_manifest", "read_columns"]

MANIFEST_SUFFIXES = TABLE_SUFFIXES
"""How the names of manifests end."""
_COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "picture"),
    "label": ("label", "class", "target", "category", "class_name", "y"),
    "split": ("split", "subset", "fold", "set"),
}


def list_manifest(
    manifest: Path, *, needs_labels: bool = True, sets_aside: bool = False, reads_sets: bool = False
) -> Listing:
    """List the images of an existing .csv, .tsv, .parquet, .pq, .jsonl or .ndjson file.

    Columns are `path` (or `file`, `filename`, `image`), `label` (or `class`, `target`, `category`) and optionally
    `split` with `train`, `val` or `test`; case does not matter. If several columns qualify, the first in this order is
    read, and a note says so if their cells differ. Relative paths are relative to the table's folder. A CSV file may be
    separated by commas, semicolons or tabs. Unless it `needs_labels`, the column may be missing, or cells of it empty.
    If the table `sets_aside` images, rows with an empty label become `unlabelled`. In both cases, rows without a label
    may lack a split, which is then `train`.

    Without a column `label`, an image may have several labels: :mod:`vitreous.data.sources.label_sets`. They are read
    if the source `needs_labels`, or with `reads_sets`, where they may be missing.

    Raises:
        DataError: If the table cannot be read, or lacks a column or a cell that is needed.
    """
    whole: list[str] = []
    chooses = _needed_or_sets if needs_labels else partial(_needed, roles=("path",))
    header, columns, numbers = read_table(manifest, _noting(chooses, whole))
    if not numbers:
        raise DataError(f"{manifest} has a header and no rows")
    indices = {role: [header.index(name) for name in _columns_for(role, header)] for role in _COLUMNS}
    cells = {role: columns[index[0]] for role, index in indices.items() if index}
    sets = None
    if "label" not in cells and (needs_labels or reads_sets):
        sets = _read_sets(manifest, numbers, needed=needs_labels)
    unsaid = sets.unlabelled if sets is not None and not needs_labels else ()
    if sets is not None:
        cells["label"] = [UNLABELLED if n in unsaid else text for n, text in enumerate(sets.texts)]
    elif not needs_labels:
        cells["label"] = [label or UNLABELLED for label in cells.get("label", [""] * len(numbers))]
    named = {role: header[index[0]] for role, index in indices.items() if index}
    bare = _rows_without_label(manifest, cells["label"], sets, numbers, sets_aside=sets_aside, needed=needs_labels)
    if len(bare) == len(numbers):
        raise DataError(f"{manifest} has no row with a label: give some, or use `vitreous pretrain`, which needs none")
    if "split" in cells:
        free = bare if needs_labels else _unlabelled_rows(cells["label"])
        cells["split"] = [split or "train" if n in free else split for n, split in enumerate(cells["split"])]
    _check_cells(manifest, cells, named, numbers, may_be_empty=() if sets is None and not bare else ("label",))
    splits = cells.get("split")
    rows = [
        Entry(
            path=Path(os.path.normpath(manifest.parent / os.path.expanduser(path))),
            name=path,
            label=plain_name(label),
            split=SPLIT_NAMES[splits[n].lower()] if splits else None,
            labels=None if sets is None or n in unsaid else sets.of_rows[n],
        )
        for n, (path, label) in enumerate(zip(cells["path"], cells["label"], strict=True))
    ]
    notes = _notes_on_columns(header, columns, indices)
    notes += _note_on_both(named, whole) if needs_labels or reads_sets else []
    entries, aside = [entry for n, entry in enumerate(rows) if n not in bare], [rows[n] for n in sorted(bare)]
    notes += _notes_on_lists(entries) if sets is None else sets.notes
    classes = None if sets is None else sets.classes
    return Listing(manifest.parent, entries, notes + _conflicts(entries), classes=classes, unlabelled=aside)


def _rows_without_label(
    manifest: Path,
    labels: Sequence[str],
    sets: LabelSets | None,
    numbers: Sequence[int],
    *,
    sets_aside: bool,
    needed: bool,
) -> frozenset[int]:
    """Return the rows to set aside.

    Raises:
        DataError: If rows do not say which of several labels their image has, and may not be set aside.
    """
    if sets is None:
        return frozenset(n for n, label in enumerate(labels) if not label) if sets_aside else frozenset()
    if sets.unlabelled and needed and not sets_aside:
        rows = first_ten([numbers[n] for n in sorted(sets.unlabelled)])
        raise DataError(
            f"{manifest}: rows {rows} do not say which labels their image has: fill them in, or remove them"
        )
    return sets.unlabelled if sets_aside else frozenset()


def _unlabelled_rows(labels: Sequence[str]) -> frozenset[int]:
    """Return the rows without a label, or with none of several, where no label is needed."""
    return frozenset(n for n, label in enumerate(labels) if label in ("", UNLABELLED))


def _noting(choose: Choose, seen: list[str]) -> Choose:
    """Return the same choice of columns, which also puts the whole header into a list."""

    def noting(manifest: Path, header: Sequence[str]) -> list[str]:
        seen.extend(header)
        return choose(manifest, header)

    return noting


def _notes_on_columns(
    header: Sequence[str], columns: Sequence[Sequence[Any]], indices: Mapping[str, Sequence[int]]
) -> list[str]:
    """Note columns that could be read in the place of another, and differ."""
    return [
        f"{role} is read from column {header[index[0]]!r}, not from {header[other]!r}, which differs"
        for role, index in indices.items()
        for other in index[1:]
        if columns[other] != columns[index[0]]
    ]


def _note_on_both(named: Mapping[str, str], header: Sequence[str]) -> list[str]:
    """Note that a column of single labels is read where a column of lists is there too."""
    lists = [name for name in header if name.strip().lower() == LISTS[0]]
    if "label" not in named or not lists:
        return []
    return [
        f"each image has one class, from column {visible(named['label'])!r}: for the lists in column "
        f"{visible(lists[0])!r}, rename or remove the former"
    ]


def _notes_on_lists(entries: Sequence[Entry]) -> list[str]:
    """Note labels that look like several, in a column of single ones."""
    names = {entry.label for entry in entries}
    if lists := sorted(name for name in names if SEPARATOR in name or name.startswith(('["', '{"choices"'))):
        return [
            f"{len(lists):,} of {pluralize(len(names), 'class', 'classes')} look like several labels, and each is one "
            f"class here: {first_ten(lists)}. For several labels, name the column labels"
        ]
    return []


def _needed_or_sets(manifest: Path, header: Sequence[str]) -> list[str]:
    """Return the columns to read first: path, split, and label unless there are columns of several labels."""
    roles = ("path", "label") if _columns_for("label", header) else ("path",)
    return _needed(manifest, header, roles)


def _read_sets(manifest: Path, numbers: Sequence[int], *, needed: bool) -> LabelSets | None:
    """Read the columns of several labels, of a table without a column of one; None if there are none and may be none.

    Raises:
        DataError: If there are none and they are needed, or a cell is not 0 or 1.
    """
    whole: list[str] = []

    def choose(manifest: Path, header: Sequence[str]) -> list[str]:
        whole.extend(header)
        known = _needed(manifest, header, ("path",))
        lists = [name for name in header if name.strip().lower() == LISTS[0]]
        return lists or [name for name in header if name not in known]

    header, columns, _ = read_table(manifest, choose, "labels")
    found = label_sets(manifest, header, columns, numbers, needed=needed)
    if found is None and needed:
        raise _missing("label", manifest, whole)
    return found


def read_columns(manifest: Path, names: Sequence[str]) -> dict[str, list[str | None]]:
    """Return the columns of a table beyond path, label and split: column -> the cells of the images, None if empty.

    ``names`` are paths as the table has them. If a path is in several rows, the first counts. Columns of Parquet and
    JSON lines that are not text, numbers or booleans are left out.
    """
    paths = read_table(manifest, _path)[1][0]  # which may be bytes, unlike the others
    header, columns, _ = read_table(manifest, _further, "plain")
    row_of: dict[str, int] = {}
    for n, path in enumerate(paths):
        row_of.setdefault(path, n)
    rows = [row_of[name] for name in names]
    return {name: [column[n] or None for n in rows] for name, column in zip(header, columns, strict=True)}


def _path(manifest: Path, header: Sequence[str]) -> list[str]:
    return _columns_for("path", header)[:1]


def _further(manifest: Path, header: Sequence[str]) -> list[str]:
    known = _needed(manifest, header, ("path",))
    return [name for name in header if name not in known and name.strip()]


def _check_cells(
    manifest: Path,
    cells: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    numbers: Sequence[int],
    may_be_empty: Collection[str] = (),
) -> None:
    for role, values in cells.items():
        where = f"(column {names.get(role, role)!r})"
        if role not in may_be_empty and (empty := [numbers[n] for n, cell in enumerate(values) if not cell]):
            raise DataError(f"{manifest}: rows {first_ten(empty)} have no {role} {where}: fill it in, or remove them")
        if broken := [numbers[n] for n, cell in enumerate(values) if "\0" in cell]:
            raise DataError(
                f"{manifest}: rows {first_ten(broken)} have a NUL character in their {role} {where}: repair them, or "
                "save the table again as UTF-8"
            )
    splits = enumerate(cells.get("split", ()))
    unknown = [f"{numbers[n]} ({visible(cell)})" for n, cell in splits if cell.lower() not in SPLIT_NAMES]
    if unknown:
        raise DataError(f"{manifest}: split must be train, val or test; rows {first_ten(unknown)} have another")


def _conflicts(entries: Sequence[Entry]) -> list[str]:
    """Note the files that are listed with more than one label."""
    labels: dict[str, set[str]] = {}
    for entry in entries:
        labels.setdefault(os.fspath(entry.path), set()).add(entry.label)
    several = [os.path.basename(path) for path, names in labels.items() if len(names) > 1]
    if not several:
        return []
    return [f"{pluralize(len(several), 'image')} listed with more than one label: {first_ten(several)}"]


def _columns_for(role: str, header: Sequence[str]) -> list[str]:
    by_name = {name.strip().lower(): name for name in header}
    return [by_name[name] for name in _COLUMNS[role] if name in by_name]


def _needed(manifest: Path, header: Sequence[str], roles: Sequence[str] = ("path", "label")) -> list[str]:
    """Return the columns to read, in the header's order; those of the roles must be there."""
    counts = Counter(plain_name(name).strip().lower() for name in header)
    twice = [repr(name) for name, count in counts.items() if count > 1 and name]  # spreadsheets leave some unnamed
    if twice:
        raise DataError(f"{manifest} has more than one column {first_ten(twice)}: rename or remove all but one")
    for role in roles:
        if not _columns_for(role, header):
            raise _missing(role, manifest, header)
    needed = {name for role in _COLUMNS for name in _columns_for(role, header)}
    return [name for name in header if name in needed]


def _missing(role: str, manifest: Path, header: Sequence[str]) -> DataError:
    several = ". For several labels: a column labels, or one of 0 and 1 for each" if role == "label" else ""
    return DataError(
        f"{manifest} has no column {role} (or {', '.join(_COLUMNS[role][1:4])}): its columns are "
        f"{first_ten([visible(name) for name in header])}{several}"
    )
