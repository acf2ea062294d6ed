"""How a run ends, and what it says then: at its end, by a signal, or because it had ended before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.evaluate.metrics import Scores
from vitreous.runs.folder import Place
from vitreous.runs.folder_content import read_report
from vitreous.train.advice import closing_advice
from vitreous.train.assembly import Assembled
from vitreous.train.console import View
from vitreous.train.finetune.first_probe import Probed, Verdict
from vitreous.train.results import Scored, Selected
from vitreous.train.resume.saving import LAST
from vitreous.train.resume.signals import Stopped
from vitreous.train.setup import Prepared

__all__ = ["Closing", "RunResult", "again", "closing_words", "conclude", "leave", "leave_at_once", "say_finished"]


@dataclass(frozen=True)
class RunResult:
    """What a run left.

    Attributes:
        folder: Of the run.
        model: The model file in it.
        epochs: Epochs that were trained, the last one perhaps in part.
        selected_epoch: Whose weights are saved, counted from 1.
        val: Scores of those weights on the validation split; None when interrupted before the first validation, and
            for a run that had been finished before.
        test: Scores on the test split; None without one, when interrupted, or when finished before.
        seconds: Wall-clock time by phase.
        exit_code: 0; 130 after Ctrl-C, 143 after SIGTERM.
        probed: What frozen features were worth, in a fine-tuning that probed first.
    """

    folder: Path
    model: Path
    epochs: int
    selected_epoch: int | None
    val: Scores | None
    test: Scores | None
    seconds: dict[str, float]
    exit_code: int = 0
    probed: Probed | None = None

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run."""
        return self.exit_code != 0

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values, with what report.json holds, or None where the run did not come to it."""
        report = read_report(self.folder) if not self.interrupted else None
        scores = {name: own.to_dict() for name, own in (("val", self.val), ("test", self.test)) if own is not None}
        return {
            "folder": str(self.folder),
            "model": str(self.model),
            "exit_code": self.exit_code,
            "epochs": self.epochs,
            "selected_epoch": self.selected_epoch,
            "scores": {"val": None, "test": None} | (report or {}).get("scores", {}) | scores,
            "seconds": dict(self.seconds),
            "report": report,
        }


@dataclass(frozen=True)
class Closing:
    """What is said at the end besides scores and files.

    Attributes:
        scores: Lines below the scores on validation and test.
        advice: Sentences, and commands as lists of words.
    """

    scores: Sequence[str] = ()
    advice: Sequence[str | list[str]] = ()


def again(ready: Prepared, folder: Path) -> str:
    """The command that goes on with a run, as it can be typed."""
    verb = "train" if ready.start is None else "finetune"
    return shlex.join(["vitreous", verb, "--config", str(folder / "recipe.yaml"), "--out", str(folder), "--resume"])


def leave(ready: Prepared, place: Place, view: View, this: Assembled | None, stopped: Stopped) -> RunResult:
    """After a signal: save a model of the best weights so far, or of the present ones, and say how to go on."""
    folder = place.folder
    model = folder / "model.safetensors"
    best = None
    if this is None:
        view.result(f"{stopped} before the training began")
    elif this.trained:
        best = this.selection.best
        view.result(f"{stopped} after the training, which is saved")
    else:
        best = this.selection.best
        this.writer.interrupted(best, this.module.evaluated)
        kept = (
            "the present weights"
            if best is None
            else f"the best weights so far (epoch {best.epoch}, {_scores(best.scores)}, in {ready.precision})"
        )
        view.result(f"{stopped}: {kept} are in {model}, what a resume needs is in {folder / LAST}")
        view.files(folder)
        view.next(["vitreous", "predict", str(model), this.writer.example()])
    view.line("go on", again(ready, folder), whole=True)
    return RunResult(
        folder=folder,
        model=model,
        epochs=len(this.record.history) if this else 0,
        selected_epoch=best.epoch if best else None,
        val=best.scores if best else None,
        test=None,
        seconds=this.seconds if this else {},
        exit_code=stopped.exit_code,
        probed=this.probed if this else None,
    )


def leave_at_once(ready: Prepared, place: Place, view: View, this: Assembled | None) -> None:
    """After a second Ctrl-C: say what is kept, which nothing is added to, and how to go on."""
    saved = this.saver.saved if this is not None else None
    kept = f"{place.folder} has what a resume needs of {saved}" if saved else "nothing was saved before"
    view.result(f"interrupted twice, so nothing more is saved: {kept}")
    view.line("go on", again(ready, place.folder), whole=True)


def conclude(
    this: Assembled,
    selected: Selected,
    tested: Scored | None,
    verdict: Verdict | None,
    *,
    example: str,
    closing: Closing,
) -> RunResult:
    """Say what was reached, where everything is, and what to type next."""
    config, folder = this.ready.config, this.place.folder
    chosen = "last" if config.select == "last" else "best"
    early = "; stopped early" if this.selection.stopped_early else ""
    this.view.result(f"val  {_scores(selected.scores)} ({chosen}, epoch {selected.epoch}{early})")
    if tested is not None:
        this.view.result(f"test {_scores(tested.scores)}")
    for text in closing.scores:
        this.view.result(f"     {text}")
    if verdict is not None:
        this.view.line("verdict", verdict.text)
        for reason in verdict.reasons:
            this.view.line("perhaps", reason)
    this.view.advice(closing.advice)
    this.view.files(folder)
    this.view.next(["vitreous", "predict", str(folder / "model.safetensors"), example])
    return RunResult(
        folder=folder,
        model=folder / "model.safetensors",
        epochs=len(this.record.history),
        selected_epoch=selected.epoch,
        val=selected.scores,
        test=tested.scores if tested else None,
        seconds=this.seconds,
        probed=this.probed,
    )


def closing_words(this: Assembled, selected: Selected, while_training: Scores, report: Mapping[str, Any]) -> Closing:
    """What is said beside the scores: their precision, whether probabilities hold, and what may do better.

    Args:
        this: The run.
        selected: Its weights, with their scores in float32.
        while_training: Scores of the same epoch as the training computed them.
        report: What report.json holds.
    """
    said = []
    if this.ready.precision != "float32":
        said.append(
            f"in float32; in {this.ready.precision}, while training: top-1 {100 * while_training.top1:.1f} %, "
            f"macro F1 {while_training.macro_f1:.2f}"
        )
    found = report["calibration"]
    where = "on halves of val, each at the temperature that fits the other" if found["cross_fitted"] else "on test"
    if found["temperature"] == 1:
        said.append(
            f"calibration error (ECE) {100 * found['ece_before']:.1f} points on {found['measured_on']}; no temperature "
            "is saved: one that fits half of val does not lower the log loss of the other half"
        )
    else:
        said.append(
            f"calibration error (ECE) {100 * found['ece_after']:.1f} points, {100 * found['ece_before']:.1f} without "
            f"the temperature {found['temperature']:.2f}, which is fitted on val; measured {where}"
        )
    return Closing(said, list(closing_advice(this.ready, this.place.folder, selected.scores)))


def say_finished(folder: Path, view: View) -> RunResult:
    """Say that there is nothing left to do; nothing is changed."""
    training = (read_report(folder) or {}).get("training", {})
    view.line("resume", f"{folder} is finished: nothing is left to do")
    view.files(folder)
    return RunResult(
        folder=folder,
        model=folder / "model.safetensors",
        epochs=training.get("epochs", 0),
        selected_epoch=training.get("selected_epoch"),
        val=None,
        test=None,
        seconds=training.get("seconds", {}),
    )


def _scores(scores: Scores) -> str:
    """The scores that are worth a line."""
    return f"top-1 {100 * scores.top1:.1f} %, macro F1 {scores.macro_f1:.2f}, log loss {scores.log_loss:.2f}"
