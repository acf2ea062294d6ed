"""How predictions are written: JSON lines and CSV for programs, a table for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from vitreous.cli.output.terminal import columns_of, print_table
from vitreous.files.text import csv_line, json_text, printable, visible
from vitreous.files.writing import Outputs
from vitreous.predictor import Failure, Prediction

__all__ = ["record", "writer"]

Write = Callable[[Prediction | Failure], None]
_FRAME = len("probability") + 4 * 3 + 1  # columns of a table that are not for text of users
_NAME = 36  # columns, to which a name is shortened before other classes are left out
_REASON = 24  # columns, below which there is no room to say why a picture could not be read


@contextmanager
def writer(
    form: str, output: str | None, top_k: int, computed_by: Mapping[str, str], files: Outputs
) -> Iterator[Write]:
    """Give a function that writes one result; a file is written whole or not at all.

    Args:
        form: `table`, `jsonl`, `csv`, or `none`, which writes nothing.
        output: The file; None is standard output.
        top_k: Classes in a result.
        computed_by: What computed, for the lines of `jsonl`.
        files: Writes the file.
    """
    formats: dict[str, Callable[[TextIO, int], Iterator[Write]]]
    formats = {"table": _write_table, "jsonl": partial(_write_jsonl, computed_by), "csv": _write_csv}
    if form == "none":
        yield lambda result: None
        return
    if output is None:
        yield from formats[form](sys.stdout, top_k)
        return
    with files.replacing(output) as path, open(path, "w", newline="", encoding="utf-8") as stream:
        yield from formats[form](stream, top_k)


def _write_jsonl(computed_by: Mapping[str, str], stream: TextIO, top_k: int) -> Iterator[Write]:
    """One object a line: path, label, probability, top, engine, precision, device; or path, error."""
    unicode = (stream.encoding or "utf-8").lower().startswith("utf")

    def write(result: Prediction | Failure) -> None:
        by = {} if isinstance(result, Failure) else computed_by
        stream.write(json_text({**record(result), **by}, ascii_only=not unicode) + "\n")

    yield write


def record(result: Prediction | Failure) -> dict[str, Any]:
    """A result as JSON has it: path, label, probability and top; or path and error."""
    if isinstance(result, Failure):
        return {"path": result.name, "error": result.reason}
    top = [{"label": label, "probability": _short(probability)} for label, probability in result.top]
    return {"path": result.name, "label": result.label, "probability": _short(result.probability), "top": top}


def _write_csv(stream: TextIO, top_k: int) -> Iterator[Write]:
    """A header, then a row each: path, label, probability, label_2, probability_2, ..., error."""
    further = [f"{what}_{rank}" for rank in range(2, top_k + 1) for what in ("label", "probability")]
    stream.write(csv_line(["path", "label", "probability", *further, "error"]))

    def write(result: Prediction | Failure) -> None:
        if isinstance(result, Failure):
            stream.write(csv_line([result.name, *[""] * (2 * top_k), result.reason]))
        else:
            top = [field for label, probability in result.top for field in (label, _short(probability))]
            stream.write(csv_line([result.name, *top, ""]))

    yield write


def _write_table(stream: TextIO, top_k: int) -> Iterator[Write]:
    """For people: one picture with a bar per class, several with a row each; after an interrupt, what there is."""
    results: list[Prediction | Failure] = []
    try:
        yield results.append
    finally:
        predictions = [result for result in results if isinstance(result, Prediction)]
        if len(results) == 1 and predictions:
            stream.write(f"{visible(predictions[0].name)}\n")
            table = Table(box=None, show_header=False)
            for label, probability in predictions[0].top:
                bar = "\u2501" * round(30 * probability)
                table.add_row(Text(visible(label)), f"{probability:7.2%}", bar)
            print_table(table, stream, shorten=(0,))
        elif results:
            print_table(_rows_for_people(results, columns_of(stream)), stream, shorten=(0, 1))


def _rows_for_people(results: Sequence[Prediction | Failure], width: int) -> Table:
    """A table with a row per picture, and in its last column as many further classes as the width has room for."""
    names = [Text(visible(result.name)) for result in results]
    labels = [Text("" if isinstance(result, Failure) else visible(result.label)) for result in results]
    others = [[] if isinstance(result, Failure) else _others(result) for result in results]
    longest = min(_NAME, max(text.cell_len for text in names)), max(text.cell_len for text in labels)
    room = width - _FRAME - sum(longest)
    count = max(map(len, others))
    while count and max(cell_len(", ".join(each[:count])) for each in others) > room:
        count -= 1
    told = count > 0 or room >= _REASON
    table = Table("picture", "label", "probability", *(["next"] if told else []), box=SIMPLE_HEAD)
    table.columns[2].justify = "right"
    for result, name, label, rest in zip(results, names, labels, others, strict=True):
        if isinstance(result, Failure):  # the reason is told on standard error too
            reason = Text(printable(result.reason, 500), style="red")
            row = [name, Text(), Text(), reason] if told else [name, Text("not read", style="red"), Text()]
        else:
            further = [Text(", ".join(rest[:count]))] if told else []
            row = [name, label, Text(f"{result.probability:.1%}"), *further]
        table.add_row(*row)
    return table


def _others(result: Prediction) -> list[str]:
    """The classes after the most probable one, each with its probability."""
    return [f"{visible(label)} {probability:.1%}" for label, probability in result.top[1:]]


def _short(probability: float) -> float:
    """Six significant digits: what float32 holds."""
    return float(f"{probability:.6g}")
