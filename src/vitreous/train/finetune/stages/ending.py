"""How a run in stages ends: the best model is tested once, saved and reported."""

from __future__ import annotations

from typing import Any

from vitreous.errors import TrainingError, pluralize
from vitreous.evaluate.trust.calibration import choose_temperature
from vitreous.train.assembly import Session
from vitreous.train.finetune.first_probe import finetune_report
from vitreous.train.finetune.stages.outcome import Outcome
from vitreous.train.finetune.stages.staging import Staging, selected_weights, variant
from vitreous.train.finetune.stages.writers import writer_of
from vitreous.train.finish import RunResult, announce_result
from vitreous.train.loop.progress import Steps
from vitreous.train.multilabel.run import write_results as write_labels_results
from vitreous.train.phases import test_once
from vitreous.train.resume.saving import Saver
from vitreous.train.resume.state import identity

__all__ = ["finish"]


def finish(staging: Staging) -> RunResult:
    """Test the best model, and write the model file and the report."""
    best = staging.best
    if best is None or best.candidate is None:
        raise TrainingError("no stage found a model: give it a larger --budget")
    run_dir, setup = staging.run_dir, variant(staging.setup, best.candidate)
    selected = selected_weights(staging.setup, best.candidate)
    writer = writer_of(setup)(setup, run_dir.path, (), staging.map_seconds)
    saver = Saver(run_dir.path, run_dir.lock)
    session = Session(setup, run_dir, staging.view, staging.signals, writer, saver, Steps(1), identity(setup))
    session.rebuild(None)
    session.seconds, session.metrics.history = staging.seconds, [dict(row) for row in best.history]
    session.module.eval_model.load_state_dict(selected.weights)
    if staging.setup.distiller is not None and setup.distiller is None:
        staging.view.line("note", "the teacher has no part in this model: heads alone are fitted without it")
    run_dir.lock.record(phase="testing")
    tested = test_once(session)

    if setup.data.several:
        _say_if_neighbours_win(staging, best)
        return write_labels_results(
            session, selected, tested, selected.scores, finetune=_section(staging, best), origin=best.stage
        )
    run_dir.lock.record(phase="writing the report")
    if staging.budget is not None:  # the class maps take what is left, or give what is missing
        writer.map_seconds = max(0.0, staging.map_seconds + staging.budget - staging.used - staging.reporting)
    temperature = choose_temperature(selected.logits, selected.labels)
    writer.save_model(selected, temperature, tested)
    example = writer.example_image()
    training = next((row for row in best.history if row["epoch"] == best.candidate.epoch), {})
    in_training = {name.removeprefix("val_"): value for name, value in training.items() if name.startswith("val_")}
    report = writer.write_report(
        selected,
        temperature,
        tested,
        history=best.history,
        seconds=staging.seconds,
        training_summary=in_training or selected.scores.summary(),
        finetune=_section(staging, best),
    )
    _say_if_neighbours_win(staging, best)
    return announce_result(
        session, selected, selected.scores, tested, None, report=report, example=example, origin=best.stage
    )


def _say_if_neighbours_win(staging: Staging, best: Outcome) -> None:
    """Print by how much the k nearest neighbours, which are no model, are better than the result."""
    neighbours, why = staging.done("k-NN"), "it needs the features of all training images, which no model file holds"
    if neighbours is None:
        return
    if (more := (neighbours.correct or 0) - (best.correct or 0)) > 0:
        staging.view.line("note", f"k-NN is right on {pluralize(more, 'validation image')} more, but {why}")
    elif neighbours.mean_ap and best.mean_ap and (points := 100 * (neighbours.mean_ap[0] - best.mean_ap[0])) >= 0.05:
        staging.view.line("note", f"k-NN has {points:.1f} points of mAP more, but {why}")


def _section(staging: Staging, best: Outcome) -> dict[str, Any]:
    """Return the section of report.json on fine-tuning."""
    return {
        **(finetune_report(staging.setup, None, None) or {}),
        "trained_parameters": best.trained,
        "chosen": best.stage,
        "stages": [outcome.to_dict(best.stage) for outcome in staging.outcomes],
    }
