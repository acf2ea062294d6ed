"""The report of a run with several labels: report.json, a page and the curves.

report.json (format_version 1) has the keys of :mod:`vitreous.report.run_report` down to `classes`, then::

    scores          {val, test} of the saved weights in float32, fields of
                    :class:`~vitreous.evaluate.multilabel.metrics.MultiLabelScores` with a `label` in each entry of
                    per_label. val: each half with calibration and thresholds of the other half. test is null without a
                    test split
    multilabel      {thresholds, slopes, offsets}, as in the model file
    calibration     {kind, error_before, error_after}, on val as above
    versions, pictures

N images, K labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous.evaluate.multilabel.metrics import MultiLabelScores
from vitreous.files.text import json_text, json_values
from vitreous.machine.device import versions
from vitreous.report.evaluation.thumbnails import ImageOf
from vitreous.report.figures import draw_curves
from vitreous.report.multilabel.page import page
from vitreous.report.multilabel.results import LabelInput, measure
from vitreous.report.run_report import PAGE, PICTURES, RunFacts, described, write_files

__all__ = ["write_labels_report"]


def write_labels_report(
    folder: Path,
    facts: RunFacts,
    val: LabelInput,
    image: ImageOf,
    *,
    test: MultiLabelScores | None,
    history: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Write report.json, the page and the curves into a run directory, and return the content of report.json."""
    result = measure(val)
    before, after = result.calibration_error
    report = json_values(
        {
            **described(facts),
            "classes": list(val.classes),
            "scores": {"val": _named(result.scores, val.classes), "test": _named(test, val.classes) if test else None},
            "multilabel": val.rule.to_dict(),
            "calibration": {"kind": val.rule.calibration, "error_before": before, "error_after": after},
            "versions": versions(),
            "pictures": list(PICTURES),
        }
    )
    curves = draw_curves(history, facts.selected_epoch, result.scores.summary(), facts.precision)
    text = json_text(report, indent=2) + "\n"
    # Last: a run directory with a report is finished.
    files = {PICTURES[0]: curves, PAGE: "".join(page(result, image)).encode("utf-8")}
    write_files(folder, files | {"report.json": text.encode("utf-8")})
    return report


def _named(scores: MultiLabelScores, classes: Sequence[str]) -> dict[str, Any]:
    fields = scores.to_dict()
    per_label = [{"label": n, **row} for n, row in zip(classes, fields["per_label"], strict=True)]
    return fields | {"per_label": per_label}
