"""What differs in a run with several labels: how it is assembled, and how its weights are calibrated and reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from vitreous.evaluate.multilabel.metrics import MultiLabelScores
from vitreous.evaluate.scoring.any_labels import AnyScores
from vitreous.train.advice import few_images
from vitreous.train.assembly import Kit, Session
from vitreous.train.finetune.first_probe import finetune_report
from vitreous.train.finish import RunResult, announce_weights, result_of
from vitreous.train.multilabel.writing import LabelsWriter, ending
from vitreous.train.phases import select_weights, test_once
from vitreous.train.results import SelectedWeights, SplitScores

__all__ = ["KIT", "finish", "write_results"]


def finish(session: Session) -> RunResult:
    """Select weights, fit calibration and thresholds on val, test once, save and report."""
    session.run_dir.lock.record(phase="selecting")
    selected, training_scores = select_weights(session)
    session.run_dir.lock.record(phase="testing")
    return write_results(session, selected, test_once(session), training_scores)


def write_results(
    session: Session,
    selected: SelectedWeights,
    tested: SplitScores | None,
    training_scores: AnyScores,
    *,
    finetune: Mapping[str, Any] | None = None,
    origin: str | None = None,
) -> RunResult:
    """Fit calibration and thresholds, write the model and the report, and print the result.

    `finetune` is that section of report.json, and `origin` the stage of the weights, where there were stages.
    """
    finetune = finetune or finetune_report(session.setup, None, None)
    writer, setup = cast(LabelsWriter, session.writer), session.setup
    session.run_dir.lock.record(phase="writing the report")
    scored = writer.fit(selected, tested)
    writer.save_model(selected, 1.0, tested)
    example = writer.example_image()
    writer.write_labels_report(
        scored,
        selected,
        training_scores,
        history=session.metrics.history,
        seconds=session.seconds,
        finetune=finetune,
    )
    view, folder = session.view, session.run_dir.path
    announce_weights(session, selected, scored.val, origin)
    if scored.test is not None:
        view.result(f"test {scored.test.describe()}")
    plain = cast(MultiLabelScores, selected.scores)
    view.result(
        f"     macro F1 {scored.val.macro_f1:.2f} with the thresholds of the other half of val, {plain.macro_f1:.2f} "
        f"with 0.5; calibration: {scored.rule.calibration}"
    )
    if setup.precision != "float32" and training_scores is not selected.scores:
        view.result(f"     in float32; in {setup.precision}, while training: {training_scores.describe()}")
    view.advice([*few_images(setup, scored.val.mean_ap)])
    view.files(folder)
    view.next(["vitreous", "predict", str(folder / "model.safetensors"), example])
    return result_of(session, selected, scored.val, scored.test)


KIT = Kit(writer=LabelsWriter, ending=ending)
"""What a run on images with several labels does differently."""
