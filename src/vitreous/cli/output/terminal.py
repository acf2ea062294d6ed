"""What the verbs share in talking to people: results on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vitreous.cli.output.wrapping import wrapped
from vitreous.files.text import printable

__all__ = ["bar", "columns_of", "narrate", "number", "print_table", "silence"]

_UNLIMITED = 10_000  # columns: what goes into a file or another program is not wrapped
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)
_LEAST = 12  # columns that a name keeps


def print_table(
    table: Table, stream: TextIO | None = None, *, drop: Sequence[str] = (), shorten: Sequence[int] = ()
) -> None:
    """Print a table, fitted to the terminal where there is one, at its natural width elsewhere.

    Args:
        table: Cells with text of users must be ``Text``.
        stream: None is standard output.
        drop: Headings of the columns that are left out where the table is too wide, in this order.
        shorten: Numbers of the columns whose texts then lose their middle, as file names may. Others are wrapped.
    """
    stream = stream or sys.stdout
    columns = None if stream.isatty() else _UNLIMITED
    console = Console(file=stream, width=columns, highlight=False, emoji=False, markup=False)
    names = [table.columns[n] for n in shorten]
    for heading in drop:
        if _excess(table, console) > 0:
            table.columns[:] = [column for column in table.columns if column.header != heading]
            for position, column in enumerate(table.columns):
                column._index = position
    fitting = [max((cell_len(str(cell)) for cell in column._cells), default=0) for column in names]
    for _ in range(_excess(table, console) if names else 0):
        widest = max(range(len(names)), key=fitting.__getitem__)
        fitting[widest] = max(fitting[widest] - 1, _LEAST)
    for column, width in zip(names, fitting, strict=True):
        column._cells[:] = [_shortened(cell, width) for cell in column._cells]
    console.print(table)


def columns_of(stream: TextIO) -> int:
    """How many columns a stream has: those of a terminal, else no end of them."""
    return Console(file=stream).width if stream.isatty() else _UNLIMITED


def _excess(table: Table, console: Console) -> int:
    """Columns by which a table is too wide."""
    wide = console.options.update(width=_UNLIMITED)
    return Measurement.get(console, wide, table).maximum - console.width


def _shortened(cell: RenderableType, width: int) -> RenderableType:
    """A cell without its middle, which tells names apart least, where it is too long."""
    text = str(cell)
    if cell_len(text) <= width:
        return cell
    head, tail = set_cell_size(text, (width - 1) // 2).rstrip(), text
    while cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    style = cell.style if isinstance(cell, Text) else ""
    return Text(f"{head}\u2026{tail}", style=style)


@contextlib.contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """Within, in this thread, :func:`narrate` and :func:`bar` say nothing."""
    before = _SILENT.set(silent or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(before)


def narrate(text: str) -> None:
    """Say a line about the work on standard error; brackets in it are no markup, control characters are shown.

    A terminal narrower than the line gets it broken between words.
    """
    if _SILENT.get():
        return
    print(wrapped(printable(text), columns_of(sys.stderr)), file=sys.stderr, flush=True)  # noqa: T201


@contextlib.contextmanager
def bar(label: str, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Give a function of (done, total) that moves a bar on standard error, where that is a terminal."""
    console = Console(stderr=True)
    if shown and console.is_jupyter and not _SILENT.get():
        with _in_notebook(label) as at:
            yield at
        return
    if not (shown and console.is_terminal) or _SILENT.get():
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def _in_notebook(label: str) -> Iterator[Callable[[int, int], None]]:
    """The bar of :func:`bar` in a notebook."""
    from vitreous.cli.output.notebook import Line  # here: only a notebook needs it

    line = Line()
    try:
        yield lambda done, total: line.draw(f"{label} {done:,} of {total:,}", done / max(total, 1))
    finally:
        line.clear()


def number(value: float) -> str:
    """Write a large count as people say it: 5.72 M, 86.6 M, 1.01 G; below a thousand as it is."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 999.5 * size else f"{value / size:,.0f} {unit}"
    return f"{value:g}"
