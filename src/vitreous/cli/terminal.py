"""What the verbs share in talking to people: results on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from vitreous.files.text import printable

__all__ = ["bar", "narrate", "number", "print_table"]

_UNLIMITED = 10_000  # columns: what goes into a file or another program is not wrapped


def print_table(table: Table, stream: TextIO | None = None) -> None:
    """Print a table, wrapped to the terminal where there is one, to its natural width elsewhere.

    Args:
        table: Cells with text of users must be ``Text``.
        stream: None is standard output.
    """
    stream = stream or sys.stdout
    width = None if stream.isatty() else _UNLIMITED
    Console(file=stream, width=width, highlight=False, emoji=False, markup=False).print(table)


def narrate(text: str) -> None:
    """Say a line about the work on standard error; brackets in it are no markup, control characters are shown."""
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201


@contextlib.contextmanager
def bar(label: str, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Give a function of (done, total) that moves a bar on standard error, where that is a terminal."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def number(value: float) -> str:
    """Write a large count as people say it: 5.72 M, 86.6 M, 1.01 G; below a thousand as it is."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 999.5 * size else f"{value / size:,.0f} {unit}"
    return f"{value:g}"
