"""The evaluation of a model with several labels, as `vitreous evaluate` prints it and its report shows it.

N images, K labels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonargparse import Namespace
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from vitreous.cli.options.model import describe_compute, load_unmerged, throughput_line
from vitreous.cli.output.terminal import narrate, progress_bar
from vitreous.cli.work.evaluating import gains, scoring
from vitreous.cli.work.evaluating.calibrating import calibration_note
from vitreous.cli.work.evaluating.evaluation_report import ReportPlan, plan_report
from vitreous.data.sources.opening import ImageData
from vitreous.data.sources.tables import LISTS
from vitreous.errors import pluralize
from vitreous.evaluate.multilabel.metrics import MultiLabelScores
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.files.html import html_table
from vitreous.files.text import printable, visible
from vitreous.inspection.explain import explain
from vitreous.predictor import Classifier
from vitreous.report.evaluation.folder import install_folder
from vitreous.report.multilabel.page import page
from vitreous.report.multilabel.results import (
    LabelInput,
    LabelResult,
    measure,
    per_class_csv,
    predictions_csv,
    to_dict,
    to_json,
)

__all__ = ["LabelEvaluation", "evaluated_labels"]

_MOST_ROWS = 40


@dataclass(frozen=True, eq=False)
class LabelEvaluation:
    """The scores of a model with several labels on labelled images.

    Attributes:
        model: The model, as the user named it.
        split: The split that was scored: `train`, `val`, `test` or `all`.
        computed_by: Engine, precision and device, and what merging tokens costs.
        result: Scores, intervals, calibration, and what the report shows.
    """

    model: str
    data: ImageData
    split: str
    computed_by: Mapping[str, Any]
    result: LabelResult

    @property
    def scores(self) -> MultiLabelScores:
        """The scores."""
        return self.result.scores

    @property
    def classes(self) -> Sequence[str]:
        """Names of the labels, in the order of `scores.per_label`."""
        return self.result.given.classes

    def to_dict(self) -> dict[str, Any]:
        """Return every number as plain JSON values, as `vitreous evaluate --json` writes them."""
        found = to_dict(self.result)
        data = {"name": self.data.name, "fingerprint": self.data.fingerprint, "split": self.split}
        return {
            "model": self.model,
            "data": {**data, "pictures": self.scores.n},
            "computed_by": dict(self.computed_by),
            "unreadable": [{"path": str(path), "reason": reason} for path, reason in self.data.unreadable],
            **{name: found[name] for name in ("classes", "scores", "intervals", "per_label", "calibration")},
            "multilabel": found["multilabel"],
        }

    def tables(self) -> Iterator[Table]:
        """Yield the tables of scores overall and by label."""
        images = "all images" if self.split == "all" else f"{self.split} split"
        title = f"{self.data.name}, {images}: {pluralize(self.scores.n, 'image')}"
        yield _overall(title, self.result)
        yield _per_label(self.result)
        if self.computed_by["merging"]:
            yield gains.merging_table(self.computed_by["merge_tokens"], self.computed_by["merging"])
        if self.computed_by.get("tta"):
            yield gains.augmentation_table(self.computed_by["tta"])

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={getattr(self.scores, name):.4f}" for name in ("mean_ap", "macro_f1", "log_loss"))
        return f"LabelEvaluation({numbers}, n={self.scores.n})"

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{each.support:,}", f"{each.precision:.3f}", f"{each.recall:.3f}", f"{each.f1:.3f}")
            for name, each in zip(self.classes[:_MOST_ROWS], self.scores.per_label, strict=False)
        ]
        return self.scores._repr_html_() + html_table(
            f"{self.data.name}, {self.split}", rows, ("label", "images", "precision", "recall", "F1")
        )


def evaluated_labels(options: Namespace, classifier: Classifier, rule: LabelRule) -> LabelEvaluation:
    """Score a model with several labels on the parsed options of `vitreous evaluate`."""
    data = scoring.open_data(
        classifier.info, options.data, options.data_dir, options.split, options.cache_size, several=True
    )
    name, split = scoring.choose_split(data, options.split)
    labels = scoring.label_sets_by_name(classifier.classes, data, split)
    engine = classifier.prepare(len(split), options.batch_size)
    unmerged = load_unmerged(options, engine, len(split))
    plan = plan_report(options, classifier, split)
    about = classifier.info, data, name
    notes = [*scoring.data_notes(*about), *calibration_note(*about)]
    for note in notes:
        narrate(note)
    start = time.perf_counter()
    logits = scoring.compute_logits(classifier, split, options.batch_size)
    seconds = time.perf_counter() - start
    narrate(throughput_line(len(split), seconds, classifier, engine))
    result = measure(
        LabelInput(
            model=str(options.model),
            data=data.name,
            split="all images" if name == "all" else f"{name} split",
            classes=classifier.classes,
            names=[split.name_of(n) for n in range(len(split))],
            logits=logits,
            labels=labels,
            rule=rule,
            notes=notes,
            columns=_sliced_by(plan, data, options.slice),
            other=_other(plan),
            robustness=plan.robustness(labels) if plan is not None and options.robustness else None,
        )
    )
    gain = merging = None
    if options.tta:
        gain = gains.measure_augmentation(classifier, split, labels, options.batch_size, logits=logits, seconds=seconds)
    if unmerged is not None:
        merging = gains.measure_merging(
            unmerged, split, labels, options.batch_size, scores=result.scores, seconds=seconds
        )
    if options.report is not None:
        image = None if options.no_images else split.image
        with progress_bar("report") as update:
            contents = {
                "evaluation.json": iter([to_json(result)]),
                "per_class.csv": per_class_csv(result),
                "predictions.csv": predictions_csv(result),
                "report.html": page(
                    result,
                    image,
                    class_map=lambda n, label: explain(classifier, split.image(n), label),
                    progress=update,
                ),
            }
            folder = install_folder(options.report, contents, options.overwrite)
        narrate(f"report: {folder / 'report.html'}")
    compute = {**describe_compute(classifier, engine), "merge_tokens": options.merge_tokens, "merging": merging}
    compute |= {"tta": gain} if gain else {}
    return LabelEvaluation(str(options.model), data, name, compute, result)


def _sliced_by(plan: ReportPlan | None, data: ImageData, named: Sequence[str]) -> Mapping[str, Sequence[str | None]]:
    """Return the columns to slice by: not those of the labels, unless they are named."""
    if plan is None or named:
        return plan.columns if plan is not None else {}
    own = {*data.classes, *LISTS}
    return {name: cells for name, cells in plan.columns.items() if name not in own and name.strip().lower() not in own}


def _other(plan: ReportPlan | None) -> tuple[str, Tensor, Tensor] | None:
    """Score the second model, with its own calibration and thresholds, in the order of the labels of the first."""
    if plan is None or plan.other is None:
        return None
    rule = plan.other.info.multilabel
    assert rule is not None  # `plan_report` has checked it
    raw = scoring.compute_logits(plan.other, plan.split, plan.options.batch_size).double()
    order = [plan.other.classes.index(each) for each in plan.classifier.classes]
    return plan.options.against, rule.calibrated(raw)[:, order], rule.present(raw)[:, order]


def _overall(title: str, result: LabelResult) -> Table:
    scores, (before, after) = result.scores, result.calibration_error
    table = Table(title=Text(printable(title), style="bold"), title_justify="left", box=None, show_header=False)
    for name, value, note in (
        ("mAP", f"{scores.mean_ap:7.4f}", "average precision, mean over labels; needs no threshold"),
        ("F1, macro", f"{scores.macro_f1:7.4f}", "mean over labels, with the thresholds of the model"),
        (
            "F1, micro",
            f"{scores.micro_f1:7.4f}",
            f"precision {scores.micro_precision:.4f}, recall {scores.micro_recall:.4f}",
        ),
        ("subset", f"{scores.subset_accuracy:7.2%}", "images whose labels are all right"),
        ("log loss", f"{scores.log_loss:7.4f}", "binary cross-entropy, mean over images and labels"),
        ("ECE", f"{after:7.4f}", f"calibration error, mean over labels; {before:.4f} before calibration"),
    ):
        table.add_row(name, value, Text(note, style="dim"))
    return table


def _per_label(result: LabelResult) -> Table:
    scores, rule, classes = result.scores.per_label, result.given.rule, result.given.classes
    is_long, shown = len(scores) > _MOST_ROWS, range(len(scores))
    chosen = sorted(shown, key=lambda k: scores[k].f1)[: _MOST_ROWS // 2] if is_long else list(shown)
    table = Table(f"label{', worst first' if is_long else ''}", box=SIMPLE_HEAD)
    for heading in ("images", "AP", "threshold", "precision", "recall", "F1"):
        table.add_column(heading, justify="right")
    for k in chosen:
        score = scores[k]
        ap = "" if score.ap is None else f"{score.ap:.3f}"
        shares = (f"{each:.3f}" for each in (rule.thresholds[k], score.precision, score.recall, score.f1))
        table.add_row(Text(visible(classes[k])), f"{score.support:,}", ap, *shares)
    return table
