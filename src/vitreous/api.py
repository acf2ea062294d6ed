"""The verbs as functions of Python: `vitreous.train`, `vitreous.finetune` and `vitreous.evaluate`.

Their options are those of the verbs, by the same names and with the same meaning: they are written as the words of a
command and read as those are, so there is one place where an option is defined, checked and explained. What is wrong
raises a :class:`~vitreous.errors.VitreousError`; nothing here ends the process.
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

from vitreous.data.sources.listing import many
from vitreous.errors import UsageError
from vitreous.files.html import html_table
from vitreous.files.text import visible

if TYPE_CHECKING:
    from vitreous.cli.verbs.train import Configure
    from vitreous.cli.work.evaluation import Evaluation
    from vitreous.evaluate.metrics import Scores
    from vitreous.predictor import Classifier
    from vitreous.train.finish import RunResult

__all__ = ["Training", "evaluate", "finetune", "train"]

_ELSEWHERE = {  # options of the commands that are something else in Python
    "json": "the result's to_dict() has every number",
    "overwrite": "nothing but the run's folder is written",
    "show_batch": "only the command draws one",
    "print_config": "recipe.yaml in the run's folder has the settings",
    "help": "help(vitreous.train), or `vitreous train --help` in a shell",
}


@dataclass(frozen=True)
class Training:
    """A training that ended.

    Attributes:
        run: What it left, in detail: :class:`vitreous.train.finish.RunResult`.
    """

    run: RunResult

    @property
    def folder(self) -> Path:
        """The run's folder: model, report, figures and recipe."""
        return self.run.folder

    @property
    def val(self) -> Scores | None:
        """Scores of the saved weights on the validation split; None where the run was finished before."""
        return self.run.val

    @property
    def test(self) -> Scores | None:
        """Scores on the test split; None without one."""
        return self.run.test

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it early; the same call with ``resume=True`` goes on."""
        return self.run.interrupted

    @cached_property
    def model(self) -> Classifier:
        """The trained model, ready to predict; loaded when it is first asked for."""
        from vitreous.predictor import load

        return load(self.run.model)

    @cached_property
    def report(self) -> Mapping[str, Any]:
        """What report.json holds; empty where the run was interrupted."""
        return self.run.to_dict()["report"] or {}

    def to_dict(self) -> dict[str, Any]:
        """Every number as plain JSON values: what `vitreous train --json` writes."""
        return self.run.to_dict()

    def __repr__(self) -> str:
        top1 = f", val top-1 {self.val.top1:.4f}" if self.val is not None else ""
        ended = ", interrupted" if self.interrupted else ""
        return f"Training({str(self.folder)!r}, {many(self.run.epochs, 'epoch')}{top1}{ended})"

    def _repr_html_(self) -> str:
        scores = self.to_dict()["scores"]
        rows = [
            (name, f"{own['top1']:.2%}", f"{own['macro_f1']:.3f}", f"{own['log_loss']:.3f}")
            for name, own in scores.items()
            if own
        ]
        ended = ", interrupted" if self.interrupted else ""
        title = f"{self.folder}: {many(self.run.epochs, 'epoch')}, saved: epoch {self.run.selected_epoch}{ended}"
        return html_table(title, rows, ("split", "top-1", "macro F1", "log loss"))


def train(data: str | os.PathLike[str], *, quiet: bool = False, resume: bool = False, **options: Any) -> Training:
    """Train a classifier from labelled images, as `vitreous train` does.

    Args:
        data: A folder with one folder per class, a .csv or .parquet manifest, or a known set such as ``digits``.
        quiet: Print nothing.
        resume: Go on where the same call stopped, or begin where there is nothing to go on from.
        options: Those of the command: ``model="S/16"``, ``epochs=10``, ``budget="25m"``, ``out="runs/mine"``. A group
            is a dictionary, ``optim={"lr": 1e-3}``, or a name with a dot, ``**{"optim.lr": 1e-3}``. `vitreous train
            --help` lists them.

    Returns:
        The result: ``.model`` predicts, ``.val`` and ``.test`` are scores, ``.folder`` has the report.

    Raises:
        UsageError: If an option is unknown or its value does not fit.
        VitreousError: Whatever else is wrong with the configuration, the data or the disk.
        KeyboardInterrupt: If Ctrl-C came twice; after one, the result says that it was interrupted.
    """
    from vitreous.cli.verbs.train import configure

    return _trained(configure, [*_words(options), "--", os.fspath(data)], quiet, resume)


def finetune(
    data: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    quiet: bool = False,
    resume: bool = False,
    **options: Any,
) -> Training:
    """Fine-tune a trained model on labelled images, as `vitreous finetune` does.

    Args:
        data: As of :func:`train`.
        source: The model: a file or folder of any family, a run's folder, or a hub id.
        quiet: As of :func:`train`.
        resume: As of :func:`train`.
        options: Those of the command, such as ``tune="lora"``, ``image_size=384`` or ``probe=False``.

    Returns:
        As :func:`train`.

    Raises:
        CheckpointError: If the source cannot be opened.
        VitreousError: As :func:`train`.
    """
    from vitreous.cli.verbs.finetune import configure

    if (probe := options.pop("probe", None)) is not None:
        options["tune.probe"] = probe
    words = [f"--from={os.fspath(source)}", *_words(options), "--", os.fspath(data)]
    return _trained(configure, words, quiet, resume)


def evaluate(
    model: Classifier | str | os.PathLike[str], data: str | os.PathLike[str], *, quiet: bool = False, **options: Any
) -> Evaluation:
    """Score a model on labelled images, as `vitreous evaluate` does.

    Args:
        model: A loaded classifier; or a model.safetensors, a run's folder, or any family's file, folder or hub id.
        data: As of :func:`train`; classes are matched by name.
        quiet: Print nothing.
        options: Those of the command, such as ``split="val"`` or ``batch_size=64``. What says how a model is opened,
            such as ``engine``, goes with a path, not with a loaded classifier.

    Returns:
        The result: ``.scores``, ``.calibration`` and ``.to_dict()``.

    Raises:
        CheckpointError: If the model cannot be opened.
        VitreousError: As :func:`train`.
    """
    from vitreous.cli.output.terminal import silence
    from vitreous.cli.verbs.evaluate import parsed
    from vitreous.predictor import Classifier

    loaded = isinstance(model, Classifier)
    if loaded and (opening := sorted(set(options) & _OPENING)):
        raise UsageError(
            f"{', '.join(opening)} say how a model is opened, and this one is: give its path, or leave them"
        )
    name = repr(model) if loaded else os.fspath(model)  # type: ignore[arg-type]
    asked = parsed([*_words(options), "--", name, os.fspath(data)])
    from vitreous.cli.work.evaluation import evaluated

    with silence(quiet):
        return evaluated(asked, model if loaded else None)  # type: ignore[arg-type]


_OPENING = frozenset(("device", "engine", "precision", "image_size", "resample", "merge_tokens", "tta"))


def _trained(configure: Configure, words: Sequence[str], quiet: bool, resume: bool) -> Training:
    started = time.monotonic()  # a budget counts from the call
    config, given, _ = configure(words)
    if config.tune.source is None:  # in a fine-tuning a source that is not there is told first
        from vitreous.data.sources.opening import find_source

        find_source(config.data.source)
    from rich.console import Console

    from vitreous.cli.output.notebook import NotebookView, in_notebook
    from vitreous.train.console import View
    from vitreous.train.run import run

    view = View(Console(quiet=True, force_terminal=False)) if quiet else NotebookView() if in_notebook() else None
    return Training(run(config, keep=given, started=started, view=view, resume=resume))


def _words(options: Mapping[str, Any]) -> list[str]:
    """Options as the words of a command."""
    words = []
    for name, value in _flat(options):
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
            raise UsageError(f"'{visible(name)}' is no name of an option: write optim.lr for a field of a group")
        if (plain := name.replace("-", "_")) in _ELSEWHERE:
            raise UsageError(f"there is no option '{plain}' in Python: {_ELSEWHERE[plain]}")
        words.append(f"--{name}={_word(value)}")
    return words


def _flat(options: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """The options of groups by their full names."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", value


def _word(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    plain: Callable[[], Any] | None = getattr(value, "item", None)  # a scalar of NumPy or PyTorch
    try:
        return json.dumps(list(value) if isinstance(value, tuple) else plain() if plain else value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{visible(repr(value))} is no value of an option: give text, numbers or a list") from error
