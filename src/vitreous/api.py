"""The commands as functions: `vitreous.train`, `finetune`, `evaluate`, `calibrate` and `inspect`.

Keyword options are turned into command-line arguments and parsed as such, so that each option is defined, checked and
documented in one place. Errors are raised as :class:`~vitreous.errors.VitreousError`; nothing here exits the process.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.errors import UsageError, pluralize
from vitreous.files.html import html_table
from vitreous.files.text import visible

if TYPE_CHECKING:
    from vitreous.cli.verbs.train import Configure
    from vitreous.cli.work.evaluating.calibrating import CalibratedModel
    from vitreous.cli.work.evaluating.evaluation import Evaluation
    from vitreous.cli.work.evaluating.labels_evaluation import LabelEvaluation
    from vitreous.data.images.inputs import ImageInput
    from vitreous.evaluate.scoring.any_labels import AnyScores
    from vitreous.predictor import Classifier
    from vitreous.report.inspection.results import Inspection
    from vitreous.train.finish import RunResult

__all__ = ["Training", "calibrate", "evaluate", "finetune", "inspect", "train"]

_CLI_ONLY = {
    "json": "use the result's to_dict()",
    "overwrite": "only the run's folder is written",
    "show_batch": "use the command",
    "print_config": "see recipe.yaml in the run's folder",
    "help": "use help(vitreous.train), or `vitreous train --help all` in a shell",
}
_LOADING_OPTIONS = frozenset(
    (
        "device",
        "engine",
        "on",
        "precision",
        "image_size",
        "resample",
        "merge_tokens",
        "tta",
        "ignore_thresholds",
        "trust_code",
    )
)


@dataclass(frozen=True)
class Training:
    """The result of a training run; :attr:`run` is the detailed :class:`vitreous.train.finish.RunResult`."""

    run: RunResult

    @property
    def folder(self) -> Path:
        """The run directory, with model, report, figures and recipe."""
        return self.run.folder

    @property
    def val(self) -> AnyScores | None:
        """Validation scores of the saved weights; None if the run had already finished before this call."""
        return self.run.val

    @property
    def test(self) -> AnyScores | None:
        """Test scores; None without a test split."""
        return self.run.test

    @property
    def interrupted(self) -> bool:
        """Whether a signal stopped the run early; the same call with ``resume=True`` continues it."""
        return self.run.interrupted

    @cached_property
    def model(self) -> Classifier:
        """The trained model, loaded on first access."""
        from vitreous.predictor import load

        return load(self.run.model)

    @cached_property
    def report(self) -> Mapping[str, Any]:
        """The content of report.json; empty if the run was interrupted."""
        return self.run.to_dict()["report"] or {}

    def to_dict(self) -> dict[str, Any]:
        """Return all results as JSON types, as `vitreous train --json` writes them."""
        return self.run.to_dict()

    def __repr__(self) -> str:
        name, value = self.val.headline if self.val is not None else ("", 0.0)
        score = f", val {name} {value:.4f}" if name else ""
        return f"Training({str(self.folder)!r}, {pluralize(self.run.epochs, 'epoch')}{score}{self._status})"

    def _repr_html_(self) -> str:
        found = {split: scores for split, scores in self.to_dict()["scores"].items() if scores}
        main, name = ("mean_ap", "mAP") if any("mean_ap" in each for each in found.values()) else ("top1", "top-1")
        rows = [
            (split, f"{scores[main]:.2%}", f"{scores['macro_f1']:.3f}", f"{scores['log_loss']:.3f}")
            for split, scores in found.items()
        ]
        epochs = f"{pluralize(self.run.epochs, 'epoch')}, saved: epoch {self.run.selected_epoch}"
        return html_table(f"{self.folder}: {epochs}{self._status}", rows, ("split", name, "macro F1", "log loss"))

    @property
    def _status(self) -> str:
        return ", interrupted" if self.interrupted else ""


def train(data: str | os.PathLike[str], *, quiet: bool = False, resume: bool = False, **options: Any) -> Training:
    """Train a classifier on labelled images, as `vitreous train` does.

    Args:
        data: A folder with one folder per class, a .csv, .parquet or .jsonl manifest, or a known data set such as
            ``digits``.
        quiet: Print nothing.
        resume: Continue the run that the same call started before, if there is one.
        options: Options of the command, such as ``model="S/16"``, ``epochs=10``, ``budget="25m"`` or ``out="runs/a"``.
            Pass a group as ``optim={"lr": 1e-3}`` or ``**{"optim.lr": 1e-3}``. `vitreous train --help all` lists them.

    Returns:
        The result: ``.model`` predicts, ``.val`` and ``.test`` are scores, ``.folder`` holds the report.

    Raises:
        UsageError: If an option is unknown or its value does not fit.
        VitreousError: If the configuration, the data or the disk prevents the run.
        KeyboardInterrupt: On a second Ctrl-C; the first one ends the run early, with ``.interrupted`` set.
    """
    from vitreous.cli.verbs.train import configure

    return _run(configure, [*_to_arguments(options), "--", os.fspath(data)], quiet, resume)


def finetune(
    data: str | os.PathLike[str],
    source: str | os.PathLike[str] = "auto",
    *,
    quiet: bool = False,
    resume: bool = False,
    **options: Any,
) -> Training:
    """Fine-tune a trained model on labelled images, as `vitreous finetune` does; see :func:`train` for the rest.

    Args:
        data: Labelled images.
        source: The model: a file or folder of any supported family, a run directory, a hub id, or a short name of
            `vitreous models --pretrained`. ``auto`` chooses one of these.
        quiet: Print nothing.
        resume: Continue an earlier run.
        options: Options of the command, such as ``tune="lora"``, ``image_size=384`` or ``probe=False``.

    Raises:
        CheckpointError: If the source cannot be opened.
        VitreousError: As :func:`train`.
    """
    from vitreous.cli.verbs.finetune import configure

    if (probe := options.pop("probe", None)) is not None:
        options["tune.probe"] = probe
    arguments = [f"--from={os.fspath(source)}", *_to_arguments(options), "--", os.fspath(data)]
    return _run(configure, arguments, quiet, resume)


def evaluate(
    model: Classifier | str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    quiet: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> Evaluation | LabelEvaluation:
    """Evaluate a model on labelled images, as `vitreous evaluate` does.

    Args:
        model: A loaded classifier, or whatever :func:`vitreous.load` accepts.
        data: As in :func:`train`; classes are matched by name.
        quiet: Print nothing.
        overwrite: Replace the folder ``report`` if it holds an earlier report.
        options: Options of the command, such as ``split="val"``, ``batch_size=64`` or ``report="report"``. Options for
            loading a model, such as ``engine``, are accepted only with a path.

    Returns:
        The result: ``.scores``, ``.to_dict()``, and of one class for each image ``.calibration`` and ``.thresholds``.

    Raises:
        CheckpointError: If the model cannot be opened.
        VitreousError: As :func:`train`.
    """
    from vitreous.cli.output.terminal import silence
    from vitreous.cli.verbs.evaluate import parsed

    classifier, name = _loaded(model, options)
    words = [*_to_arguments(options), *(["--overwrite"] if overwrite else []), "--", name, os.fspath(data)]
    parsed_options = parsed(words)
    from vitreous.cli.work.evaluating.evaluation import evaluated

    with silence(quiet):
        return evaluated(parsed_options, classifier)


def calibrate(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    quiet: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> CalibratedModel:
    """Fit the temperature of a model file, and thresholds with a promise, as `vitreous calibrate` does.

    Args:
        model: A model file or run directory, which is changed in place; with ``out`` a file of any family.
        data: Labelled images that the model was not trained on, as in :func:`train`; classes are matched by name.
        quiet: Print nothing.
        overwrite: Replace the file ``out`` if it exists.
        options: Options of the command, such as ``precision=0.95``, ``coverage=0.9`` or ``out="b.safetensors"``.

    Returns:
        The result: ``.model`` is the file, ``.fit`` has temperature and thresholds, and there is ``.to_dict()``.

    Raises:
        CheckpointError: If the model cannot be opened.
        DataError: If the images cannot show the precision or are too few for the coverage; the file is as before.
        VitreousError: As :func:`train`.
    """
    from vitreous.cli.output.terminal import silence
    from vitreous.cli.verbs.calibrate import parsed

    words = [*_to_arguments(options), f"--overwrite={_to_text(overwrite)}", "--", os.fspath(model), os.fspath(data)]
    parsed_options, files = parsed(words)
    from vitreous.cli.work.evaluating.calibrating import calibrated

    with silence(quiet):
        return calibrated(parsed_options, files)


def inspect(
    model: Classifier | str | os.PathLike[str],
    images: ImageInput | Sequence[ImageInput] = (),
    *,
    quiet: bool = False,
    **options: Any,
) -> Inspection:
    """Look inside a model, as `vitreous inspect` does.

    Args:
        model: A loaded classifier, or whatever :func:`vitreous.load` accepts.
        images: One image or several, as :meth:`vitreous.Classifier.predict` takes them. None: the model alone.
        quiet: Print nothing.
        options: Options of the command, such as ``data="photos/"``, ``methods=["legrad"]`` or ``budget="1m"``. Files
            are written only with ``out``.

    Returns:
        The result: ``.images``, ``.measures``, ``.comparison`` and ``.to_dict()``.

    Raises:
        CheckpointError: If the model cannot be opened.
        VitreousError: As :func:`train`.
    """
    from vitreous.cli.output.terminal import silence
    from vitreous.cli.verbs.inspect import parsed, written
    from vitreous.data.images.inputs import split_inputs

    classifier, name = _loaded(model, options)
    target = options.pop("target", None)
    overwrite = ["--overwrite"] if options.pop("overwrite", False) else []  # files are written with `out`
    parsed_options = parsed([*_to_arguments(options), *overwrite, "--", name])
    parsed_options.target = target
    from vitreous.cli.work.inspecting.inspection import inspected

    with silence(quiet):
        result = inspected(parsed_options, list(split_inputs(images)[1]), classifier)
        if parsed_options.out is not None:
            written(result, parsed_options)
    return result


def _loaded(model: Classifier | str | os.PathLike[str], options: Mapping[str, Any]) -> tuple[Classifier | None, str]:
    """Return a classifier that is loaded already, and the name of the model."""
    from vitreous.predictor import Classifier

    if not isinstance(model, Classifier):
        return None, os.fspath(model)
    if loading := sorted({name.replace("-", "_") for name in options} & _LOADING_OPTIONS):
        raise UsageError(f"the model is loaded already: omit {', '.join(loading)}, or pass the model's path")
    return model, repr(model)


def _run(configure: Configure, arguments: Sequence[str], quiet: bool, resume: bool) -> Training:
    started = time.monotonic()  # a time budget counts from the call
    config, given, _ = configure(arguments)
    if config.tune.source is None:  # fine-tuning reports a missing model before missing data
        from vitreous.data.sources.locating import find_source

        find_source(config.data.source)
    from rich.console import Console

    from vitreous.cli.output.notebook import NotebookDisplay, in_notebook
    from vitreous.train.console import Display
    from vitreous.train.run import run

    view = Display(Console(quiet=True, force_terminal=False)) if quiet else NotebookDisplay() if in_notebook() else None
    return Training(run(config, explicit=given, started=started, view=view, resume=resume))


def _to_arguments(options: Mapping[str, Any]) -> list[str]:
    arguments = []
    for name, value in _flatten(options):
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
            raise UsageError(f"'{visible(name)}' is not the name of an option: write optim.lr for a field of a group")
        if (plain := name.replace("-", "_")) in _CLI_ONLY:
            raise UsageError(f"option '{plain}' is not available in Python: {_CLI_ONLY[plain]}")
        arguments.append(f"--{name}={_to_text(value)}")
    return arguments


def _flatten(options: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield options with their full names, such as `optim.lr`. The kind of a part has the name of the part."""
    for name, value in options.items():
        full = f"{group}{name}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{full}.")
        else:
            yield re.sub(r"(\..+)\.kind$", r"\1", full), value  # `model.position.kind` is typed --model.position


def _to_text(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    to_python: Callable[[], Any] | None = getattr(value, "item", None)  # NumPy and PyTorch scalars
    try:
        return json.dumps(list(value) if isinstance(value, tuple) else to_python() if to_python else value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{visible(repr(value))} is not an option's value: pass text, numbers or a list") from error
