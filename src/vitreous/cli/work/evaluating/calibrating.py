"""The work of `vitreous calibrate`, and what `vitreous evaluate` says of the thresholds that it stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from vitreous.checkpoint.locating import Located, locate
from vitreous.checkpoint.model_file import ModelInfo, recalibrate, save_model
from vitreous.cli.options.model import load_model
from vitreous.cli.output.terminal import narrate
from vitreous.cli.work.evaluating import scoring
from vitreous.data.sources.listing import first_ten
from vitreous.data.sources.opening import ImageData, Split
from vitreous.errors import ConfigError, DataError, UsageError, pluralize
from vitreous.evaluate.trust.selective import SelectionScore
from vitreous.evaluate.trust.thresholds import Fit, Goals, answered, fit_thresholds, held
from vitreous.files.html import html_table
from vitreous.files.text import printable, visible
from vitreous.files.writing import Outputs

if TYPE_CHECKING:
    from vitreous.cli.work.evaluating.labels_calibrating import LabelFit

__all__ = ["CalibratedModel", "calibrated", "calibration_note", "fit_table", "measured_table", "measured_thresholds"]


@dataclass(frozen=True, eq=False)
class CalibratedModel:
    """A model file with a new temperature and thresholds.

    Attributes:
        model: The file that was written.
        data: The labelled images.
        split: The split that was used: `train`, `val`, `test` or `all`.
        fit: Temperature, thresholds, and what they are worth.
    """

    model: Path
    data: ImageData
    split: str
    fit: Fit | LabelFit

    def to_dict(self) -> dict[str, Any]:
        """Return every number as plain JSON values, as `vitreous calibrate --json` writes them."""
        data = {"name": self.data.name, "fingerprint": self.data.fingerprint, "split": self.split}
        return {"model": str(self.model), "data": data, **self.fit.to_dict()}

    def __repr__(self) -> str:
        fit = self.fit
        fitted = (
            f"temperature={fit.temperature:.4f}" if isinstance(fit, Fit) else f"calibration={fit.rule.calibration!r}"
        )
        return f"CalibratedModel({str(self.model)!r}, {fitted}, n={fit.images})"

    def _repr_html_(self) -> str:
        rows = list(_fit_rows(self.fit)) if isinstance(self.fit, Fit) else []
        return html_table(repr(self), rows, ("", "before", "after", ""))


def calibrated(options: Namespace, files: Outputs) -> CalibratedModel:
    """Run `vitreous calibrate` on its parsed options. After an error the model file is as before."""
    located = locate(options.model)
    target = _target(options, located)
    # --precision is that of the answers here, not that of the arithmetic
    classifier = load_model(options, precision="float32", ignore_thresholds=False)
    classifier.require_classes()
    info = classifier.info
    is_several = info.multilabel is not None
    if is_several:
        _refuse_goals(options)
    data = scoring.open_data(info, options.data, options.data_dir, options.split, several=is_several)
    name, split = _choose_split(info, data, options.data, options.split)
    matched = scoring.label_sets_by_name if is_several else scoring.labels_by_name
    labels = matched(classifier.classes, data, split)
    for note in scoring.data_notes(info, data, name):
        narrate(note)
    files.reads(each=lambda: (path for each in data.splits.values() for path in each.paths or []))
    logits = scoring.compute_logits(classifier, split, options.batch_size, "calibrate")
    fit, info = _fitted(info, logits, labels, options)
    record = {"data": data.name, "fingerprint": data.fingerprint, "split": name, "images": fit.images}
    if not located.is_vitreous:
        info = replace(info, provenance={**info.provenance, "calibration": record})
    if options.out is None:
        recalibrate(located.file, target, info, record)
    else:
        with files.atomic_write(target) as path:
            if located.is_vitreous:
                recalibrate(located.file, path, info, record)
            else:
                save_model(path, classifier.model, info)
    return CalibratedModel(target, data, name, fit)


def _fitted(info: ModelInfo, logits: Tensor, labels: Tensor, options: Namespace) -> tuple[Fit | LabelFit, ModelInfo]:
    """Fit what the options ask for, and return it with what the model file stores."""
    if info.multilabel is not None:
        from vitreous.cli.work.evaluating.labels_calibrating import fit_labels  # only where it is used

        found = fit_labels(logits, labels, info.multilabel)
        if found.kept:
            names = [visible(info.classes[n]) for n in found.kept]
            narrate(
                f"{pluralize(len(names), 'label')} on none of these images or on all: calibration and threshold stay "
                f"as they were ({first_ten(names)})"
            )
        return found, replace(info, multilabel=found.rule)
    goals = Goals(options.precision, options.coverage, options.method or "lac", options.class_conditional)
    fit = fit_thresholds(logits, labels, goals, info.temperature)
    return fit, replace(info, temperature=fit.temperature, abstention=fit.abstention, conformal=fit.conformal)


def _refuse_goals(options: Namespace) -> None:
    """Refuse promises about the one class of an image, for a model that gives several labels."""
    for name in ("precision", "coverage"):
        if options[name] is not None:
            raise UsageError(
                f"--{name} is a promise about one class of each image, and this model gives several labels: leave it "
                "out, and calibration and thresholds of every label are fitted"
            )


def _target(options: Namespace, located: Located) -> Path:
    """Return the file to write, and check before any work that it can be written."""
    if options.out is not None:
        return Path(options.out)
    if not located.is_vitreous or not Path(options.model).expanduser().exists():
        kind = "from the hub" if located.is_vitreous else "of another family"
        raise ConfigError(f"'{options.model}' is {kind} and is not changed: give --out a .safetensors file to write")
    Outputs(overwrite=True).claim("MODEL", located.file)
    return located.file


def _choose_split(info: ModelInfo, data: ImageData, source: str, requested: str | None) -> tuple[str, Split]:
    """Return the split to calibrate on, which must not have trained the model."""
    name = requested or next((name for name in ("val", "all", "test") if name in data.splits), None)
    if name is None:
        raise DataError(f"{data.name} has only a train split: name it with --split train if the model never saw it")
    if name in ("train", "all") and scoring.may_have_trained(info, source, data):
        raise DataError(
            f"the model was trained on images of {data.name}, {name}: on these it is surer than on new ones, so no "
            "promise would hold. Give --split val, or other labelled images"
        )
    return scoring.choose_split(data, name)


def measured_thresholds(info: ModelInfo, logits: Tensor, labels: Tensor) -> dict[str, dict[str, Any]]:
    """Return what the thresholds promise and what they do on logits (N, K) and labels (N,)."""
    calibrated_logits, found = logits.double() / info.temperature, {}
    if (rule := info.abstention) is not None:
        promise = {"required_precision": rule.required_precision, "confidence": rule.confidence}
        found["abstention"] = promise | asdict(answered(rule, calibrated_logits, labels))
    if (sets := info.conformal) is not None:
        found["conformal"] = {"required_coverage": sets.coverage, **asdict(held(sets, calibrated_logits, labels))}
    return found


def calibration_note(info: ModelInfo, data: ImageData, split: str) -> Iterator[str]:
    """Yield a remark if these images fitted the thresholds; the record is untrusted and may have any type."""
    record = info.provenance.get("calibration")
    used = (
        record.get("split") if isinstance(record, Mapping) and record.get("fingerprint") == data.fingerprint else None
    )
    if (
        (info.abstention or info.conformal or info.multilabel)
        and used is not None
        and (split in (used, "all") or used == "all")
    ):
        yield "the thresholds were fitted on some of these images: new ones are a fairer test of their promises"


def measured_table(measured: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return what thresholds do as a table."""
    table = Table("thresholds", box=SIMPLE_HEAD)
    for heading in ("promised", "on these images"):
        table.add_column(heading, justify="right")
    if rule := measured.get("abstention"):
        table.add_row("images answered, not unsure", "", f"{rule['share']:.2%}")
        precision = "none answered" if rule["precision"] is None else f"{rule['precision']:.2%}"
        table.add_row("precision of the answered", f"{rule['required_precision']:.2%}", precision)
    if sets := measured.get("conformal"):
        table.add_row("sets with the true class", f"{sets['required_coverage']:.2%}", f"{sets['coverage']:.2%}")
        table.add_row("classes in a set, mean", "", f"{sets['mean_size']:.2f}")
    return table


def fit_table(result: CalibratedModel) -> Table:
    """Return the result of a calibration as one table."""
    title = f"{result.data.name}, {result.split}: {result.fit.images:,} images"
    if not isinstance(result.fit, Fit):
        from vitreous.cli.work.evaluating.labels_calibrating import labels_table

        return labels_table(title, result.fit)
    table = Table(title=Text(printable(title), style="bold"), title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for name, before, after, note in _fit_rows(result.fit):
        table.add_row(name, before, after, Text(note, style="dim"))
    return table


def _fit_rows(fit: Fit) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, value before, value after, and a note."""
    before, after = fit.before, fit.after
    crossed = "after: each half with the temperature of the other" if fit.temperature != 1 else ""
    kept = "" if fit.temperature != 1 else "1: a fitted one would not lower the log loss of new images"
    yield "temperature", f"{before.temperature:.3f}", f"{fit.temperature:.3f}", kept
    yield "log loss", f"{before.log_loss_after:.4f}", f"{after.log_loss_after:.4f}", crossed
    yield "ECE", f"{before.ece_after:.4f}", f"{after.ece_after:.4f}", "calibration error, 15 bins"
    if (rule := fit.abstention) is not None:
        how = f"chosen on {fit.choosing:,} images" if fit.choosing else "too few images to choose among scores"
        yield "score", "", _score_name(rule.score), how
        yield "AURC", f"{fit.aurc_max_probability:.5f}", f"{fit.aurc:.5f}", "before: the highest probability"
        promise = f"for {rule.required_precision:.2%} precision at {rule.confidence:.0%} confidence"
        yield "unsure at or below", "", f"{rule.threshold:.5g}", promise
        yield "images answered", "", f"{rule.coverage:.2%}", f"{rule.precision:.2%} of them correct here"
    if (sets := fit.conformal) is not None:
        kind = f"{sets.method}, {'by class' if len(sets.thresholds) > 1 else 'one threshold'}"
        fallback = f"; {len(sets.fallback):,} classes have too few images for their own" if sets.fallback else ""
        yield "sets", "", f"{sets.coverage:.2%}", f"promised coverage; {kind}{fallback}"
        if fit.sets is None:
            yield "coverage, size", "", "", "not measured: half of the images are too few"
        else:
            note = "each half with the sets of the other"
            yield "coverage, size", "", f"{fit.sets.coverage:.2%}, {fit.sets.mean_size:.2f}", note


def _score_name(score: SelectionScore) -> str:
    order = f", p {score.norm_order:g}" if score.norm_order else ""
    return score.name.replace("_", " ") + order
