"""The report of a finished run: report.json for programs, a page and curves for people. It knows no trainer.

report.json (format_version 1; a number that is not finite is null)::

    format_version  1
    recipe, seed, device, precision
    data            `facts.data`; `unlabelled` is there if images without a label were seen: {images, per_step, source,
                    fingerprint}, where source is that of `--unlabelled`, or null. After self-training it has, in place
                    of per_step, `labelled`, the images that training saw, and `models`, a list of {name, digest,
                    licence}
    model           {parameters, flops}: number of parameters, and floating-point operations per image
    training        {epochs, selected_epoch, seconds: {phase: s}, extended_from, validated_in, selected_val}.
                    extended_from: numbers of epochs after which the run was finished earlier and then extended;
                    validated_in: precision of the validations during training, `bf16` or `float32`;
                    selected_val: scores of the selected epoch in that precision, as in metrics.csv and curves.png
    machine         {cpu, cores, memory_gib, gpu, bf16}
    classes         K names, in the order of the model's outputs
    scores          {val, test} of the saved weights in float32; test is null without a test split. Fields of
                    :class:`~vitreous.evaluate.scoring.metrics.Scores`, where each entry of per_class also has a
                    `name`, and `confusion` is null for more than 100 classes
    calibration     {fitted_on: "val", measured_on: "val" | "test", cross_fitted} and the fields of
                    :class:`~vitreous.evaluate.trust.calibration.Calibration`. Without a test split cross_fitted is
                    true: each half of val is measured with the temperature fitted on the other half. If that does not
                    lower the log loss, the temperature is 1 and cross_fitted is false
    most_confused   up to 20 of {true, predicted, count, share}, on val
    worst_mistakes  up to 25 of {index, name, true, predicted, probability}, on val; name may be null
    finetune        null for a run from random weights; otherwise {source: {name, family, resampled, classes}, mode,
                    trained_parameters, probe, verdict: {worse, text, reasons}}. probe is the dictionary of
                    :meth:`~vitreous.evaluate.features.probes.ProbeReport.to_dict`; probe and verdict are null with
                    --no-probe. With mode `auto` both are null, and there are `chosen`, the stage whose model is saved,
                    and `stages`, a list of {stage, top1, low, high, macro_f1, log_loss, seconds, detail, skipped,
                    chosen}: the score on val with its 95 % interval, null if the stage was skipped, and then why
    distil          null for a run without a teacher; otherwise {teacher: {name, family, digest, classes, image_size,
                    parameters}, targets, views}, with temperature and weight for logits, features and feature_weight
                    for features; teacher has a licence if its origin states one; views is the number of views per image
                    that the teacher computed once, null if it computed in every step
    versions        {package: version}
    pictures        names of the figures beside this file

N images, K classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import DataError, OutputError
from vitreous.evaluate.scoring.metrics import Scores, evaluate, most_confused, worst_mistakes
from vitreous.evaluate.trust.calibration import calibrate, choose_temperature, cross_scaled
from vitreous.files.text import json_text, json_values
from vitreous.files.writing import atomic_write
from vitreous.machine.device import Machine, describe_machine, versions
from vitreous.report.evaluation.page import page
from vitreous.report.evaluation.results import EvaluationInput, measure
from vitreous.report.evaluation.thumbnails import ClassMap, ImageOf
from vitreous.report.figures import draw_curves

__all__ = ["PAGE", "PICTURES", "Predictions", "RunFacts", "described", "write_files", "write_report"]

PICTURES = ("curves.png",)
"""Names of the figures that :func:`write_report` writes into the run directory."""

PAGE = "report.html"
"""Name of the page on the saved weights, which :mod:`vitreous.report.evaluation` describes."""

_FORMAT_VERSION = 1
_MAX_MATRIX_CLASSES = 100  # a larger confusion matrix would make the file megabytes of zeros
_PAIRS, _MISTAKES = 20, 25


@dataclass(frozen=True, eq=False)
class Predictions:
    """The model's outputs on one split, its images for the thumbnails of the page, and their class maps.

    An image that cannot be loaded has no thumbnail; nor has any image if `image` is None.
    """

    logits: Tensor  # (N, K) outputs of the saved weights before softmax
    labels: Tensor  # (N,) true classes, integers in [0, K)
    image: ImageOf | None = None  # returns image `i` of the split
    name: Callable[[int], str] | None = None  # returns the name of image `i`, such as its path
    class_map: ClassMap | None = None  # returns where image `i` speaks for a class


@dataclass(frozen=True)
class RunFacts:
    """What a report says about a run besides its scores."""

    recipe: str
    seed: int
    device: str  # device of the run, such as `cpu`
    precision: str  # `bf16` or `float32`
    epochs: int
    selected_epoch: int | None  # epoch from 1 whose weights were saved; None if they were not chosen by epoch
    parameters: int  # number of trained parameters
    flops: int  # floating-point operations of the forward pass of one image
    data: Mapping[str, Any] = field(default_factory=dict)  # source, fingerprint, images per split, as JSON values
    seconds: Mapping[str, float] = field(default_factory=dict)  # wall-clock time by phase, such as {"train": 63.1}
    machine: Machine | None = None  # the hardware; None describes this machine
    selected_val: Mapping[str, float] | None = None  # validation scores of the selected epoch, in `precision`
    finetune: Mapping[str, Any] | None = None  # `finetune` of report.json, as plain JSON values
    distil: Mapping[str, Any] | None = None  # `distil` of report.json, as plain JSON values
    extended_from: Sequence[int] = ()  # numbers of epochs after which the run was finished earlier and then extended


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
    """Write `report.json`, :data:`PAGE` and :data:`PICTURES` into a run directory, and return the first one's content.

    The page is on the validation split, so that studying its mistakes leaves the test split untouched; of the test
    split it shows the reliability. The temperature is fitted on the validation split, here if it is None, so that
    `calibration` of report.json is measured on the test split if there is one.
    """
    temperature = choose_temperature(val.logits, val.labels) if temperature is None else temperature
    scores = evaluate(val.logits, val.labels)
    test_scores = evaluate(test.logits, test.labels) if test else None
    named = {"val": _named(scores, classes), "test": _named(test_scores, classes) if test_scores else None}
    mistakes = _mistakes(val, classes)
    calibration = _calibration(val, test, temperature)
    figures = {name: draw_curves(history, facts.selected_epoch, scores.summary(), facts.precision) for name in PICTURES}
    held_out = ("test split", test.logits, test.labels) if test is not None else None
    shown = replace(_page_input(folder.name, facts, classes, val, temperature), held_out=held_out)
    html = "".join(page(measure(shown), val.image, class_map=val.class_map))
    report = json_values(
        {
            **described(facts),
            "classes": classes,
            "scores": named,
            "calibration": calibration,
            "most_confused": [asdict(pair) for pair in most_confused(scores.confusion, classes, _PAIRS)],
            "worst_mistakes": mistakes,
            "versions": versions(),
            "pictures": list(figures),
        }
    )
    # Last: a report never names a figure that is missing.
    write_files(folder, figures | {PAGE: html.encode("utf-8"), "report.json": _json(report)})
    return report


def _page_input(
    name: str, facts: RunFacts, classes: Sequence[str], val: Predictions, temperature: float
) -> EvaluationInput:
    """Return what the page shows: the validation split, cross-fitted because the temperature was fitted on it."""
    notes = ["these images chose the epoch and the temperature, so the scores are a little high"]
    return EvaluationInput(
        model=name,
        data=str(facts.data.get("source", "")),
        split="validation split",
        classes=classes,
        names=[val.name(n) if val.name else f"image {n}" for n in range(len(val.labels))],
        logits=val.logits,
        labels=val.labels,
        temperature=temperature,
        scaled=cross_scaled(val.logits, val.labels) if temperature != 1 else None,
        notes=notes,
        stages=(facts.finetune or {}).get("stages", ()),
    )


def _calibration(val: Predictions, test: Predictions | None, temperature: float) -> dict[str, Any]:
    """Return `calibration` of the report."""
    crossed, measured = test is None and temperature != 1, val if test is None else test
    scaled = cross_scaled(val.logits, val.labels) if crossed else measured.logits.double() / temperature
    summary = calibrate(measured.logits, measured.labels, temperature, scaled)
    split = "val" if test is None else "test"
    return {"fitted_on": "val", "measured_on": split, "cross_fitted": crossed} | summary.to_dict()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files atomically in a folder, which is created, in their order."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot create the folder '{folder}': {error.strerror or error}") from error
    for name, content in files.items():
        with atomic_write(folder / name, follow=False) as path:
            path.write_bytes(content)


def described(facts: RunFacts) -> dict[str, Any]:
    """Return the keys of report.json that say nothing of the classes."""
    machine = facts.machine or describe_machine(torch.device(facts.device))
    training = {name: getattr(facts, name) for name in ("epochs", "selected_epoch", "seconds", "extended_from")}
    return {
        "format_version": _FORMAT_VERSION,
        **{name: getattr(facts, name) for name in ("recipe", "seed", "device", "precision", "data")},
        "model": {"parameters": facts.parameters, "flops": facts.flops},
        "training": training | {"validated_in": facts.precision, "selected_val": facts.selected_val},
        "machine": machine.to_dict(),
        "finetune": facts.finetune,
        "distil": facts.distil,
    }


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits.detach().cpu().double(), dim=1)


def _named(scores: Scores, classes: Sequence[str]) -> dict[str, Any]:
    """Return the fields of scores with class names, and without a confusion matrix that is too large to read."""
    if len(scores.per_class) != len(classes):
        raise DataError(f"the model has {len(scores.per_class)} outputs, but there are {len(classes)} class names")
    fields = scores.to_dict()
    fields["per_class"] = [{"name": n, **row} for n, row in zip(classes, fields["per_class"], strict=True)]
    if len(classes) > _MAX_MATRIX_CLASSES:
        fields["confusion"] = None
    return fields


def _mistakes(split: Predictions, classes: Sequence[str]) -> list[dict[str, Any]]:
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


def _json(report: dict[str, Any]) -> bytes:
    """Return indented JSON with each row of numbers on one line."""
    text = json_text(report, indent=2)
    # JSON strings contain no line breaks, so this cannot match inside one.
    text = re.sub(r"\[\n[\d\s,.e+-]+\]", lambda row: f"[{' '.join(row[0][1:-1].split())}]", text)
    return text.encode("utf-8") + b"\n"
