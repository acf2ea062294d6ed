"""Writers of predictions: JSON lines and CSV for programs, a table for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from vitreous.cli.output.terminal import print_table, stream_width
from vitreous.files.text import csv_line, json_text, printable, visible
from vitreous.files.writing import Outputs
from vitreous.predictions import Failure, Prediction

__all__ = ["to_record", "writer"]

Write = Callable[[Prediction | Failure], None]
_FRAME = len("probability") + 4 * 3 + 1  # columns of a table besides file name, label and next classes
_BELOW = "below its threshold"
_NAME_WIDTH = 36  # columns; names are shortened to that before next classes are left out
_REASON_WIDTH = 24  # columns; with fewer there is no room for the reason of a failure


@contextmanager
def writer(
    output_format: str,
    output: str | None,
    top_k: int,
    computed_by: Mapping[str, str],
    files: Outputs,
    *,
    thresholds: Collection[str] = (),
) -> Iterator[Write]:
    """Yield a function that writes one result; a file is written completely or not at all.

    The format is `table`, `jsonl`, `csv`, or `none`, which writes nothing; ``output`` None is standard output.
    ``computed_by`` has engine, precision and device for the lines of `jsonl`, and ``thresholds`` the further columns of
    `csv`: `unsure`, `set` and `labels`, as far as the model has them.
    """
    formats: dict[str, Callable[[TextIO, int], Iterator[Write]]] = {
        "table": _write_table,
        "jsonl": partial(_write_jsonl, computed_by),
        "csv": partial(_write_csv, thresholds),
    }
    if output_format == "none":
        yield lambda result: None
        return
    if output is None:
        yield from formats[output_format](sys.stdout, top_k)
        return
    with files.atomic_write(output) as path, open(path, "w", newline="", encoding="utf-8") as stream:
        yield from formats[output_format](stream, top_k)


def _write_jsonl(computed_by: Mapping[str, str], stream: TextIO, top_k: int) -> Iterator[Write]:
    """Write one object per line: the fields of `to_record`, then engine, precision and device; or path, error."""
    unicode = (stream.encoding or "utf-8").lower().startswith("utf")

    def write(result: Prediction | Failure) -> None:
        provenance = {} if isinstance(result, Failure) else computed_by
        stream.write(json_text({**to_record(result), **provenance}, ascii_only=not unicode) + "\n")

    yield write


def to_record(result: Prediction | Failure) -> dict[str, Any]:
    """Return a result for JSON: path, label, probability and top; or path and error.

    With thresholds also `unsure`, and `set` with `set_coverage`; with several labels, `labels`.
    """
    if isinstance(result, Failure):
        return {"path": result.name, "error": result.reason}
    top = [{"label": label, "probability": _round(probability)} for label, probability in result.top]
    record = {"path": result.name, "label": result.label, "probability": _round(result.probability), "top": top}
    if result.unsure is not None:
        record["unsure"] = result.unsure
    if result.set is not None:
        record |= {"set": list(result.set), "set_coverage": result.set_coverage}
    if result.labels is not None:
        record["labels"] = list(result.labels)
    return record


def _write_csv(thresholds: Collection[str], stream: TextIO, top_k: int) -> Iterator[Write]:
    """Write a header, then one row per result: path, label, probability, label_2, ..., thresholds, error.

    `thresholds` are the columns of a model with thresholds: `unsure`, true or false; `set` and `labels`, JSON lists.
    """
    further = [f"{field}_{rank}" for rank in range(2, top_k + 1) for field in ("label", "probability")]
    stream.write(csv_line(["path", "label", "probability", *further, *thresholds, "error"]))

    def write(result: Prediction | Failure) -> None:
        if isinstance(result, Failure):
            stream.write(csv_line([result.name, *[""] * (2 * top_k + len(thresholds)), result.reason]))
        else:
            top = [field for label, probability in result.top for field in (label, _round(probability))]
            record = to_record(result)
            decided = [record[name] for name in thresholds]
            cells = [each if isinstance(each, list) else json_text(each) for each in decided]
            stream.write(csv_line([result.name, *top, *cells, ""]))

    yield write


def _write_table(stream: TextIO, top_k: int) -> Iterator[Write]:
    """Write a bar per class for one image, a table for several; after an interrupt, the results so far."""
    results: list[Prediction | Failure] = []
    try:
        yield results.append
    finally:
        predictions = [result for result in results if isinstance(result, Prediction)]
        if len(results) == 1 and predictions:
            stream.write(f"{visible(predictions[0].name)}\n")
            table = Table(box=None, show_header=False)
            given = predictions[0].labels
            for label, probability in predictions[0].top:
                bar = "\u2501" * round(30 * probability)
                marks = [] if given is None else ["" if label in given else _BELOW]
                table.add_row(Text(visible(label)), f"{probability:7.2%}", *marks, bar)
            if predictions[0].unsure or predictions[0].labels is not None:
                stream.write(f"{_label(predictions[0])}\n")
            print_table(table, stream, shorten=(0,))
            if predictions[0].set is not None:
                stream.write(f"{_set_heading(predictions)}: {_set_names(predictions[0])}\n")
        elif results:
            print_table(_table(results, stream_width(stream)), stream, shorten=(0, 1))


def _label(prediction: Prediction) -> str:
    """Return the label as people read it: `cat`, `cat, dog`, `none` or `unsure (cat 0.41)`."""
    label = visible(prediction.label)
    if prediction.labels is not None:
        return ", ".join(map(visible, prediction.labels)) or "none"
    return f"unsure ({label} {prediction.probability:.2f})" if prediction.unsure else label


def _set_heading(predictions: Sequence[Prediction]) -> str:
    return f"set, {100 * (predictions[0].set_coverage or 0):.4g} % coverage"


def _set_names(prediction: Prediction) -> str:
    return ", ".join(map(visible, prediction.set or ()))


def _last_column(result: Prediction | Failure) -> list[str]:
    """Return the set of classes, or the next classes with their probabilities; with several labels, the first too."""
    if isinstance(result, Failure):
        return []
    if result.set is not None:
        return [_set_names(result)]
    first = 1 if result.labels is None else 0
    return [f"{visible(name)} {share:.1%}" for name, share in result.top[first:]]


def _table(results: Sequence[Prediction | Failure], width: int) -> Table:
    """Return a table with a row per image and, in its last column, as many next classes as fit into the width.

    If the model has sets of classes, the last column is the set. With several labels it has the most probable ones,
    also those below their threshold, and there is no column for the probability of one.
    """
    predictions = [result for result in results if isinstance(result, Prediction)]
    has_sets = bool(predictions) and predictions[0].set is not None
    several = bool(predictions) and predictions[0].labels is not None
    names = [Text(visible(result.name)) for result in results]
    labels = [Text("" if isinstance(result, Failure) else _label(result)) for result in results]
    others = [_last_column(result) for result in results]
    longest = min(_NAME_WIDTH, max(text.cell_len for text in names)), max(text.cell_len for text in labels)
    room = width - _FRAME - sum(longest)
    count = max(map(len, others))
    while count and not has_sets and max(cell_len(", ".join(each[:count])) for each in others) > room:
        count -= 1
    has_next = count > 0 or room >= _REASON_WIDTH
    last = _set_heading(predictions) if has_sets else "most probable" if several else "next"
    table = Table("image", "labels" if several else "label", box=SIMPLE_HEAD)
    if not several:
        table.add_column("probability", justify="right")
    if has_next:
        table.add_column(last)
    for result, name, label, rest in zip(results, names, labels, others, strict=True):
        if isinstance(result, Failure):  # standard error has the full reason
            reason = Text(printable(result.reason, 500), style="red")
            row = [name, Text() if has_next else Text("not read", style="red")]
            shown = [reason] if has_next else []
        else:
            row, shown = [name, label], [Text(", ".join(rest[:count]))] if has_next else []
        number = Text("" if isinstance(result, Failure) else f"{result.probability:.1%}")
        table.add_row(*row, *([] if several else [number]), *shown)
    return table


def _round(probability: float) -> float:
    """Round to six significant digits, the precision of float32."""
    return float(f"{probability:.6g}")
