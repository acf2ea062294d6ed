"""Features, table and JSON document of `vitreous probe`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.cli.options.outputs import write_document
from vitreous.cli.work.evaluating.scoring import images_of, is_trained_on, stack_results, unreadable_note
from vitreous.data.sources.opening import ImageData
from vitreous.evaluate.features.fewshot import FewShot
from vitreous.evaluate.features.probes import ProbeReport
from vitreous.files.text import visible
from vitreous.files.writing import Outputs
from vitreous.predictor import Classifier

__all__ = ["compute_features", "data_notes", "probe_table", "write_json"]


def data_notes(info: ModelInfo, data: ImageData) -> Iterator[str]:
    """Yield remarks on the data: unreadable files, and images the model was trained on."""
    yield from data.notes
    yield from unreadable_note(data)
    if is_trained_on(info, data.fingerprint):
        yield "the model was trained on train: its features separate those images better than new ones"


def compute_features(classifier: Classifier, data: ImageData, name: str, batch_size: int) -> npt.NDArray[np.float32]:
    """Compute the features (n, F) of the images of a split."""
    split = data.splits[name]
    features = classifier.embed_stream(images_of(split), batch_size)
    return stack_results(f"features of {name}", features, [split.name_of(n) for n in range(len(split))])


def probe_table(name: str, report: ProbeReport) -> Table:
    """Return the scores as a table with a row per probe and a column per split."""
    splits = [split for split in report.images if split != "train"]
    counts = " and ".join(f"{split} {report.images[split]:,}" for split in splits)
    kind = "labels, mAP" if report.measure == "mean_ap" else "classes"
    title = (
        f"{visible(name)}: {report.features:,} frozen features, {report.classes:,} {kind}\n"
        f"fitted on train {report.images['train']:,}, scored on {counts}"
    )
    rows = Table("probe", "setting", box=SIMPLE_HEAD, title=Text(title, style="bold"), title_justify="left")
    for split in splits:
        rows.add_column(split, justify="right")
    for score in report.knn:
        setting = f"k {score.k}, temperature {report.temperature:g}"
        rows.add_row("k-NN", setting, *(f"{score.accuracy[split]:.2%}" for split in splits))
    linear = report.linear
    choice = f", chosen on {linear.chosen_on}" if linear.sweep else ""
    shares = (f"{linear.accuracy[split]:.2%}" for split in splits)
    rows.add_row("linear probe", f"C {linear.strength:g}{choice}", *shares)
    for each in report.few_shot:
        draws = len(each.accuracy["val"])
        setting = f"l2 {each.l2:g}, {'whitened, ' if report.whiten else ''}{draws} {'draws' if draws > 1 else 'draw'}"
        label = f"{each.shots} {'shots' if each.shots > 1 else 'shot'} a class"
        rows.add_row(label, setting, *(_with_spread(each, split) for split in splits))
    return rows


def write_json(files: Outputs, file: str, report: ProbeReport, *, model: str, data: ImageData) -> None:
    """Write every number as JSON; ``-`` is standard output."""
    files.reads(each=lambda: (path for split in data.splits.values() for path in split.paths or []))
    document = {
        "model": model,
        "data": {"name": data.name, "fingerprint": data.fingerprint, "classes": list(data.classes)},
        "unreadable": [{"path": str(path), "reason": reason} for path, reason in data.unreadable],
        "probes": report.to_dict(),
    }
    write_document(files, file, document)


def _with_spread(each: FewShot, split: str) -> str:
    """Format the mean and the standard deviation over the draws, in percentage points."""
    spread = each.spread(split)
    return f"{each.mean(split):.2%}" + ("" if spread is None else f" \u00b1 {100 * spread:.2f}")
