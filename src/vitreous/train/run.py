"""The story of a run: resolve data and model, say what will happen, fit, select, calibrate, test once, save, report.

A fine-tuning is the same story with two sentences more: what frozen features are worth, and whether it did better.

Each chapter is a function below, in the order in which :func:`run` tells it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning

from vitreous.errors import TrainingError
from vitreous.evaluate.calibration import fit_temperature
from vitreous.evaluate.metrics import Scores, evaluate
from vitreous.train.callbacks import Checkpoint, Interrupted, Record, Selection, Stop
from vitreous.train.clock import Budget, Clock, Steps
from vitreous.train.config import RunConfig, parse_duration
from vitreous.train.console import View
from vitreous.train.finite import NonFiniteStepError
from vitreous.train.first_probe import Probed, Verdict, judge, probe_first
from vitreous.train.fit import build_trainer, make_loggers, quiet
from vitreous.train.folder import make_folder, recipe_text, write_text
from vitreous.train.module import VitModule
from vitreous.train.outcome import Scored, Selected, Writer, report_seconds
from vitreous.train.prepare import Prepared, describe_model, describe_place, fitting_threads, prepare
from vitreous.train.tuning import class_weights

__all__ = ["RunResult", "run", "show_batch"]

_LEAVING_PER_LOADING = 0.35  # time in which Python lets go of the libraries over that in which it loads them, measured


@dataclass(frozen=True)
class RunResult:
    """What a run left.

    Attributes:
        folder: Of the run.
        model: The model file in it.
        epochs: Epochs that were trained, the last one perhaps in part.
        selected_epoch: Whose weights are saved, counted from 1.
        val: Scores of those weights on the validation split; None when interrupted before the first validation.
        test: Scores on the test split; None without one, or when interrupted.
        seconds: Wall-clock time by phase.
        interrupted: Whether Ctrl-C ended the training.
        probed: What frozen features were worth, in a fine-tuning that probed first.
    """

    folder: Path
    model: Path
    epochs: int
    selected_epoch: int | None
    val: Scores | None
    test: Scores | None
    seconds: dict[str, float]
    interrupted: bool = False
    probed: Probed | None = None


@dataclass
class _Run:
    """What the chapters hand on."""

    ready: Prepared
    view: View
    writer: Writer
    module: VitModule
    trainer: lightning.Trainer
    stop: Stop
    record: Record
    selection: Selection
    seconds: dict[str, float] = field(default_factory=dict)
    probed: Probed | None = None


def run(
    config: RunConfig, *, keep: Collection[str] = (), started: float | None = None, view: View | None = None
) -> RunResult:
    """Train a classifier from labelled pictures to a model file and a report.

    Args:
        config: What to do. The number of classes and of channels is taken from the data.
        keep: Fields of the model, such as `num_classes`, that are not to be taken from the data or the source but
            checked, and of the evaluation pipeline, such as `preprocess.mean`, that are not to be the source's.
        started: When the command started, in the seconds of ``time.monotonic()``; a budget counts from there.
        view: Where the lines for people go; None means stdout.

    Raises:
        VitreousError: Whatever is wrong with the configuration, the data or the disk, in one line.
        NonFiniteError: If the loss or a gradient is not finite any more; the message names the files left behind.
    """
    started = time.monotonic() if started is None else started
    leaving = _LEAVING_PER_LOADING * (time.monotonic() - started)
    view = view or View()
    with quiet():
        ready = prepare(config, keep, view)
        folder = _open_folder(ready, view)
        _say(ready, view)
        this = _set_up(ready, folder, view, started, leaving)
        _probe(this)
        if not _fit(this):
            return _leave(this)
        selected = _select(this)
        temperature = fit_temperature(selected.logits, selected.labels)
        tested = _test_once(this)
        this.writer.model(selected, temperature, tested)
        verdict = _judge(this, selected)
        tuned = _told_of_tuning(this, verdict)
        this.writer.report(
            selected, temperature, tested, history=this.record.history, seconds=this.seconds, finetune=tuned
        )
        return _conclude(this, selected, tested, verdict)


def show_batch(config: RunConfig, path: Path, *, keep: Collection[str] = (), view: View | None = None) -> None:
    """Draw the first augmented batch of a run, with its targets, and train nothing.

    Args:
        config: As of :func:`run`.
        path: The PNG to write.
        keep: As of :func:`run`.
        view: As of :func:`run`.
    """
    from vitreous.train.batch_picture import save_batch_picture  # here: matplotlib takes a second that a run may need

    view = view or View()
    with quiet():
        ready = prepare(config, keep, view)
        ready.loading.setup("fit")
        batch = next(iter(ready.loading.train_dataloader()))
        images, targets = ready.loading.batch_augment.of_batch(batch, progress=0.0)
        save_batch_picture(path, images, targets, ready.data.classes, ready.pipeline)
    view.result(f"{len(images)} augmented pictures of {ready.data.name}, the first of them drawn in {path}")


def _open_folder(ready: Prepared, view: View) -> Path:
    """Make the run's folder, write the recipe into it, and say what was found."""
    data = ready.data
    folder = make_folder(ready.config.out, data.name)
    write_text(folder / "recipe.yaml", recipe_text(ready.config))
    view.data(data.name, data.counts())
    if data.unreadable:
        listed = folder / "unreadable.txt"
        write_text(listed, "".join(f"{path}: {reason}\n" for path, reason in data.unreadable))
        view.unreadable(data.unreadable, listed)
    return folder


def _say(ready: Prepared, view: View) -> None:
    """Say how the data is split and what the model is."""
    for note in ready.data.notes:
        label, _, text = note.rpartition("split: ")
        view.line("split" if not label and text != note else "note", text)
    view.line("model", describe_model(ready.config.model, ready.cost))
    if ready.start is not None:
        view.line("from", ready.start.describe(ready.config.model))
        counts = [sum(p.numel() for p in ready.model.parameters() if p.requires_grad), ready.cost.parameters]
        trained, of_all = (f"{count / 1e6:.3g} M" for count in counts)
        view.line("tune", f"{ready.config.tune.mode}: {trained} parameters in training, the model has {of_all}")


def _set_up(ready: Prepared, folder: Path, view: View, started: float, leaving: float) -> _Run:
    """Build what trains: the module, the callbacks, the Trainer."""
    config, splits = ready.config, ready.data.splits
    per_epoch = ready.loading.steps_per_epoch
    clock: Clock = Steps(config.steps or config.epochs * per_epoch)
    epochs: int | None = config.epochs if config.steps is None else -(-config.steps // per_epoch)
    planned = f"{config.steps:,} steps" if config.steps else f"{config.epochs} epochs"
    if config.budget is not None:
        reserve = leaving + report_seconds(len(ready.data.classes))
        clock = Budget(started, parse_duration(config.budget), reserve)
        epochs, planned = None, f"as many epochs as fit into {config.budget}"
    with view.counting("decoding") as count:
        ready.loading.progress = count
        ready.loading.setup("fit")
    writer = Writer(ready, folder)
    module = VitModule(
        ready.model,
        config.optim,
        ready.loading.batch_augment,
        ready.pipeline,
        accumulate=ready.loading.plans.parts,
        ema=config.ema,
        class_weights=class_weights(splits["train"].labels, len(ready.data.classes), config.class_weights),
        progress=clock.progress,
    )
    if config.compile:
        ready.model.compile()
    stop = Stop(clock, test_share=len(splits.get("test", ())) / len(splits["val"]), precision=ready.precision)

    def announce(speed: float, left: float) -> None:
        view.machine(describe_place(ready.device, ready.precision), speed, planned, left)

    record = Record(folder, view, clock, epochs, announce)
    selection = Selection(config.select, config.patience, writer.keep)
    callbacks = [stop, record, selection, Checkpoint(folder / "last.ckpt")]
    loggers = make_loggers(config.loggers, folder)
    trainer = build_trainer(folder, ready.device, ready.precision, callbacks, loggers)
    return _Run(ready, view, writer, module, trainer, stop, record, selection)


def _probe(this: _Run) -> None:
    """In a fine-tuning, say what the frozen features are worth before anything is trained."""
    if this.ready.start is None or not this.ready.config.tune.probe:
        return
    this.probed = probe_first(this.ready, this.view)
    this.seconds["probe"] = this.probed.seconds
    this.view.line("probe", this.probed.describe())


def _fit(this: _Run) -> bool:
    """Train; False when Ctrl-C ended it."""
    began = time.monotonic()
    try:
        with this.stop.on_ctrl_c(), fitting_threads(this.ready):
            this.trainer.fit(this.module, datamodule=this.ready.loading)
    except Interrupted:
        return False
    except NonFiniteStepError as error:
        raise this.writer.nonfinite(error) from error
    except RuntimeError:  # workers that got the Ctrl-C too, and died before their batch came
        if not this.stop.asked:
            raise
        return False
    finally:
        this.view.stop_bar()
        this.seconds["train"] = time.monotonic() - began
    return True


def _select(this: _Run) -> Selected:
    """Take the weights of the best epoch, and score them anew in the precision in which they will be used."""
    selected = this.selection.best
    if selected is None:
        raise TrainingError("training ended before the first validation: give it more epochs or a larger --budget")
    this.module.evaluated.load_state_dict(selected.weights)
    exact = _scored(this, this.ready.loading.val_dataloader())
    selected = replace(selected, scores=exact.scores, logits=exact.logits, labels=exact.labels)
    this.selection.best = selected
    return selected


def _scored(this: _Run, loader: Iterable[Any]) -> Scored:
    """Score the weights as they are on a split, in float32."""
    this.trainer.test(this.module, dataloaders=loader, verbose=False)
    module = this.module
    return Scored(evaluate(module.logits, module.labels), module.logits, module.labels)


def _test_once(this: _Run) -> Scored | None:
    """Score the selected weights on the test split, where there is one; nothing is chosen after this."""
    if "test" not in this.ready.data.splits:
        return None
    began = time.monotonic()
    with fitting_threads(this.ready):
        tested = _scored(this, this.ready.loading.test_dataloader())
    this.seconds["test"] = time.monotonic() - began
    return tested


def _judge(this: _Run, selected: Selected) -> Verdict | None:
    """Compare a fine-tuning with its probes."""
    if this.ready.start is None or this.probed is None:
        return None
    return judge(this.ready, this.ready.start, this.probed, selected, this.record.history)


def _told_of_tuning(this: _Run, verdict: Verdict | None) -> dict[str, Any] | None:
    """What the report says of a fine-tuning besides its scores."""
    ready, probed = this.ready, this.probed
    if ready.start is None:
        return None
    return {
        "source": ready.start.to_dict(),
        "mode": ready.config.tune.mode,
        "trained_parameters": sum(p.numel() for p in ready.model.parameters() if p.requires_grad),
        "probe": probed.report.to_dict() if probed else None,
        "verdict": asdict(verdict) if verdict else None,
    }


def _leave(this: _Run) -> RunResult:
    """After Ctrl-C: save the best weights so far, or the present ones, and say how to go on."""
    best = this.selection.best
    model = this.writer.interrupted(best, this.module.evaluated)
    if best is None:
        this.view.result("interrupted before the first validation: the present weights are saved")
    else:
        this.view.result(f"interrupted: the best weights so far are saved (epoch {best.epoch}, {_scores(best.scores)})")
    this.view.files(this.writer.folder)
    this.view.next(["vitreous", "predict", str(model), this.writer.example()])
    verb = "train" if this.ready.start is None else "finetune"
    again = ["vitreous", verb, "--config", str(this.writer.folder / "recipe.yaml")]
    this.view.line("or again", shlex.join(again))
    return _result(this, None, interrupted=True)


def _conclude(this: _Run, selected: Selected, tested: Scored | None, verdict: Verdict | None) -> RunResult:
    """Say what was reached, where everything is, and what to type next."""
    config = this.ready.config
    chosen = "last" if config.select == "last" else "best"
    early = "; stopped early" if this.selection.stopped_early else ""
    this.view.result(f"val  {_scores(selected.scores)} ({chosen}, epoch {selected.epoch}{early})")
    if tested is not None:
        this.view.result(f"test {_scores(tested.scores)}")
    if verdict is not None:
        this.view.line("verdict", verdict.text)
        for reason in verdict.reasons:
            this.view.line("perhaps", reason)
    this.view.files(this.writer.folder)
    this.view.next(["vitreous", "predict", str(this.writer.folder / "model.safetensors"), this.writer.example()])
    return _result(this, tested)


def _result(this: _Run, tested: Scored | None, interrupted: bool = False) -> RunResult:
    best = this.selection.best
    return RunResult(
        folder=this.writer.folder,
        model=this.writer.folder / "model.safetensors",
        epochs=len(this.record.history),
        selected_epoch=best.epoch if best else None,
        val=best.scores if best else None,
        test=tested.scores if tested else None,
        seconds=this.seconds,
        interrupted=interrupted,
        probed=this.probed,
    )


def _scores(scores: Scores) -> str:
    """The scores that are worth a line."""
    return f"top-1 {100 * scores.top1:.1f} %, macro F1 {scores.macro_f1:.2f}, log loss {scores.log_loss:.2f}"
