"""Labelled pictures in a table: a CSV or Parquet file with a column of paths, one of labels, perhaps one of splits."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous.data.listing import SPLIT_NAMES, Entry, Listing, first_ten, many, plain_name
from vitreous.errors import DataError, MissingExtraError

__all__ = ["MANIFEST_SUFFIXES", "list_manifest"]

MANIFEST_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "picture"),
    "label": ("label", "class", "target", "category", "class_name", "y"),
    "split": ("split", "subset", "fold", "set"),
}


def list_manifest(manifest: Path) -> Listing:
    """List the pictures of a table.

    Columns are `path` and `label` (or `file`, `filename`, `image`; `class`, `target`, `category`, in any case), and
    optionally `split` with `train`, `val` or `test`. A relative path is relative to the table's folder. A CSV may be
    separated by commas, semicolons or tabs.

    Args:
        manifest: An existing .csv, .tsv, .parquet or .pq file.

    Raises:
        DataError: If the table cannot be read, lacks a column, or has cells that are empty or no split, naming rows.
        MissingExtraError: If a Parquet file is given and pyarrow is not installed.
    """
    is_parquet = manifest.suffix.lower() in (".parquet", ".pq")
    header, rows, numbers = _read_parquet(manifest) if is_parquet else _read_csv(manifest)
    at = {role: _column(manifest, role, header) for role in _COLUMNS}
    ragged = [numbers[n] for n, row in enumerate(rows) if len(row) != len(header)]
    if ragged:
        raise DataError(f"{manifest}: rows {first_ten(ragged)} do not have the header's {len(header)} columns")
    if not rows:
        raise DataError(f"{manifest} has a header and no rows")
    columns = {role: [_text(row[n]) for row in rows] if n is not None else None for role, n in at.items()}
    paths, labels, splits = columns["path"] or [], columns["label"] or [], columns["split"]
    for role, cells in columns.items():
        empty = [numbers[n] for n, cell in enumerate(cells or []) if not cell]
        if empty:
            raise DataError(f"{manifest}: rows {first_ten(empty)} have no {role} (column {header[at[role] or 0]!r})")
    foreign = [f"{numbers[n]} ({cell})" for n, cell in enumerate(splits or []) if cell.lower() not in SPLIT_NAMES]
    if foreign:
        raise DataError(f"{manifest}: split must be train, val or test; rows {first_ten(foreign)} have another")
    entries = [
        Entry(
            path=Path(os.path.normpath(manifest.parent / os.path.expanduser(path))),
            name=path,
            label=plain_name(label),
            split=SPLIT_NAMES[splits[n].lower()] if splits else None,
        )
        for n, (path, label) in enumerate(zip(paths, labels, strict=True))
    ]
    return Listing(manifest.parent, entries, _conflicts(entries))


def _text(cell: object) -> str:
    """A cell as text: Parquet holds numbers, and 3.0 where pandas met a missing value in a column of whole numbers."""
    if isinstance(cell, float):
        cell = int(cell) if cell.is_integer() else None if math.isnan(cell) else cell
    return "" if cell is None else str(cell).strip()


def _column(manifest: Path, role: str, header: Sequence[str]) -> int | None:
    """Position of the column for a role; the best-known name wins."""
    lowered = [name.strip().lower() for name in header]
    for name in _COLUMNS[role]:
        if name in lowered:
            return lowered.index(name)
    if role == "split":
        return None
    raise DataError(
        f"{manifest} has no column {role} (or {', '.join(_COLUMNS[role][1:4])}): its columns are {first_ten(header)}"
    )


def _read_csv(manifest: Path) -> tuple[list[str], list[list[Any]], list[int]]:
    """Header, rows, and the line that each row ends on."""
    try:
        with manifest.open(encoding="utf-8-sig", newline="") as file:
            start = file.readline()
            file.seek(0)
            delimiter = max("\t;,", key=start.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            table = [(row, reader.line_num) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{manifest} cannot be read as a CSV file in UTF-8: {error}") from error
    if not table:
        raise DataError(f"{manifest} is empty: its first line must name the columns path and label")
    return table[0][0], [row for row, _ in table[1:]], [line for _, line in table[1:]]


def _read_parquet(manifest: Path) -> tuple[list[str], list[list[Any]], list[int]]:
    """Header, rows, and their numbers from 0, as data frames count."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            f"{manifest} is a Parquet file, and pyarrow is not installed: pip install 'vitreous[table]', or give a CSV"
        ) from error
    try:
        table = pyarrow.parquet.read_table(manifest)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{manifest} cannot be read as a Parquet file: {error}") from error
    columns = [column.to_pylist() for column in table.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return list(table.column_names), rows, list(range(len(rows)))


def _conflicts(entries: Sequence[Entry]) -> list[str]:
    """Note the files that are listed with more than one label."""
    labels: dict[Path, set[str]] = {}
    for entry in entries:
        labels.setdefault(entry.path, set()).add(entry.label)
    several = [path.name for path, names in labels.items() if len(names) > 1]
    return [f"{many(len(several), 'picture')} listed with more than one label: {first_ten(several)}"] if several else []
