"""The work of `vitreous calibrate` on a model with several labels: slopes, offsets and thresholds are fitted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from vitreous.errors import DataError
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
        kept: Labels that are on none of these images or on all, so that their part of the rule stays.
        rule: What is stored.
        before: Scores of the rule that the model had.
        after: Scores of the new one, cross-fitted: each half of the images by the rule fitted on the other half.
    """

    images: int
    kept: tuple[int, ...]
    rule: LabelRule
    before: Mapping[str, float]
    after: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return every number as plain JSON values."""
        return {
            **asdict(self),
            "kept": len(self.kept),
            "multilabel": self.rule.to_dict(),
            "rule": self.rule.calibration,
        }


def fit_labels(logits: Tensor, labels: Tensor, rule: LabelRule) -> LabelFit:
    """Fit a rule on logits and labels (N, K) of images that the model was not trained on, and measure both.

    A label that is on none of the images or on all keeps its part of the rule that the model had, and is not measured:
    such images say nothing of it.

    Raises:
        DataError: If that is so of every label.
    """
    varies = labels.bool().any(0) & ~labels.bool().all(0)  # K
    if not varies.any():
        raise DataError("each label is on all of these images or on none, so that nothing can be fitted: give more")
    here = torch.nonzero(varies)[:, 0]
    raw, true = logits.double(), labels[:, here]
    calibrated, present = cross_fitted(logits[:, here], true)
    return LabelFit(
        len(labels),
        tuple(torch.nonzero(~varies)[:, 0].tolist()),
        _merged(rule, fit_rule(logits[:, here], true), here.tolist()),
        _measured(rule.calibrated(raw)[:, here], true, rule.present(raw)[:, here]),
        _measured(calibrated, true, present),
    )


def _merged(old: LabelRule, new: LabelRule, places: Sequence[int]) -> LabelRule:
    """Return the old rule with the new one at some places."""
    columns = []
    for name in ("thresholds", "slopes", "offsets"):
        values = list(getattr(old, name))
        for place, value in zip(places, getattr(new, name), strict=True):
            values[place] = value
        columns.append(tuple(values))
    return LabelRule(*columns)


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
