"""Output for people: results on standard output, progress and remarks on standard error."""

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

from vitreous.cli.output.wrapping import wrap
from vitreous.files.text import printable

__all__ = ["format_count", "narrate", "print_table", "progress_bar", "silence", "stream_width"]

_UNLIMITED = 10_000  # columns: output to a file or another program is not wrapped
_MIN_WIDTH = 12  # columns that a shortened name keeps
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


def print_table(
    table: Table, stream: TextIO | None = None, *, drop: Sequence[str] = (), shorten: Sequence[int] = ()
) -> None:
    """Print a table, fitted to the width of a terminal, and at its natural width elsewhere.

    Cells with text from users must be ``Text``. A table that is too wide loses the columns headed ``drop``, in this
    order; then the columns with the indices ``shorten``, such as file names, are cut in the middle, and others wrap.
    """
    stream = stream or sys.stdout
    columns = None if stream.isatty() else _UNLIMITED
    console = Console(file=stream, width=columns, highlight=False, emoji=False, markup=False)
    shortened = [table.columns[n] for n in shorten]
    for heading in drop:
        if _excess_width(table, console) > 0:
            table.columns[:] = [column for column in table.columns if column.header != heading]
            for position, column in enumerate(table.columns):
                column._index = position
    widths = [max((cell_len(str(cell)) for cell in column._cells), default=0) for column in shortened]
    for _ in range(_excess_width(table, console) if shortened else 0):
        widest = max(range(len(shortened)), key=widths.__getitem__)
        widths[widest] = max(widths[widest] - 1, _MIN_WIDTH)
    for column, width in zip(shortened, widths, strict=True):
        column._cells[:] = [_shorten(cell, width) for cell in column._cells]
    console.print(table)


def stream_width(stream: TextIO) -> int:
    """Return the number of columns of a terminal; practically unlimited for other streams."""
    return Console(file=stream).width if stream.isatty() else _UNLIMITED


def _excess_width(table: Table, console: Console) -> int:
    wide = console.options.update(width=_UNLIMITED)
    return Measurement.get(console, wide, table).maximum - console.width


def _shorten(cell: RenderableType, width: int) -> RenderableType:
    text = str(cell)
    if cell_len(text) <= width:
        return cell
    head, tail = set_cell_size(text, (width - 1) // 2).rstrip(), text
    while cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    return Text(f"{head}\u2026{tail}", style=cell.style if isinstance(cell, Text) else "")


@contextlib.contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """Suppress :func:`narrate` and :func:`progress_bar` in this thread."""
    token = _SILENT.set(silent or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(token)


def narrate(text: str) -> None:
    """Print a line about the work on standard error, wrapped between words on a terminal.

    Brackets are not markup, and control characters are escaped.
    """
    if not _SILENT.get():
        print(wrap(printable(text), stream_width(sys.stderr)), file=sys.stderr, flush=True)  # noqa: T201


@contextlib.contextmanager
def progress_bar(label: str, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error, if that is a terminal or a notebook; yield its update(done, total)."""
    console = Console(stderr=True)
    if not shown or _SILENT.get() or not (console.is_jupyter or console.is_terminal):
        yield lambda done, total: None
    elif console.is_jupyter:
        from vitreous.cli.output.notebook import NotebookBar

        bar = NotebookBar()
        try:
            yield lambda done, total: bar.draw(f"{label} {done:,} of {total:,}", done / max(total, 1))
        finally:
            bar.clear()
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(label, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)


def format_count(value: float) -> str:
    """Format a large number with three digits and a unit: 5.72 M, 86.6 M, 1.01 G; numbers below 1000 have no unit."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 999.5 * size else f"{value / size:,.0f} {unit}"
    return f"{value:g}"
