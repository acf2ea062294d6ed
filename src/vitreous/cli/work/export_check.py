"""`vitreous export --check`: a verified file beside PyTorch on labelled images, before it gets its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.opening import OpenedCheckpoint
from vitreous.cli.output.terminal import print_table
from vitreous.cli.work.evaluating import scoring
from vitreous.data.images.reading import read_image
from vitreous.data.sources.opening import Split
from vitreous.errors import CheckpointError
from vitreous.evaluate.multilabel.intervals import label_calibration_error
from vitreous.evaluate.multilabel.metrics import evaluate_labels
from vitreous.evaluate.scoring.metrics import evaluate
from vitreous.evaluate.trust.calibration import calibrate
from vitreous.predictor import Classifier, load

__all__ = ["DataCheck", "Measured", "measure"]

_MOST_CHANGED = {"float32": 0.0, "fp16": 0.002, "bf16": 0.005}
"""Largest share of images whose most probable class may change, apart from one, whose two best are equally probable; of
several labels, of the pairs of an image and a label on which the file decides otherwise."""

_NAMES = {"top1": "top-1", "mean_ap": "mAP"}
_BATCH = 32
_ROUNDS = 5  # the two take turns, and the shortest times count
_TIMED = 64  # images


@dataclass(frozen=True)
class Measured:
    """A classifier on labelled images."""

    images: int
    measure: str  # of the score: `top1`, or `mean_ap` of several labels
    score: float  # in [0, 1]
    log_loss: float
    ece: float  # expected calibration error with 15 bins, in [0, 1]; of several labels, the mean over them
    latency: float  # seconds for one prepared image
    throughput: float  # prepared images per second in batches

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the score under its name."""
        fields = asdict(self)
        return {"images": fields.pop("images"), fields.pop("measure"): fields.pop("score"), **fields}


class DataCheck:
    """Compares a file with PyTorch on data; a :class:`vitreous.export.run.Check`."""

    def __init__(
        self,
        data: str,
        tell: Callable[[str], None],
        *,
        folder: str | None = None,
        split: str | None = None,
        quiet: bool = False,
    ) -> None:
        self.data, self.folder, self.split, self.tell, self.quiet = data, folder, split, tell, quiet

    def __call__(self, form: str, file: Path, opened: OpenedCheckpoint) -> Mapping[str, Any]:
        """Return what was measured of both.

        Raises:
            CheckpointError: If the most probable class, or a label, changes for more images than `_MOST_CHANGED`
                allows.
        """
        rule = opened.info.multilabel
        exported = load(file, trust_code=True)  # it was written just now
        plain = Classifier(opened.model, opened.info, "cpu", engine="torch", tell=self.tell)
        data = scoring.open_data(opened.info, self.data, self.folder, self.split, several=rule is not None)
        name, split = scoring.choose_split(data, self.split)
        by_name = scoring.labels_by_name if rule is None else scoring.label_sets_by_name
        labels = by_name(opened.info.classes, data, split)
        logits = {
            label: scoring.compute_logits(each, split, _BATCH, label)
            for label, each in (("PyTorch", plain), (form, exported))
        }
        timed = _timed({"PyTorch": plain, form: exported}, split)
        measured = {label: measure(each, labels, opened.info, *timed[label]) for label, each in logits.items()}
        both = [each.argmax(1) if rule is None else rule.present(each) for each in logits.values()]
        changed, total = int((both[0] != both[1]).sum()), both[0].numel()
        images = f"{total:,} images" if rule is None else f"{total:,} pairs of image and label"
        if not self.quiet:
            print_table(_table(f"{data.name}, {name}", measured))
        self.tell(
            f"{'the most probable class' if rule is None else 'the decision'} changes for {changed:,} of {images}"
        )
        most = max(1, int(_MOST_CHANGED.get(exported.exported.precision, 1.0) * total))  # type: ignore[attr-defined]
        if changed > most:
            lost = measured["PyTorch"].score - measured[form].score
            raise CheckpointError(
                f"the written file gives {changed:,} of {images} of {data.name} another "
                f"{'class' if rule is None else 'decision'}, at most {most:,} may change; "
                f"{_NAMES[measured[form].measure]} falls by {100 * lost:.2f} points; nothing was kept"
            )
        return {
            "data": data.name,
            "split": name,
            "changed": changed,
            **{label: each.to_dict() for label, each in measured.items()},
        }


def measure(logits: Tensor, labels: Tensor, info: ModelInfo, latency: float, throughput: float) -> Measured:
    """Return the scores of logits (n, K) for labels (n,) or (n, K), with times measured before."""
    if (rule := info.multilabel) is not None:
        calibrated = rule.calibrated(logits.double())
        found, error = evaluate_labels(calibrated, labels), label_calibration_error(calibrated, labels)
        return Measured(found.n, "mean_ap", found.mean_ap, found.log_loss, error, latency, throughput)
    scores = evaluate(logits / info.temperature, labels)
    calibration = calibrate(logits, labels, info.temperature)
    return Measured(len(labels), "top1", scores.top1, scores.log_loss, calibration.ece_after, latency, throughput)


def _timed(classifiers: Mapping[str, Classifier], split: Split) -> dict[str, tuple[float, float]]:
    """Return latency and throughput of each, without reading files; the classifiers take turns."""
    items = scoring.images_of(split)[:_TIMED]
    pipeline = next(iter(classifiers.values())).pipeline
    pixels = np.stack([pipeline.pixels(read_image(item)) for item in items])
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in classifiers}
    for _ in range(1 + _ROUNDS):
        for name, classifier in classifiers.items():
            engine = classifier.prepare(len(items), _BATCH)
            for batch, found in ((pixels[:1], times[name][0]), (pixels[:_BATCH], times[name][1])):
                start = time.perf_counter()
                classifier._run(engine, batch, _logits)
                found.append((time.perf_counter() - start) / len(batch))
    return {name: (min(one[1:]), 1 / min(many[1:])) for name, (one, many) in times.items()}  # the first is a warm-up


def _logits(logits: Tensor, features: Tensor) -> Tensor:
    return torch.atleast_2d(logits)


def _table(title: str, measured: Mapping[str, Measured]) -> Table:
    table = Table(title=title)
    measure = _NAMES[next(iter(measured.values())).measure]
    for column in ("", measure, "log loss", "ECE", "one image", "batches"):
        table.add_column(column, justify="left" if not column else "right")
    for name, each in measured.items():
        table.add_row(
            name,
            f"{each.score:.2%}",
            f"{each.log_loss:.4f}",
            f"{each.ece:.4f}",
            f"{1e3 * each.latency:.1f} ms",
            f"{each.throughput:,.1f} img/s",
        )
    return table
