"""How a run ends and what it prints then: after training, after a signal, or because it had finished before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vitreous.errors import CheckpointError
from vitreous.evaluate.scoring.any_labels import AnyScores
from vitreous.evaluate.scoring.metrics import Scores
from vitreous.runs.folder import RunDir
from vitreous.runs.folder_content import read_report
from vitreous.train.advice import closing_advice
from vitreous.train.console import Display
from vitreous.train.finetune.first_probe import ProbeResult, Verdict
from vitreous.train.results import SelectedWeights, SplitScores
from vitreous.train.resume.saving import LAST
from vitreous.train.resume.signals import Stopped
from vitreous.train.setup import Setup

if TYPE_CHECKING:
    from vitreous.train.assembly import Session

__all__ = [
    "RunResult",
    "announce_finished",
    "announce_result",
    "announce_weights",
    "end_interrupted",
    "result_of",
    "resume_command",
]


@dataclass(frozen=True)
class RunResult:
    """The result of a run; scores are None if the run did not compute them, or had finished before."""

    folder: Path
    model: Path  # the model file in the folder
    epochs: int  # including a last, incomplete one
    seconds: dict[str, float]  # wall-clock time by phase
    selected_epoch: int | None = None  # epoch of the saved weights, counted from 1
    val: AnyScores | None = None
    test: AnyScores | None = None
    exit_code: int = 0  # 130 after Ctrl-C, 143 after SIGTERM
    probe: ProbeResult | None = None  # scores of the frozen features, in fine-tuning

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run."""
        return self.exit_code != 0

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, including report.json; None stands for what the run did not reach."""
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


def resume_command(setup: Setup, folder: Path) -> str:
    """Return the command that resumes a run, quoted for a shell."""
    return shlex.join(
        ["vitreous", setup.config.verb, "--config", str(folder / "recipe.yaml"), "--out", str(folder), "--resume"]
    )


def announce_result(
    session: Session,
    selected: SelectedWeights,
    training_scores: AnyScores,
    tested: SplitScores | None,
    verdict: Verdict | None,
    *,
    report: Mapping[str, Any],
    example: str,
    origin: str | None = None,
) -> RunResult:
    """Print the scores, the files and the next command of a finished run.

    Scores of `selected` were computed in float32, `training_scores` of the same epoch during training. `report` is the
    content of report.json, `example` the path of an image to predict. `origin` is the stage of the weights, if there
    were several.
    """
    setup, view, folder = session.setup, session.view, session.run_dir.path
    announce_weights(session, selected, selected.scores, origin)
    if tested is not None:
        view.result(f"test {tested.scores.describe()}")
    if setup.precision != "float32" and training_scores is not selected.scores:
        before = cast(Scores, training_scores)
        view.result(
            f"     in float32; in {setup.precision}, while training: top-1 {100 * before.top1:.1f} %, "
            f"macro F1 {before.macro_f1:.2f}"
        )
    view.result(f"     {_calibration(report['calibration'])}")
    if verdict is not None:
        view.line("verdict", verdict.text)
        for reason in verdict.reasons:
            view.line("perhaps", reason)
    view.advice(list(closing_advice(setup, folder, selected.class_scores)))
    view.files(folder)
    view.next(["vitreous", "predict", str(folder / "model.safetensors"), example])
    return result_of(session, selected, selected.scores, tested.scores if tested else None)


def announce_weights(session: Session, selected: SelectedWeights, scores: AnyScores, origin: str | None = None) -> None:
    """Print the validation scores of the selected weights, and where they are from."""
    chosen = "last" if session.setup.config.select == "last" else "best"
    early = "; stopped early" if session.selection.stopped_early else ""
    session.view.result(f"val  {scores.describe()} ({origin or f'{chosen}, epoch {selected.epoch}{early}'})")


def result_of(session: Session, selected: SelectedWeights, val: AnyScores, test: AnyScores | None) -> RunResult:
    """Return the result of a finished run."""
    return RunResult(
        folder=session.run_dir.path,
        model=session.run_dir.path / "model.safetensors",
        epochs=len(session.metrics.history),
        selected_epoch=selected.epoch or None,
        val=val,
        test=test,
        seconds=session.seconds,
        probe=session.probe,
    )


def _calibration(found: Mapping[str, Any]) -> str:
    if found["temperature"] == 1:
        return (
            f"calibration error (ECE) {100 * found['ece_before']:.1f} points on {found['measured_on']}; no temperature "
            "is saved: one fitted on half of val does not lower the log loss of the other half"
        )
    where = "on halves of val, each with the temperature fitted on the other" if found["cross_fitted"] else "on test"
    return (
        f"calibration error (ECE) {100 * found['ece_after']:.1f} points, {100 * found['ece_before']:.1f} without "
        f"the temperature {found['temperature']:.3g}, which is fitted on val; measured {where}"
    )


def announce_finished(folder: Path, fingerprint: str, view: Display) -> RunResult:
    """Print that a run to be resumed has finished already; nothing changes.

    Raises:
        CheckpointError: If it was on other images than those of this fingerprint.
    """
    report = read_report(folder) or {}
    if report.get("data", {}).get("fingerprint", fingerprint) != fingerprint:
        raise CheckpointError(
            f"{folder} is a finished run on other images or labels: give the data that it was trained on, or another "
            "--out"
        )
    training = report.get("training", {})
    view.line("resume", f"{folder} is finished: nothing is left to do")
    view.files(folder)
    return RunResult(
        folder=folder,
        model=folder / "model.safetensors",
        epochs=training.get("epochs", 0),
        seconds=training.get("seconds", {}),
        selected_epoch=training.get("selected_epoch"),
    )


def end_interrupted(
    setup: Setup, run_dir: RunDir, view: Display, session: Session | None, stopped: Stopped
) -> RunResult:
    """End a run after a signal: save the best weights so far, and print how to resume; at a second Ctrl-C re-raise.

    `session` is None if the signal came before the run was assembled.
    """
    try:
        if stopped.at_once:
            raise stopped
        return _save_interrupted(setup, run_dir, view, session, stopped)
    except Stopped:
        saved = session.saver.saved if session is not None else None
        kept = f"{run_dir.path} has a checkpoint of {saved}" if saved else "there is no checkpoint yet"
        view.result(f"interrupted twice, so nothing more is saved: {kept}")
        _say_how_to_continue(setup, run_dir.path, view)
        raise


def _say_how_to_continue(setup: Setup, folder: Path, view: Display) -> None:
    begun = (folder / "recipe.yaml").is_file()
    view.line(
        "continue", resume_command(setup, folder) if begun else "with the same command: nothing is saved", whole=True
    )


def _save_interrupted(
    setup: Setup, run_dir: RunDir, view: Display, session: Session | None, stopped: Stopped
) -> RunResult:
    folder, model = run_dir.path, run_dir.path / "model.safetensors"
    best = session.selection.best if session is not None else None
    if session is None:
        view.result(f"{stopped} before the training began")
    elif session.trained:
        view.result(f"{stopped} after the training, which is saved")
    else:
        session.writer.save_interrupted(best, session.module.eval_model)
        kept = "the current weights"
        if best is not None:
            kept = f"the best weights so far (epoch {best.epoch}, {best.scores.describe()}, in {setup.precision})"
        view.result(f"{stopped}: {kept} are in {model}, the checkpoint to resume from is {folder / LAST}")
        view.files(folder)
        view.next(session.writer.next_command())
    _say_how_to_continue(setup, folder, view)
    return RunResult(
        folder=folder,
        model=model,
        epochs=len(session.metrics.history) if session else 0,
        seconds=session.seconds if session else {},
        selected_epoch=best.epoch if best else None,
        val=best.scores if best else None,
        exit_code=stopped.exit_code,
        probe=session.probe if session else None,
    )
