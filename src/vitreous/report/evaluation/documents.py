"""The figures of an evaluation as JSON and CSV, complete and unrounded.

evaluation.json (format_version 1; a figure that is not defined is null)::

    format_version  1
    model, data, split, images, classes, temperature, notes
    level           confidence level of all intervals
    headline        score -> {value, low, high}
    per_class, macro, micro, balanced_accuracy, mcc, top5, absent   as of `DetailedScores`
    confusion       [true class, predicted class, count] of each pair that occurs
    class_order     K indices, as the confusion matrix of the page is ordered
    most_confused   {true, predicted, count, share, images}
    slices          {column, value, n, accuracy: {value, low, high}, macro_recall, log_loss, small}
    comparison      {other, only_this, only_other, p_value, differences: score -> {value, low, high, p_value}} or null
    calibration     as of `Calibration`, and `errors` {before, after} and `reliability` {before, after}
    selection       {score, norm_order, aurc, augrc, risk: {coverage: risk}}
    conformal       as of `ConformalResult`
    robustness      as of `RobustnessResult`, or null
    sheets          {worst, uncertain, random}: positions of images, from 0

N images, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from vitreous.evaluate.trust.calibration import Reliability
from vitreous.files.text import csv_line, json_text
from vitreous.report.evaluation.results import LEVEL, EvaluationResult

__all__ = ["per_class_csv", "predictions_csv", "to_dict", "to_json"]

_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Coverages at which the risk is written."""


def to_json(result: EvaluationResult) -> str:
    """Return the text of evaluation.json."""
    return json_text(to_dict(result), indent=1) + "\n"


def to_dict(result: EvaluationResult) -> dict[str, Any]:
    """Return the content of evaluation.json as plain values."""
    given, detailed = result.given, result.detailed.to_dict()
    notes = [*given.notes, *detailed.pop("notes")]
    per_class = [{"class": name, **row} for name, row in zip(given.classes, detailed.pop("per_class"), strict=True)]
    rows, columns = np.nonzero(result.confusion)
    counts = zip(rows.tolist(), columns.tolist(), result.confusion[rows, columns].tolist(), strict=True)
    before, after = result.errors
    return {
        "format_version": 1,
        **{name: getattr(given, name) for name in ("model", "data", "split")},
        "images": len(given.names),
        "classes": list(given.classes),
        "temperature": given.temperature,
        "notes": notes,
        "level": LEVEL,
        "headline": {name: asdict(interval) for name, interval in result.headline.items()},
        "per_class": per_class,
        **detailed,
        "confusion": [list(each) for each in counts],
        "class_order": result.order.tolist(),
        "most_confused": [
            {
                **{"true": given.classes[pair.true], "predicted": given.classes[pair.predicted]},
                **{"count": len(pair.images), "share": pair.share, "images": [given.names[n] for n in pair.images]},
            }
            for pair in result.pairs
        ],
        "slices": [asdict(each) for each in result.slices],
        "comparison": _comparison(result),
        "calibration": result.calibration.to_dict()
        | {"errors": {"before": before.to_dict(), "after": after.to_dict()}}
        | {"reliability": dict(zip(("before", "after"), map(_reliability, result.reliability), strict=True))},
        "selection": [
            {
                **{"score": each.score.name, "norm_order": each.score.norm_order},
                **{
                    "aurc": each.curve.aurc,
                    "augrc": each.curve.augrc,
                    "risk": {f"{share:g}": each.risk_at(share) for share in _SHARES},
                },
            }
            for each in result.selection
        ],
        "conformal": [asdict(each) for each in result.conformal],
        "robustness": given.robustness.to_dict() if given.robustness else None,
        "sheets": asdict(result.sheets),
    }


def per_class_csv(result: EvaluationResult) -> Iterator[str]:
    """Yield the lines of per_class.csv; an undefined score is an empty cell."""
    scores = result.detailed
    names = ("precision", "recall", "specificity", "f1", "auc", "average_precision")
    yield csv_line(("class", "images", "predictions", *names))
    predictions = result.confusion.sum(axis=0)
    for k, name in enumerate(result.given.classes):
        values = [float(getattr(scores, score)[k]) for score in names]
        cells = ["" if math.isnan(value) else value for value in values]
        yield csv_line((name, int(scores.support[k]), int(predictions[k]), *cells))


def predictions_csv(result: EvaluationResult) -> Iterator[str]:
    """Yield the lines of predictions.csv, one for each image in the order of the data."""
    given = result.given
    columns = ("image", "true", "predicted", "correct", "probability", "true_probability", "log_loss")
    yield csv_line((*columns, *given.columns))
    labels = given.labels.tolist()
    for n, name in enumerate(given.names):
        predicted = int(result.predicted[n])
        numbers = (float(each[n]) for each in (result.probability, result.true_probability, result.log_loss))
        facts = [cells[n] or "" for cells in given.columns.values()]
        classes = (given.classes[labels[n]], given.classes[predicted], int(labels[n] == predicted))
        yield csv_line((name, *classes, *numbers, *facts))


def _comparison(result: EvaluationResult) -> dict[str, Any] | None:
    if (found := result.comparison) is None:
        return None
    differences = {
        name: asdict(each.difference) | {"p_value": each.p_value} for name, each in found.differences.items()
    }
    test = {"only_this": found.test.only_a, "only_other": found.test.only_b, "p_value": found.test.p_value}
    return {"other": found.other, **test, "differences": differences}


def _reliability(diagram: Reliability) -> dict[str, list[float]]:
    names = ("edges", "counts", "confidence", "accuracy")
    return {name: getattr(diagram, name).tolist() for name in names}
