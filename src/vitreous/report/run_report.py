"""The report of a finished run: report.json for programs, and pictures for people. It knows no Trainer and no model.

report.json (format_version 1; a number that is not finite is null)::

    format_version  1
    recipe, seed, device, precision
    data            what `facts.data` holds
    model           {parameters, flops}: count, and operations per image
    training        {epochs, selected_epoch, seconds: {phase: s}, extended_from, validated_in, selected_val}:
                    extended_from are the numbers of epochs at which the run was finished before it was given more, most
                    often none; validated_in is the precision of the validations while training, `bf16` or `float32`;
                    selected_val are the scores of the selected epoch then, as metrics.csv and curves.png have them
    machine         {cpu, cores, memory_gib, gpu, bf16}
    classes         K names, in the order of the model's outputs
    scores          {val, test} of the saved weights, in float32; test is null without a test split. Each has the
                    fields of
                    :class:`~vitreous.evaluate.metrics.Scores`; an entry of per_class also has its `name`, and
                    `confusion` is null above 100 classes
    calibration     {fitted_on: "val", measured_on: "val" | "test", cross_fitted} and the fields of
                    :class:`~vitreous.evaluate.calibration.Calibration`. Without a test split cross_fitted is true:
                    what is measured is each half of val with the temperature that fits the other half. Where that
                    does not lower the log loss, the temperature is 1 and cross_fitted is false
    most_confused   up to 20 of {true, predicted, count, share}, on val
    worst_mistakes  up to 25 of {index, name, true, predicted, probability}, on val; name may be null
    finetune        null for a run from random weights; else {source: {name, family, resampled, classes}, mode,
                    trained_parameters, probe, verdict: {worse, text, reasons}}. probe is what
                    :meth:`~vitreous.evaluate.probes.ProbeReport.to_dict` gives; both are null with --no-probe
    versions        {package: version}
    pictures        names of the pictures beside this file

N images, K classes.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitreous.errors import DataError, OutputError, VitreousError
from vitreous.evaluate.calibration import calibrate, cross_scaled, proven_temperature, reliability
from vitreous.evaluate.metrics import Scores, evaluate, most_confused, worst_mistakes
from vitreous.files.text import json_text
from vitreous.files.writing import replacing
from vitreous.machine.device import Machine, describe_machine, versions
from vitreous.report import figures as pictures
from vitreous.report import mistakes as mistakes_sheet

__all__ = ["PICTURES", "Predictions", "RunFacts", "write_report"]

PICTURES = ("curves.png", "confusion.png", "mistakes.png", "calibration.png")
"""Names of the pictures that :func:`write_report` leaves in the run's folder."""

_FORMAT_VERSION = 1
_MATRIX_UP_TO = 100  # classes: a larger confusion matrix would make the file megabytes of zeros
_PAIRS, _MISTAKES = 20, 25


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the model said about one split.

    Attributes:
        logits: (N, K) outputs of the saved weights before softmax.
        labels: (N,) true classes, integers in [0, K).
        picture: Returns image `i` of the split as a PIL image or uint8 array, for the sheet of mistakes; one that
            fails to load is shown as a grey field. None leaves all fields grey.
        name: Returns the name of image `i`, such as its path, for the list of mistakes; None leaves the names away.
    """

    logits: Tensor
    labels: Tensor
    picture: Callable[[int], Image.Image | npt.NDArray[np.uint8]] | None = None
    name: Callable[[int], str] | None = None


@dataclass(frozen=True)
class RunFacts:
    """What a report tells of a run besides its scores.

    Attributes:
        recipe: Name of the recipe.
        seed: Of every random draw.
        device: Where the run took place, such as `cpu`.
        precision: What it computed in, `bf16` or `float32`.
        epochs: Epochs that were trained.
        selected_epoch: Epoch, counted from 1, whose weights were saved; None where that was not chosen by epoch.
        parameters: Number of trained parameters.
        flops: Floating-point operations of one image's forward pass.
        data: About the data, such as source, fingerprint and number of images in each split; plain JSON values.
        seconds: Wall-clock time by phase, such as {"train": 63.1, "evaluate": 0.8}.
        machine: The hardware; measured here where it is not given.
        selected_val: Scores of the selected epoch on the validation split while training, in `precision`.
        finetune: What report.json says under that name; plain JSON values.
        extended_from: Numbers of epochs at which the run was finished before, and then given more.
    """

    recipe: str
    seed: int
    device: str
    precision: str
    epochs: int
    selected_epoch: int | None
    parameters: int
    flops: int
    data: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    machine: Machine | None = None
    selected_val: Mapping[str, float] | None = None
    finetune: Mapping[str, Any] | None = None
    extended_from: Sequence[int] = ()


def write_report(
    folder: Path,
    facts: RunFacts,
    *,
    history: Sequence[Mapping[str, Any]],
    classes: Sequence[str],
    val: Predictions,
    test: Predictions | None = None,
    temperature: float | None = None,
) -> dict[str, Any]:
    """Write `report.json` and the four pictures of :data:`PICTURES` into a run's folder.

    Confusion and mistakes are shown on the validation split, so that studying them leaves the test split untouched.
    Calibration is measured on the test split where there is one, since the temperature was fitted on the other.

    Args:
        folder: The run's folder; made where it is missing.
        facts: What to tell of the run besides its scores.
        history: Rows as :func:`~vitreous.report.figures.draw_curves` takes them.
        classes: The K class names.
        val: Predictions on the validation split.
        test: Predictions on the test split, where there is one.
        temperature: The temperature stored with the model; None fits it on `val`.

    Returns:
        What report.json holds, as the head of this module says.

    Raises:
        OutputError: If a file cannot be written; files that were there before stay whole.
        DataError: If logits, labels and class names do not fit one another.
        NonFiniteError: If a logit is NaN or infinite.
    """
    temperature = proven_temperature(val.logits, val.labels) if temperature is None else temperature
    scores = evaluate(val.logits, val.labels)
    tested = evaluate(test.logits, test.labels) if test else None
    named = {"val": _named(scores, classes), "test": _named(tested, classes) if tested else None}
    mistakes = _mistakes(val, classes)
    calibration, diagram = _calibration(val, test, temperature)
    report = _finite(
        {
            **_told(facts),
            "classes": classes,
            "scores": named,
            "calibration": calibration,
            "most_confused": [asdict(pair) for pair in most_confused(scores.confusion, classes, _PAIRS)],
            "worst_mistakes": mistakes,
            "versions": versions(),
            "pictures": PICTURES,
        }
    )
    drawn = (
        pictures.draw_curves(history, facts.selected_epoch, scores.summary(), facts.precision),
        pictures.draw_confusion(scores.confusion, classes),
        _draw_mistakes(val, mistakes, scores),
        diagram,
    )
    # In this order: where the report is, the pictures are.
    _write(folder, dict(zip(PICTURES, drawn, strict=True)) | {"report.json": _json(report)})
    return report


def _draw_mistakes(val: Predictions, mistakes: list[dict[str, Any]], scores: Scores) -> bytes:
    """The worst mistakes, and how many there are in all."""
    wrong = int(scores.confusion.sum() - np.trace(scores.confusion))
    return mistakes_sheet.draw_mistakes([_shown(val, mistake) for mistake in mistakes], wrong=wrong, total=scores.n)


def _calibration(val: Predictions, test: Predictions | None, temperature: float) -> tuple[dict[str, Any], bytes]:
    """What the report says of calibration, and confidence against accuracy drawn without and with the temperature."""
    crossed, measured = test is None and temperature != 1, val if test is None else test
    scaled = cross_scaled(val.logits, val.labels) if crossed else measured.logits.double() / temperature
    found = calibrate(measured.logits, measured.labels, temperature, scaled)
    before, after = (reliability(_softmax(logits), measured.labels) for logits in (measured.logits, scaled))
    split, short = ("validation", "val") if test is None else ("test", "test")
    told = {"fitted_on": "val", "measured_on": short, "cross_fitted": crossed} | found.to_dict()
    return told, pictures.draw_calibration(before, after, found, split, crossed=crossed)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder '{folder}': {error.strerror or error}") from error
    for name, content in files.items():
        with replacing(folder / name, follow=False) as path:
            path.write_bytes(content)


def _told(facts: RunFacts) -> dict[str, Any]:
    """Return the part of the report that the run's facts fill."""
    machine = facts.machine or describe_machine(torch.device(facts.device))
    training = {name: getattr(facts, name) for name in ("epochs", "selected_epoch", "seconds", "extended_from")}
    return {
        "format_version": _FORMAT_VERSION,
        **{name: getattr(facts, name) for name in ("recipe", "seed", "device", "precision", "data")},
        "model": {"parameters": facts.parameters, "flops": facts.flops},
        "training": training | {"validated_in": facts.precision, "selected_val": facts.selected_val},
        "machine": machine.to_dict(),
        "finetune": facts.finetune,
    }


def _softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    return torch.softmax(logits.detach().cpu().double() / temperature, dim=1)


def _named(scores: Scores, classes: Sequence[str]) -> dict[str, Any]:
    """Return scores with class names, and without a confusion matrix too large to read."""
    if len(scores.per_class) != len(classes):
        raise DataError(f"the model has {len(scores.per_class)} outputs, but there are {len(classes)} class names")
    fields = scores.to_dict()
    fields["per_class"] = [{"name": n, **row} for n, row in zip(classes, fields["per_class"], strict=True)]
    if len(classes) > _MATRIX_UP_TO:
        fields["confusion"] = None
    return fields


def _mistakes(split: Predictions, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entries of `worst_mistakes`, the worst first."""
    indices = worst_mistakes(split.logits, split.labels, _MISTAKES)
    best, predicted = _softmax(split.logits[indices]).max(dim=1) if indices else ((), ())
    return [
        {
            "index": index,
            "name": split.name(index) if split.name else None,
            "true": classes[int(split.labels[index])],
            "predicted": classes[int(chosen)],
            "probability": float(probability),
        }
        for index, probability, chosen in zip(indices, best, predicted, strict=True)
    ]


def _shown(split: Predictions, mistake: Mapping[str, Any]) -> mistakes_sheet.Mistake:
    """Return a mistake with its picture; one that vanished since the run began must not cost the report."""
    picture = None
    if split.picture:
        with contextlib.suppress(VitreousError, OSError):
            picture = split.picture(mistake["index"])
    return mistakes_sheet.Mistake(
        picture, mistake["true"], mistake["predicted"], mistake["probability"], mistake["name"]
    )


def _finite(value: Any) -> Any:
    """Return plain JSON values: lists for sequences, None for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(report: dict[str, Any]) -> bytes:
    """Return readable JSON: indented, with a row of numbers on one line."""
    text = json_text(report, indent=2)
    # A line break never stands within a JSON string, so this cannot touch one.
    text = re.sub(
        r"\[\n[\d\s,.e+-]+\]", lambda row: re.sub(r"\s+", " ", row[0]).replace("[ ", "[").replace(" ]", "]"), text
    )
    return text.encode("utf-8") + b"\n"
