"""The work of `vitreous calibrate` on a model with several labels: slopes, offsets and thresholds are fitted again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from vitreous.evaluate.multilabel.fitting import cross_fitted, fit_rule
from vitreous.evaluate.multilabel.intervals import label_calibration_error
from vitreous.evaluate.multilabel.metrics import evaluate_labels
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.files.text import printable

__all__ = ["LabelFit", "fit_labels", "labels_table"]


@dataclass(frozen=True)
class LabelFit:
    """Calibration and thresholds of labels, and what they are worth.

    Attributes:
        images: Number N of calibration images.
        rule: What is stored.
        before: Scores of the rule that the model had.
        after: Scores of the new one, cross-fitted: each half of the images by the rule fitted on the other half.
    """

    images: int
    rule: LabelRule
    before: Mapping[str, float]
    after: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return every number as plain JSON values."""
        return {**asdict(self), "multilabel": self.rule.to_dict(), "rule": self.rule.calibration}


def fit_labels(logits: Tensor, labels: Tensor, rule: LabelRule) -> LabelFit:
    """Fit a rule on logits and labels (N, K) of images that the model was not trained on, and measure both."""
    raw = logits.double()
    calibrated, present = cross_fitted(logits, labels)
    return LabelFit(
        len(labels),
        fit_rule(logits, labels),
        _measured(rule.calibrated(raw), labels, rule.present(raw)),
        _measured(calibrated, labels, present),
    )


def _measured(calibrated: Tensor, labels: Tensor, present: Tensor) -> dict[str, float]:
    scores = evaluate_labels(calibrated, labels, present)
    return {
        **{name: getattr(scores, name) for name in ("log_loss", "macro_f1", "micro_f1", "subset_accuracy")},
        "ece": label_calibration_error(calibrated, labels),
    }


def labels_table(title: str, fit: LabelFit) -> Table:
    """Return the result as a table."""
    table = Table(title=Text(printable(title), style="bold"), title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    table.add_column("")
    notes = {"log_loss": "after: each half by what the other half fits", "ece": f"calibration: {fit.rule.calibration}"}
    names = {"log_loss": "log loss", "macro_f1": "F1, macro", "micro_f1": "F1, micro", "subset_accuracy": "subset"}
    for key, before in fit.before.items():
        note = Text(notes.get(key, ""), style="dim")
        table.add_row(names.get(key, key.upper()), f"{before:.4f}", f"{fit.after[key]:.4f}", note)
    return table
