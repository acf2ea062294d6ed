"""What differs in a run with several labels: how it is assembled, and how its weights are calibrated and reported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from vitreous.evaluate.multilabel.metrics import MultiLabelScores
from vitreous.train.assembly import Kit, Session, make_module
from vitreous.train.finish import RunResult, announce_weights, result_of
from vitreous.train.multilabel.module import LabelsModule
from vitreous.train.multilabel.writing import LabelsWriter
from vitreous.train.phases import select_weights, test_once
from vitreous.train.setup import Setup

__all__ = ["KIT", "finish"]

_ENDING = 6.0  # seconds that the report and the exit of the program take on a slow machine
_PER_PAIR = 4e-6  # seconds that the report takes for each pair of a validation image and a label


def finish(session: Session) -> RunResult:
    """Select weights, fit calibration and thresholds on val, test once, save and report."""
    lock, writer, setup = session.run_dir.lock, cast(LabelsWriter, session.writer), session.setup
    lock.record(phase="selecting")
    selected, training_scores = select_weights(session)
    lock.record(phase="testing")
    tested = test_once(session)
    lock.record(phase="writing the report")
    scored = writer.fit(selected, tested)
    writer.save_model(selected, 1.0, tested)
    example = writer.example_image()
    writer.write_labels_report(scored, selected, training_scores, session.metrics.history, session.seconds)
    view, folder = session.view, session.run_dir.path
    announce_weights(session, selected, scored.val)
    if scored.test is not None:
        view.result(f"test {scored.test.describe()}")
    plain = cast(MultiLabelScores, selected.scores)
    view.result(
        f"     macro F1 {scored.val.macro_f1:.2f} with the thresholds of the other half of val, {plain.macro_f1:.2f} "
        f"with 0.5; calibration: {scored.rule.calibration}"
    )
    if setup.precision != "float32" and training_scores is not selected.scores:
        view.result(f"     in float32; in {setup.precision}, while training: {training_scores.describe()}")
    view.files(folder)
    view.next(["vitreous", "predict", str(folder / "model.safetensors"), example])
    return result_of(session, selected, scored.val, scored.test)


def _make_module(setup: Setup, progress: Callable[[int], float]) -> LabelsModule:
    build = partial(LabelsModule, labels=setup.config.labels)
    return cast(LabelsModule, make_module(setup, progress, build))


def _ending(setup: Setup, budget: float) -> tuple[float, float]:
    pairs = len(setup.data.splits["val"]) * len(setup.data.classes)
    return 0.0, _ENDING + _PER_PAIR * pairs


KIT = Kit(module=_make_module, writer=LabelsWriter, ending=_ending)
"""What a run on images with several labels does differently."""
