"""What `vitreous probe` does between reading its words and the end: features, the table, the JSON."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.cli.options.outputs import write_document
from vitreous.cli.output.terminal import bar
from vitreous.data.sources.listing import many
from vitreous.data.sources.opening import ImageData
from vitreous.errors import DataError
from vitreous.evaluate.fewshot import FewShot
from vitreous.evaluate.probes import ProbeReport
from vitreous.files.text import visible
from vitreous.files.writing import Outputs
from vitreous.predictor import Classifier, Failure

__all__ = ["features_of", "remarks", "table", "write_json"]


def remarks(info: ModelInfo, data: ImageData) -> Iterator[str]:
    """Yield what a reader should know before the scores."""
    yield from data.notes
    if data.unreadable:
        path, reason = data.unreadable[0]
        are = "is" if len(data.unreadable) == 1 else "are"
        yield f"{many(len(data.unreadable), 'file')} cannot be read and {are} left out (first: {path}: {reason})"
    trained_on = info.provenance.get("data")
    if isinstance(trained_on, dict) and trained_on.get("fingerprint") == data.fingerprint:
        yield "the model was trained on train: its features tell those pictures apart better than new ones"


def features_of(classifier: Classifier, data: ImageData, name: str, batch_size: int) -> npt.NDArray[np.float32]:
    """Compute the features (n, D) of a split's pictures, with a bar."""
    split = data.splits[name]
    pictures = list(split.arrays) if split.arrays is not None else split.paths or []
    rows = np.empty((len(split), classifier.features), np.float32)
    with bar(f"features of {name}") as at:
        for position, row in enumerate(classifier.embed_stream(pictures, batch_size)):
            if isinstance(row, Failure):
                raise DataError(f"{split.name_of(position)}: {row.reason}; it could be read a moment ago")
            rows[position] = row.vector
            at(position + 1, len(split))
    return rows


def table(name: str, report: ProbeReport) -> Table:
    """The scores for people: a row per probe, a column per split that is scored."""
    splits = [split for split in report.pictures if split != "train"]
    counts = " and ".join(f"{split} {report.pictures[split]:,}" for split in splits)
    title = (
        f"{visible(name)}: {report.features:,} frozen features, {report.classes:,} classes\n"
        f"fitted on train {report.pictures['train']:,}, scored on {counts}"
    )
    rows = Table("probe", "setting", box=SIMPLE_HEAD, title=Text(title, style="bold"), title_justify="left")
    for split in splits:
        rows.add_column(split, justify="right")
    for score in report.knn:
        setting = f"k {score.k}, temperature {report.temperature:g}"
        rows.add_row("k-NN", setting, *(f"{score.accuracy[split]:.2%}" for split in splits))
    linear = report.linear
    how = f", chosen on {linear.chosen_on}" if linear.sweep else ""
    rows.add_row("linear probe", f"C {linear.strength:g}{how}", *(f"{linear.accuracy[split]:.2%}" for split in splits))
    for each in report.few_shot:
        draws = len(each.accuracy["val"])
        setting = f"l2 {each.l2:g}, {'whitened, ' if report.whiten else ''}{draws} {'draws' if draws > 1 else 'draw'}"
        label = f"{each.shots} {'shots' if each.shots > 1 else 'shot'} a class"
        rows.add_row(label, setting, *(_with_spread(each, split) for split in splits))
    return rows


def write_json(files: Outputs, file: str, report: ProbeReport, *, model: str, data: ImageData) -> None:
    """Write every number; ``file`` ``-`` is standard output."""
    files.reads(each=lambda: (path for one in data.splits.values() for path in one.paths or []))
    document = {
        "model": model,
        "data": {"name": data.name, "fingerprint": data.fingerprint, "classes": list(data.classes)},
        "unreadable": [{"path": str(path), "reason": reason} for path, reason in data.unreadable],
        "probes": report.to_dict(),
    }
    write_document(files, file, document)


def _with_spread(each: FewShot, split: str) -> str:
    """Mean and standard deviation over the draws, in points."""
    spread = each.spread(split)
    return f"{each.mean(split):.2%}" + ("" if spread is None else f" \u00b1 {100 * spread:.2f}")
