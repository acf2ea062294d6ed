"""Labelled images in a table: a CSV or Parquet file with columns for path, label and optionally split."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from vitreous.data.sources.listing import SPLIT_NAMES, UNLABELLED, Entry, Listing, first_ten, plain_name, pluralize
from vitreous.errors import DataError, MissingExtraError
from vitreous.files.opening import open_regular
from vitreous.files.text import visible

__all__ = ["MANIFEST_SUFFIXES", "list_manifest", "read_columns"]

MANIFEST_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "picture"),
    "label": ("label", "class", "target", "category", "class_name", "y"),
    "split": ("split", "subset", "fold", "set"),
}
_MOST_ROWS = 20_000_000  # ImageNet-21k has 14 million; a Parquet file of a few hundred bytes can claim any number
_CSV_BYTES = 4 << 30
_PARQUET_BYTES = 1 << 40  # the file may contain images; only the needed columns are read
_LINE = 1 << 20  # characters per line of a CSV file
_TEXT_BYTES = (16 << 20, 8192)  # limit of a decompressed Parquet column: a constant, plus bytes per row

_Table = tuple[list[str], list[list[Any]], list[int]]
"""Names of the chosen columns, their cells, and the number of each row in messages."""

_Choose = Callable[[Path, Sequence[str]], list[str]]
"""Returns the columns of a header to read, in its order."""


def list_manifest(manifest: Path, *, needs_labels: bool = True) -> Listing:
    """List the images of an existing .csv, .tsv, .parquet or .pq file.

    Columns are `path` (or `file`, `filename`, `image`), `label` (or `class`, `target`, `category`) and optionally
    `split` with `train`, `val` or `test`; case does not matter. If several columns qualify, the first in this order is
    read, and a note says so if their cells differ. Relative paths are relative to the table's folder. A CSV file may be
    separated by commas, semicolons or tabs. Unless it `needs_labels`, the column may be missing, or cells of it empty.
    """
    read = _read_parquet if manifest.suffix.lower() in (".parquet", ".pq") else _read_csv
    header, columns, numbers = read(manifest, _needed if needs_labels else partial(_needed, roles=("path",)))
    if not numbers:
        raise DataError(f"{manifest} has a header and no rows")
    indices = {role: [header.index(name) for name in _columns_for(role, header)] for role in _COLUMNS}
    cells = {role: columns[index[0]] for role, index in indices.items() if index}
    if not needs_labels:
        cells["label"] = [label or UNLABELLED for label in cells.get("label", [""] * len(numbers))]
    _check_cells(manifest, cells, {role: header[index[0]] for role, index in indices.items() if index}, numbers)
    splits = cells.get("split")
    entries = [
        Entry(
            path=Path(os.path.normpath(manifest.parent / os.path.expanduser(path))),
            name=path,
            label=plain_name(label),
            split=SPLIT_NAMES[splits[n].lower()] if splits else None,
        )
        for n, (path, label) in enumerate(zip(cells["path"], cells["label"], strict=True))
    ]
    notes = [
        f"{role} is read from column {header[index[0]]!r}, not from {header[other]!r}, which differs"
        for role, index in indices.items()
        for other in index[1:]
        if columns[other] != columns[index[0]]
    ]
    return Listing(manifest.parent, entries, notes + _conflicts(entries))


def read_columns(manifest: Path, names: Sequence[str]) -> dict[str, list[str | None]]:
    """Return the columns of a table beyond path, label and split: column -> the cells of the images, None if empty.

    ``names`` are paths as the table has them. If a path is in several rows, the first counts. Columns of a Parquet file
    that are not text, numbers or booleans are left out.
    """
    is_parquet = manifest.suffix.lower() in (".parquet", ".pq")
    header, columns, _ = (_read_parquet if is_parquet else _read_csv)(manifest, _path_and_further)
    row_of: dict[str, int] = {}
    paths = columns[header.index(_columns_for("path", header)[0])]
    for n, path in enumerate(paths):
        row_of.setdefault(path, n)
    rows = [row_of[name] for name in names]
    return {
        name: [column[n] or None for n in rows]
        for name, column in zip(header, columns, strict=True)
        if column is not paths
    }


def _path_and_further(manifest: Path, header: Sequence[str]) -> list[str]:
    path = _columns_for("path", header)[0]
    known = _needed(manifest, header)
    return [name for name in header if name == path or (name not in known and name.strip())]


def _check_cells(
    manifest: Path, cells: Mapping[str, Sequence[str]], names: Mapping[str, str], numbers: Sequence[int]
) -> None:
    for role, values in cells.items():
        where = f"(column {names.get(role, role)!r})"
        if empty := [numbers[n] for n, cell in enumerate(values) if not cell]:
            raise DataError(f"{manifest}: rows {first_ten(empty)} have no {role} {where}")
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
    counts = Counter(name.strip().lower() for name in header)
    twice = [repr(name) for name, count in counts.items() if count > 1 and name]  # spreadsheets leave some unnamed
    if twice:
        raise DataError(f"{manifest} has more than one column {first_ten(twice)}: rename or remove all but one")
    for role in roles:
        if not _columns_for(role, header):
            raise DataError(
                f"{manifest} has no column {role} (or {', '.join(_COLUMNS[role][1:4])}): its columns are "
                f"{first_ten([visible(name) for name in header])}"
            )
    needed = {name for role in _COLUMNS for name in _columns_for(role, header)}
    return [name for name in header if name in needed]


def _read_csv(manifest: Path, choose: _Choose = _needed) -> _Table:
    """Read the chosen columns of a CSV file; rows are numbered by the line they end on."""
    try:
        with (
            open_regular(manifest, _CSV_BYTES) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file,
        ):
            lines = _lines(file)
            start = next(lines, "")
            delimiter = max("\t;,", key=start.count)
            reader = csv.reader(itertools.chain([start], lines), delimiter=delimiter, strict=True)
            header = next((row for row in reader if row), None)
            if header is None:
                raise DataError(f"{manifest} is empty: its first line must name the columns path and label")
            needed = choose(manifest, header)
            index = [header.index(name) for name in needed]
            columns: list[list[Any]] = [[] for _ in needed]
            numbers: list[int] = []
            ragged: list[int] = []
            for row in reader:
                if len(row) == len(header):
                    for column, n in zip(columns, index, strict=True):
                        column.append(row[n].strip())
                    numbers.append(reader.line_num)
                elif row:
                    ragged.append(reader.line_num)
                _check_rows(manifest, len(numbers))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{manifest} cannot be read as a CSV file in UTF-8: {reason}") from error
    if ragged:
        raise DataError(f"{manifest}: rows {first_ten(ragged)} do not have the header's {len(header)} columns")
    return needed, columns, numbers


def _lines(file: TextIO) -> Iterator[str]:
    """Yield lines, without reading more than the limit of one line."""
    while line := file.readline(_LINE):
        if len(line) == _LINE and line[-1] not in "\r\n":
            raise csv.Error(f"it has a line of over {_LINE:,} characters")
        yield line


def _check_rows(manifest: Path, count: int) -> None:
    if count > _MOST_ROWS:
        raise DataError(f"{manifest} has {count:,} rows or more, the limit is {_MOST_ROWS:,}: split it up")


def _read_parquet(manifest: Path, choose: _Choose = _needed) -> _Table:
    """Read the chosen columns of a Parquet file; rows are numbered from 0, as in data frames."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            f"{manifest} is a Parquet file, and pyarrow is not installed: pip install 'vitreous[table]', or give a CSV"
        ) from error
    try:
        with open_regular(manifest, _PARQUET_BYTES) as raw, pyarrow.parquet.ParquetFile(raw) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
            needed = choose(manifest, schema.names)
            if choose is _path_and_further:
                needed = [name for name in needed if _is_plain(schema.field(name).type)]
            _check_rows(manifest, count)
            _check_columns(manifest, file, needed)
            table = file.read(columns=needed)
            columns = [[_text(cell) for cell in table.column(name).to_pylist()] for name in needed]
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{manifest} cannot be read as a Parquet file: {reason}") from error
    return needed, columns, list(range(count))


def _check_columns(manifest: Path, file: Any, needed: Sequence[str]) -> None:
    """Raise if a needed column is not text, numbers or booleans, or would decompress to an implausible size."""
    for name in needed:
        kind = file.schema_arrow.field(name).type
        if not _is_plain(kind, binary=True):
            raise DataError(
                f"{manifest}: column {name!r} holds {visible(str(kind))[:80]}, it must hold text; name another column "
                "path or label"
            )
    base, each = _TEXT_BYTES
    for group in (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)):
        for column in (group.column(n) for n in range(group.num_columns)):
            name, size, limit = column.path_in_schema, column.total_uncompressed_size, base + each * group.num_rows
            if name in needed and size > limit:
                rows = pluralize(group.num_rows, "row")
                raise DataError(
                    f"{manifest}: column {name!r} unpacks to {size:,} bytes in {rows}, the limit is {limit:,}"
                )


def _is_plain(kind: Any, binary: bool = False) -> bool:
    """Whether a column holds text, numbers or booleans; with ``binary`` also bytes, which may be text."""
    from pyarrow import types

    plain = (
        *(types.is_string, types.is_large_string, types.is_string_view),
        *((types.is_binary, types.is_large_binary) if binary else ()),
        *(types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null),
    )
    inner = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_plain(inner) for is_plain in plain)


def _text(cell: object) -> str:
    """Return a cell as text. Parquet contains numbers; pandas stores 3 as 3.0 in a column with missing values."""
    if isinstance(cell, float):
        cell = int(cell) if cell.is_integer() else None if math.isnan(cell) else cell
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8")
    return "" if cell is None else str(cell).strip()
