"""The report of `vitreous evaluate --report`: what it needs beside the logits, and checks before any work.

N images, K classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jsonargparse import Namespace
from torch import Tensor

from vitreous.cli.options.model import load_model
from vitreous.cli.output.terminal import narrate, progress_bar
from vitreous.cli.work.evaluating import scoring
from vitreous.cli.work.evaluating.robustness import DEFAULT_IMAGES, measure_robustness
from vitreous.data.shards.listing import find_shards
from vitreous.data.sources.listing import first_ten
from vitreous.data.sources.locating import find_source
from vitreous.data.sources.manifest import read_columns
from vitreous.data.sources.opening import ImageData, Split
from vitreous.errors import ConfigError, UsageError, did_you_mean
from vitreous.files.text import visible
from vitreous.inspection.explain import explain
from vitreous.inspection.explanation import Explanation
from vitreous.predictor import Classifier
from vitreous.report.evaluation.folder import check_report_folder, write_folder
from vitreous.report.evaluation.results import EvaluationInput, EvaluationResult, measure
from vitreous.report.evaluation.robustness import RobustnessResult

__all__ = ["ReportPlan", "check_options", "plan_report"]

_MOST_VALUES = 50  # of a column that is used without being named: one of file names would give a slice per image


@dataclass(frozen=True, eq=False)
class ReportPlan:
    """Everything that a report needs and that can fail before the images are scored."""

    options: Namespace
    classifier: Classifier
    split: Split
    columns: Mapping[str, Sequence[str | None]]
    other: Classifier | None

    def write(self, data: ImageData, name: str, logits: Tensor, labels: Tensor) -> EvaluationResult:
        """Score the second model and the changed images, if asked for, and write the folder.

        `name` is that of the split, `logits` (N, K) and `labels` (N,) are those of the model.
        """
        options, classifier, other, robustness = self.options, self.classifier, None, None
        if self.other is not None:
            raw = scoring.compute_logits(self.other, self.split, options.batch_size)
            order = [self.other.classes.index(each) for each in classifier.classes]
            other = (options.against, raw[:, order].double() / self.other.info.temperature)
        if options.robustness:
            robustness = self.robustness(labels)
        given = EvaluationInput(
            model=str(options.model),
            data=data.name,
            split="all images" if name == "all" else f"{name} split",
            classes=classifier.classes,
            names=[self.split.name_of(n) for n in range(len(self.split))],
            logits=logits,
            labels=labels,
            temperature=classifier.info.temperature,
            columns=self.columns,
            other=other,
            robustness=robustness,
            notes=list(scoring.data_notes(classifier.info, data, name)),
        )
        result = measure(given)
        image = None if options.no_images else self.split.image
        with progress_bar("report") as update:
            folder = write_folder(
                options.report,
                result,
                image,
                class_map=self._class_map,
                overwrite=options.overwrite,
                progress=update,
            )
        narrate(f"report: {folder / 'report.html'}")
        return result

    def _in_order_of(self, other: Classifier, labels: Tensor) -> Tensor:
        """Return the labels in the order of another model of the same classes."""
        if labels.ndim == 2:
            return labels[:, [self.classifier.classes.index(each) for each in other.classes]]
        return torch.tensor([other.classes.index(each) for each in self.classifier.classes])[labels]

    def _class_map(self, n: int, label: int) -> Explanation:
        return explain(self.classifier, self.split.image(n), label)

    def robustness(self, labels: Tensor) -> RobustnessResult:
        """Score changed images, as `--robustness` asks; labels (N,) or (N, K) are in the order of the model."""
        options = self.options
        images = DEFAULT_IMAGES if options.robustness is True else int(options.robustness)
        other = None
        if self.other is not None:
            other = (options.against, self.other, self._in_order_of(self.other, labels))
        with progress_bar("robustness") as update:
            return measure_robustness(
                self.classifier,
                self.split,
                labels,
                images=images,
                batch_size=options.batch_size,
                other=other,
                progress=update,
            )


def check_options(options: Namespace) -> None:
    """Raise before any work if the folder cannot be written, or options are given that only a report uses."""
    if options.report is not None:
        check_report_folder(options.report, options.overwrite)
        return
    for name in ("against", "slice", "robustness", "no_images"):
        if options[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} changes what the report contains: give --report DIR too")


def plan_report(options: Namespace, classifier: Classifier, split: Split) -> ReportPlan | None:
    """Read the manifest's further columns and load the second model; None without `--report`."""
    if options.report is None:
        return None
    columns = _columns(options.data, _names(options.slice), split)
    other = None
    if options.against is not None:
        other = load_model(options, source=options.against)
        other.require_classes()
        if different := sorted(set(other.classes) ^ set(classifier.classes)):
            raise ConfigError(
                f"--against '{visible(options.against)}' has other classes, only one of the two models has: "
                f"{first_ten([visible(name) for name in different])}. Compare models of the same classes"
            )
        if (other.info.multilabel is None) != (classifier.info.multilabel is None):
            raise ConfigError(
                f"one of the model and --against '{visible(options.against)}' gives each image one class, and the "
                "other several labels or none: compare models of one kind"
            )
        other.prepare(len(split), options.batch_size)
    return ReportPlan(options, classifier, split, columns, other)


def _names(given: Sequence[str]) -> list[str]:
    """Return the values of a repeated option, which Python passes at once as a JSON list."""
    return [name for text in given for name in (json.loads(text) if text.startswith("[") else [text])]


def _columns(source: str, wanted: Sequence[str], split: Split) -> dict[str, list[str | None]]:
    """Return the cells (N) of the columns by which scores are sliced: those named, else all with few values."""
    path = find_source(source)
    if path is None or path.is_dir() or find_shards(path) is not None:
        if wanted:
            raise UsageError(
                f"--slice {wanted[0]} names a column of a manifest, and {source} is none: give a .csv file"
            )
        return {}
    found = read_columns(path, split.names)
    if not wanted:
        return {name: cells for name, cells in found.items() if 1 < len(set(cells)) <= _MOST_VALUES}
    for name in wanted:
        if name not in found:
            columns = first_ten([visible(each) for each in found]) or "none"
            hint = did_you_mean(name, found)
            raise UsageError(f"--slice '{visible(name)}' is not a further column of {source}: it has {columns}.{hint}")
    return {name: found[name] for name in wanted}
