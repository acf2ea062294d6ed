"""Tables on disk: chosen columns of a CSV, Parquet or JSON-lines file as text, with limits for untrusted files.

Which columns mean what is decided in :mod:`vitreous.data.sources.manifest`.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from vitreous.data.sources.listing import first_ten
from vitreous.errors import DataError, MissingExtraError, pluralize
from vitreous.files.opening import open_regular
from vitreous.files.text import visible

__all__ = ["LISTS", "TABLE_SUFFIXES", "TEXT_SUFFIXES", "Cell", "Choose", "Fit", "Table", "read_table"]

LISTS = ("labels", "tags")
"""Names of the columns, in lower case, whose cells may be lists of text."""

TEXT_SUFFIXES = (".csv", ".tsv")
"""How the names of tables end whose cells are all text: nothing is missing in them, only empty."""

TABLE_SUFFIXES = (*TEXT_SUFFIXES, ".parquet", ".pq", ".jsonl", ".ndjson")
"""How the names of tables end that can be read."""
_MOST_ROWS = 20_000_000  # ImageNet-21k has 14 million; a Parquet file of a few hundred bytes can claim any number
_CSV_BYTES = 4 << 30  # also of JSON lines
_PARQUET_BYTES = 1 << 40  # the file may contain images; only the needed columns are read
_LINE = 1 << 20  # characters per line of a CSV or JSON-lines file
_TEXT_BYTES = (16 << 20, 8192)  # limit of a decompressed Parquet column: a constant, plus bytes per row

Cell = str | tuple[str, ...]
"""Text, or a list of texts, which Parquet and JSON lines have."""

Table = tuple[list[str], list[list[Any]], list[int]]
"""Names of the chosen columns, their cells, and the number of each row in messages."""

Choose = Callable[[Path, Sequence[str]], list[str]]
"""Returns the columns of a header to read, in its order."""

Fit = Literal["needed", "plain", "labels"]
"""Which chosen columns of Parquet and JSON lines are read: all, where a kind that is no text is an error; those of
text, numbers and booleans; or those that may have several labels: numbers, booleans, and the lists."""


def read_table(manifest: Path, choose: Choose, fit: Fit = "needed") -> Table:
    """Read the columns of an existing table that ``choose`` returns for its header."""
    suffix = manifest.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return _read_parquet(manifest, choose, fit)
    return _read_json_lines(manifest, choose, fit) if suffix in (".jsonl", ".ndjson") else _read_csv(manifest, choose)


def _read_csv(manifest: Path, choose: Choose) -> Table:
    """Read the chosen columns of a CSV file; rows are numbered by the line they end on."""
    try:
        with (
            open_regular(manifest, _CSV_BYTES) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file,
        ):
            lines = _lines(file)
            skipped, start = _first_filled(lines)
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
                    numbers.append(skipped + reader.line_num)
                elif row:
                    ragged.append(skipped + reader.line_num)
                _check_rows(manifest, len(numbers))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{manifest} cannot be read as a CSV file in UTF-8: {reason}") from error
    if ragged:
        raise DataError(f"{manifest}: rows {first_ten(ragged)} do not have the header's {len(header)} columns")
    return needed, columns, numbers


def _first_filled(lines: Iterator[str]) -> tuple[int, str]:
    """Return how many lines at the start have nothing but separators, and the line after them; empty if all have."""
    for skipped, line in enumerate(lines):
        if line.strip("\t;, \r\n"):
            return skipped, line
    return 0, ""


def _read_json_lines(manifest: Path, choose: Choose, fit: Fit) -> Table:
    """Read the chosen fields of a file with one JSON object per line; a field that an object lacks is empty."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    number = 1  # of the line that is read
    try:
        with (
            open_regular(manifest, _CSV_BYTES) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig") as file,
        ):
            for line in _lines(file):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise DataError(f'{manifest}: line {number} is no JSON object such as {{"path": "a.jpg"}}')
                    rows.append(row)
                    numbers.append(number)
                    _check_rows(manifest, len(rows))
                number += 1
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        where = "" if isinstance(error, OSError) else f", line {number}"
        raise DataError(f"{manifest} cannot be read as JSON lines in UTF-8{where}: {reason}") from error
    header = list(dict.fromkeys(name for row in rows for name in row))
    if not header:
        raise DataError(f"{manifest} is empty: each line must be a JSON object with path and label")
    needed = choose(manifest, header)
    if fit != "needed":
        lists = LISTS if fit == "labels" else ()
        needed = [name for name in needed if name.strip().lower() in lists or _is_plain(row.get(name) for row in rows)]
    for name in needed:
        kind = "text, a number or a list of text" if name.strip().lower() in LISTS else "text or a number"
        if wrong := [n for n, row in zip(numbers, rows, strict=True) if not _is_json_cell(name, row.get(name))]:
            raise DataError(f"{manifest}: {name!r} must be {kind}; lines {first_ten(wrong)} have another")
    return needed, [[_text(row.get(name)) for row in rows] for name in needed], numbers


def _is_plain(cells: Iterable[object]) -> bool:
    return all(cell is None or isinstance(cell, str | int | float) for cell in cells)


def _is_json_cell(name: str, cell: object) -> bool:
    if isinstance(cell, list) and name.strip().lower() in LISTS:
        return all(isinstance(item, str | int) for item in cell)
    return _is_plain([cell])


def _lines(file: TextIO) -> Iterator[str]:
    """Yield lines, without reading more than the limit of one line."""
    while line := file.readline(_LINE):
        if len(line) == _LINE and line[-1] not in "\r\n":
            raise csv.Error(f"it has a line of over {_LINE:,} characters")
        yield line


def _check_rows(manifest: Path, count: int) -> None:
    if count > _MOST_ROWS:
        raise DataError(f"{manifest} has {count:,} rows or more, the limit is {_MOST_ROWS:,}: split it up")


def _read_parquet(manifest: Path, choose: Choose, fit: Fit) -> Table:
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
            if fit != "needed":
                kinds = _plain_kinds() if fit == "plain" else _number_kinds()
                needed = [
                    name
                    for name in needed
                    if _is_one_of(schema.field(name).type, kinds) or (fit == "labels" and name.strip().lower() in LISTS)
                ]
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
        if not _is_one_of(kind, (*_plain_kinds(), *_text_bytes_kinds())) and not (
            name.strip().lower() in LISTS and _is_list_of_text(kind)
        ):
            raise DataError(
                f"{manifest}: column {name!r} holds {visible(str(kind))[:80]}, it must hold text; name another column "
                "path or label"
            )
    base, each = _TEXT_BYTES
    for group in (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)):
        for column in (group.column(n) for n in range(group.num_columns)):
            name, size = column.path_in_schema, column.total_uncompressed_size
            limit = base + each * group.num_rows
            name = next((one for one in needed if name.startswith(f"{one}.list.")), name)  # of a column of lists
            if name in needed and size > limit:
                rows = pluralize(group.num_rows, "row")
                raise DataError(
                    f"{manifest}: column {name!r} unpacks to {size:,} bytes in {rows}, the limit is {limit:,}"
                )


def _plain_kinds() -> tuple[Any, ...]:
    """Return tests for text, numbers and booleans."""
    from pyarrow import types

    return (types.is_string, types.is_large_string, types.is_string_view, *_number_kinds(), types.is_null)


def _number_kinds() -> tuple[Any, ...]:
    from pyarrow import types

    return types.is_integer, types.is_floating, types.is_boolean, types.is_decimal


def _text_bytes_kinds() -> tuple[Any, ...]:
    """Return tests for bytes, which may be text."""
    from pyarrow import types

    return types.is_binary, types.is_large_binary


def _is_one_of(kind: Any, tests: Sequence[Any]) -> bool:
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    return any(test(inner) for test in tests)


def _is_list_of_text(kind: Any) -> bool:
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and _is_one_of(kind.value_type, _plain_kinds())


def _text(cell: object) -> Cell:
    """Return a cell as text. Parquet contains numbers; pandas stores 3 as 3.0 in a column with missing values."""
    if isinstance(cell, list):
        return tuple(str(_text(item)) for item in cell)
    if isinstance(cell, float):
        cell = int(cell) if cell.is_integer() else None if math.isnan(cell) else cell
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8")
    return "" if cell is None else str(cell).strip()
