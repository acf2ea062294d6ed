"""The evaluation of a model, as `vitreous evaluate` prints it and :func:`vitreous.evaluate` returns it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from rich.table import Table

from vitreous.cli.options.model import describe_compute, load_model, load_unmerged, throughput_line
from vitreous.cli.output.terminal import narrate
from vitreous.cli.work.evaluating import gains, scoring
from vitreous.cli.work.evaluating.calibrating import calibration_note, measured_table, measured_thresholds
from vitreous.cli.work.evaluating.evaluation_report import check_options, plan_report
from vitreous.data.sources.opening import ImageData
from vitreous.evaluate.scoring.metrics import Scores, evaluate
from vitreous.evaluate.trust.calibration import Calibration, calibrate
from vitreous.files.html import html_table
from vitreous.predictor import Classifier

if TYPE_CHECKING:
    from vitreous.cli.work.evaluating.labels_evaluation import LabelEvaluation

__all__ = ["Evaluation", "class_tables", "evaluated"]

_CLASSES_SHOWN = 40


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The scores of a model on labelled images.

    Attributes:
        model: The model, as the user named it.
        split: The split that was scored: `train`, `val`, `test` or `all`.
        classes: Class names of the model, in the order of `scores.per_class`.
        computed_by: Engine, precision, device, and the effect of token merging and test-time augmentation.
        thresholds: What the model's thresholds promise and do on these images, by name; empty without thresholds.
    """

    model: str
    data: ImageData
    split: str
    classes: Sequence[str]
    scores: Scores
    calibration: Calibration
    computed_by: Mapping[str, Any]
    thresholds: Mapping[str, Mapping[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return every number as plain JSON values, as `vitreous evaluate --json` writes them."""
        data = {"name": self.data.name, "fingerprint": self.data.fingerprint}
        return {
            "model": self.model,
            "data": {**data, "split": self.split, "pictures": self.scores.n},
            "computed_by": dict(self.computed_by),
            "unreadable": [{"path": str(path), "reason": reason} for path, reason in self.data.unreadable],
            "classes": list(self.classes),
            "scores": self.scores.to_dict(),
            "calibration": self.calibration.to_dict(),
            "thresholds": {name: dict(measured) for name, measured in self.thresholds.items()},
        }

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={getattr(self.scores, name):.4f}" for name in ("top1", "macro_f1", "log_loss"))
        return f"Evaluation({numbers}, n={self.scores.n})"

    def _repr_html_(self) -> str:
        names = self.classes[:_CLASSES_SHOWN]
        rows = [
            (name, f"{score.support:,}", f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}")
            for name, score in zip(names, self.scores.per_class, strict=False)
        ]
        more = f", the first {len(names)} of {len(self.classes):,} classes" if len(names) < len(self.classes) else ""
        return self.scores._repr_html_() + html_table(
            f"{self.data.name}, {self.split}{more}", rows, ("class", "images", "precision", "recall", "F1")
        )


def evaluated(options: Namespace, classifier: Classifier | None = None) -> Evaluation | LabelEvaluation:
    """Run `vitreous evaluate` on its parsed options; a classifier that is loaded already replaces their model."""
    check_options(options)
    classifier = load_model(options) if classifier is None else classifier
    classifier.require_classes()
    if (rule := classifier.info.multilabel) is not None:
        from vitreous.cli.work.evaluating.labels_evaluation import evaluated_labels  # only where it is used

        return evaluated_labels(options, classifier, rule)
    return _evaluated(options, classifier)


def class_tables(options: Namespace, result: Evaluation) -> Iterator[tuple[Table, int]]:
    """Yield the tables of an evaluation, and how many of their first columns are class names."""
    images = "all images" if result.split == "all" else f"{result.split} split"
    title, compute = f"{result.data.name}, {images}: {result.scores.n:,} images", result.computed_by
    for table in scoring.score_tables(title, result.scores, result.calibration, result.classes):
        yield table, min(2, len(table.columns) - 2)
    if result.thresholds:
        yield measured_table(result.thresholds), 0
    if compute["merging"]:
        yield gains.merging_table(options.merge_tokens, compute["merging"]), 0
    if compute.get("tta"):
        yield gains.augmentation_table(compute["tta"]), 0


def _evaluated(options: Namespace, classifier: Classifier) -> Evaluation:
    data = scoring.open_data(classifier.info, options.data, options.data_dir, options.split, options.cache_size)
    name, split = scoring.choose_split(data, options.split)
    labels = scoring.labels_by_name(classifier.classes, data, split)
    engine = classifier.prepare(len(split), options.batch_size)
    for note in (*scoring.data_notes(classifier.info, data, name), *calibration_note(classifier.info, data, name)):
        narrate(note)
    unmerged = load_unmerged(options, engine, len(split))
    plan = plan_report(options, classifier, split)
    start = time.perf_counter()
    logits = scoring.compute_logits(classifier, split, options.batch_size)
    seconds = time.perf_counter() - start
    narrate(throughput_line(len(split), seconds, classifier, engine))
    scores = evaluate(logits / classifier.info.temperature, labels)
    calibration = calibrate(logits, labels, classifier.info.temperature)
    merging = gain = None
    if options.tta:
        gain = gains.measure_augmentation(classifier, split, labels, options.batch_size, logits=logits, seconds=seconds)
    if unmerged is not None:
        merging = gains.measure_merging(unmerged, split, labels, options.batch_size, scores=scores, seconds=seconds)
    if plan is not None:
        plan.write(data, name, logits, labels)
    compute = {**describe_compute(classifier, engine), "merge_tokens": options.merge_tokens, "merging": merging}
    compute |= {"tta": gain} if gain else {}
    thresholds = measured_thresholds(classifier.info, logits, labels)
    return Evaluation(str(options.model), data, name, classifier.classes, scores, calibration, compute, thresholds)
