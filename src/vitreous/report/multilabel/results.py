"""What the report of several labels shows: scores, calibration, and images with missed and wrong labels.

N images, K labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitreous.evaluate.multilabel.intervals import (
    LabelDifference,
    compare_labels,
    label_calibration_error,
    label_intervals,
)
from vitreous.evaluate.multilabel.metrics import MultiLabelScores, evaluate_labels
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.evaluate.multilabel.slices import LabelSlice, score_label_slices
from vitreous.evaluate.scoring.intervals import Interval
from vitreous.files.text import csv_line, json_text, json_values
from vitreous.report.evaluation.robustness import RobustnessResult

__all__ = [
    "LabelInput",
    "LabelResult",
    "Slip",
    "measure",
    "names_of",
    "per_class_csv",
    "predictions_csv",
    "to_dict",
    "to_json",
]

_SHOWN = 24  # images of a sheet
_FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class LabelInput:
    """A model's outputs on labelled images.

    Args:
        model: Its name.
        data: The name of the data.
        split: The images in words, such as `test split`.
        classes: Names of the labels (K).
        names: Names of the images (N).
        logits: (N, K), before slopes and offsets.
        labels: (N, K) of 0 and 1.
        rule: Calibration and thresholds.
        fitted: Calibrated logits and labels given, (N, K) each, where the rule was fitted on these very images; None
            applies the rule.
        notes: Sentences for the reader.
        columns: Further columns of the manifest by name, with the N values of each, by which scores are sliced.
        other: Name of a second model of the same labels, its calibrated logits and the labels that it gives, (N, K).
        robustness: Scores on changed images, with 1 - mAP as the error.
        stages: Rows of `finetune.stages` of report.json, if the model is the best of several stages.
    """

    model: str
    data: str
    split: str
    classes: Sequence[str]
    names: Sequence[str]
    logits: Tensor
    labels: Tensor
    rule: LabelRule
    fitted: tuple[Tensor, Tensor] | None = None
    notes: Sequence[str] = ()
    columns: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    other: tuple[str, Tensor, Tensor] | None = None
    robustness: RobustnessResult | None = None
    stages: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Slip:
    """An image and a label about which the model is wrong."""

    image: int
    label: int
    probability: float


@dataclass(frozen=True, eq=False)
class LabelResult:
    """Everything that the page shows."""

    given: LabelInput
    scores: MultiLabelScores
    intervals: dict[str, Interval]
    probabilities: Tensor  # (N, K), calibrated
    present: Tensor  # bool (N, K), the labels given
    calibration_error: tuple[float, float]  # without and with slopes and offsets
    missed: Sequence[Slip] = field(default_factory=tuple)  # labels that are not given, the least probable first
    wrong: Sequence[Slip] = field(default_factory=tuple)  # labels given that the image lacks, the most probable first
    slices: Sequence[LabelSlice] = ()
    differences: Mapping[str, LabelDifference] = field(default_factory=dict)  # this model minus the other


def measure(given: LabelInput) -> LabelResult:
    """Compute what the page shows."""
    raw = given.logits.double().cpu()
    calibrated, present = given.fitted or (given.rule.calibrated(raw), given.rule.present(raw))
    true, probabilities = given.labels.cpu().bool(), calibrated.sigmoid()
    ranked = raw if given.fitted else calibrated  # halves that are calibrated apart have no common order
    scores = evaluate_labels(calibrated, true, present, ranked=ranked)
    missed, wrong = true & ~present, present & ~true
    return LabelResult(
        given,
        scores,
        label_intervals(scores, ranked, true, present),
        probabilities,
        present,
        (label_calibration_error(raw, true), label_calibration_error(calibrated, true)),
        _slips(missed, probabilities, falling=False),
        _slips(wrong, probabilities, falling=True),
        score_label_slices(calibrated, true, present, given.columns),
        compare_labels((calibrated, present), given.other[1:], true) if given.other is not None else {},
    )


def _slips(chosen: Tensor, probabilities: Tensor, falling: bool) -> list[Slip]:
    """Return the worst slip of each image, the worst images first."""
    pairs = chosen.nonzero()  # (n, 2)
    order = torch.argsort(probabilities[chosen], descending=falling, stable=True)
    found: dict[int, Slip] = {}
    for image, label in pairs[order].tolist():
        found.setdefault(image, Slip(image, label, float(probabilities[image, label])))
        if len(found) == _SHOWN:
            break
    return list(found.values())


def to_dict(result: LabelResult) -> dict[str, Any]:
    """Return the content of evaluation.json; a score that is not defined is null."""
    given, scores = result.given, result.scores
    per_label = [
        {"label": name, "threshold": threshold, **score._asdict()}
        for name, threshold, score in zip(given.classes, given.rule.thresholds, scores.per_label, strict=True)
    ]
    before, after = result.calibration_error
    return json_values(
        {
            "format_version": _FORMAT_VERSION,
            **{name: getattr(given, name) for name in ("model", "data", "split")},
            "images": len(given.names),
            "classes": list(given.classes),
            "multilabel": given.rule.to_dict(),
            "notes": list(given.notes),
            "scores": scores.summary() | {"mean_labels": scores.mean_labels},
            "intervals": {name: asdict(each) for name, each in result.intervals.items()},
            "per_label": per_label,
            "calibration": {"kind": given.rule.calibration, "error_before": before, "error_after": after},
            "slices": [asdict(each) for each in result.slices],
            "robustness": None if given.robustness is None else given.robustness.to_dict(),
            "against": given.other
            and {"model": given.other[0], **{name: asdict(each) for name, each in result.differences.items()}},
        }
    )


def to_json(result: LabelResult) -> str:
    """Return the text of evaluation.json."""
    return json_text(to_dict(result), indent=1) + "\n"


def per_class_csv(result: LabelResult) -> Iterator[str]:
    """Yield the lines of per_class.csv, one for each label; an undefined score is an empty cell."""
    yield csv_line(("label", "images", "given", "threshold", "precision", "recall", "f1", "average_precision"))
    thresholds = result.given.rule.thresholds
    for name, threshold, score in zip(result.given.classes, thresholds, result.scores.per_label, strict=True):
        ap = "" if score.ap is None else score.ap
        yield csv_line((name, score.support, score.predicted, threshold, score.precision, score.recall, score.f1, ap))


def predictions_csv(result: LabelResult) -> Iterator[str]:
    """Yield the lines of predictions.csv, one for each image: labels as JSON lists, then each label's probability."""
    given = result.given
    yield csv_line(("image", "true", "predicted", "correct", *given.classes))
    true = given.labels.cpu().bool()
    for n, name in enumerate(given.names):
        sets = (names_of(given.classes, each[n]) for each in (true, result.present))
        right = int(bool((true[n] == result.present[n]).all()))
        yield csv_line((name, *sets, right, *(float(f"{p:.6g}") for p in result.probabilities[n].tolist())))


def names_of(classes: Sequence[str], has: Tensor) -> list[str]:
    """Return the names of the labels that are True in a row (K)."""
    return [classes[k] for k in has.nonzero().flatten().tolist()]
