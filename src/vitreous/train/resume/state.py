"""The state that a run saves in order to resume. Everything that is saved is a field of :class:`RunState`.

A resumed run ends with exactly the same bits as an uninterrupted one. No random generator is saved, because the order
of the images and all random numbers are functions of (seed, epoch, step). A state is captured only between optimiser
steps. To resume within an epoch, the Trainer loads the last batch of the last step again without computing anything.
Whatever follows a step, such as the clock or a validation, then happens as it would have without the interruption.
"""

from __future__ import annotations

import contextlib
import hashlib
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from vitreous.errors import CheckpointError, VitreousError
from vitreous.evaluate.scoring.any_labels import scores_of
from vitreous.runs.folder import changed_settings, only_adds_epochs
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import SelectedWeights
from vitreous.train.setup import Setup

if TYPE_CHECKING:  # fine-tuning in stages resumes before it needs them
    import lightning

    from vitreous.train.loop.module import VitModule

__all__ = [
    "RunState",
    "check_identity",
    "check_position",
    "identity",
    "load_optimizer",
    "optimizer_state",
    "report_mismatch",
    "restore_module",
    "restore_trainer",
    "selection_state",
    "with_more_epochs",
]


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything that a run needs to resume."""

    identity: dict[str, str]  # settings, data, device and precision, which the resumed run must share
    epoch: int  # counted from 0
    step: int  # number of completed optimiser steps in this epoch
    trained: bool  # whether training is complete
    parts: int  # micro-batches per step: `accumulate`, or more after an out-of-memory error
    model: dict[str, Tensor]  # state dict of the model in training, with batch norm's statistics
    average: dict[str, Tensor] | None  # state dict of the moving average, if the run has one
    optimizer: dict[str, Any]  # the state of each parameter and the learning rate of each group
    loss_sum: Tensor  # sum of the losses of all images in this epoch so far
    images_seen: int  # number of these images
    best: dict[str, Any] | None  # the selected weights and their validation logits; None before the first validation
    risen: int  # epoch, counted from 1, that first reached the best score; patience counts from here
    stopped_early: bool  # whether patience ended training
    history: list[dict[str, float]]  # the rows of metrics.csv
    clock: dict[str, float]  # the time used so far, in a run with a budget
    seconds: dict[str, float]  # wall-clock time by phase
    start: dict[str, float]  # measures before the first step, in pretraining from a model
    probed: dict[str, Any] | None  # the linear probe of the frozen features, if fine-tuning began with one
    distil: dict[str, Any] | None  # the projection of a distillation, and the digest of the teacher's answers
    auxiliary: dict[str, Any] | None  # the decoder of a second task, and the terms of its loss in the epoch
    threads: int  # number of CPU threads, on which the rounding of sums depends
    extended: list[int]  # numbers of epochs after which the run had finished before it was extended

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, without copying their values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, content: Any) -> RunState:
        """Build a state from the content of a file. Files may be untrusted, so values that no run writes are errors."""
        names = {field.name for field in fields(cls)}
        if isinstance(content, dict):  # states of earlier versions lack what their runs could not have
            content = {"distil": None, "auxiliary": None, "start": {}, **content}
        if not isinstance(content, dict) or content.keys() != names:
            wrong = sorted(names.symmetric_difference(content if isinstance(content, dict) else ()))
            raise CheckpointError(f"it is from another version of vitreous (fields that differ: {', '.join(wrong)})")
        wrong = [name for name, hint in typing.get_type_hints(cls).items() if not _has_type(content[name], hint)]
        state = cls(**content)
        if wrong := wrong or state._invalid_fields():
            raise CheckpointError(f"it is not the state of a run: invalid {', '.join(wrong)}")
        return state

    def _invalid_fields(self) -> list[str]:
        """Return the names of fields whose values have the right type but are impossible."""
        minimum = {"epoch": 0, "step": 0, "images_seen": 0, "risen": 0, "parts": 1, "threads": 1}
        valid = {name: getattr(self, name) >= least for name, least in minimum.items()} | {
            "clock": _is_numbers(self.clock),
            "seconds": _is_numbers(self.seconds),
            "start": _is_numbers(self.start),
            "history": all(map(_is_numbers, self.history)),
            "loss_sum": self.loss_sum.ndim == 0,
            "extended": all(type(count) is int for count in self.extended),
            "identity": all(isinstance(value, str) for value in self.identity.values()),
        }
        return [name for name, is_valid in valid.items() if not is_valid]

    @property
    def where(self) -> str:
        """The point that the run has reached, in words."""
        if self.trained:
            return f"the end of training, epoch {len(self.history)}"
        return f"epoch {self.epoch + 1}, step {self.step}" if self.step else f"the start of epoch {self.epoch + 1}"

    def selected(self) -> SelectedWeights | None:
        """Return the selected weights with their scores."""
        if self.best is None:
            return None
        logits, labels = self.best["logits"], self.best["labels"]
        return SelectedWeights(scores_of(logits, labels), logits, labels, self.best["epoch"], self.best["weights"])


_COLUMNS = ("epoch", "step", "lr", "train_loss", "images_per_second", "seconds")  # of metrics.csv, besides the scores


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether a value has exactly the annotated type. The content of containers is not checked."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return type(value) in [typing.get_origin(kind) or kind for kind in kinds]


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(type(number) in (int, float) for number in value.values())


def selection_state(selected: SelectedWeights | None) -> dict[str, Any] | None:
    """Return selected weights as :class:`RunState` stores them. Nothing is copied, because they never change."""
    names = ("logits", "labels", "epoch", "weights")
    return None if selected is None else {name: getattr(selected, name) for name in names}


def identity(setup: Setup) -> dict[str, str]:
    """Return what two processes must have in common so that one can resume the run of the other."""
    return {
        "recipe": recipe_text(setup.config),
        "fingerprint": setup.data.fingerprint,
        "order": setup.data.order + _shard_order(setup),
        "device": setup.device.type,
        "precision": setup.precision,
        **({} if setup.distiller is None else {"teacher": setup.distiller.teacher.digest}),
        **({} if setup.data_module.num_beside == 0 else {"unlabelled": _unlabelled_order(setup)}),
        **({} if setup.predicted is None else {"predicted": setup.predicted.added}),
    }


def _unlabelled_order(setup: Setup) -> str:
    """Return a hash of the unlabelled images in their order, and of which of them share a shard."""
    split, beside = setup.data.unlabelled, setup.data_module.train_sampler.beside
    assert split is not None  # where a step has such images
    assert beside is not None
    total = hashlib.blake2b(repr(list(zip(split.names, split.digests, strict=True))).encode(), digest_size=16)
    if beside.window is not None:
        total.update(beside.window.shard_of.tobytes())
    return total.hexdigest()


def _shard_order(setup: Setup) -> str:
    """Return a hash of which images share a shard, where the order of an epoch depends on it."""
    window = setup.data_module.train_sampler.window
    return "" if window is None else hashlib.blake2b(window.shard_of.tobytes(), digest_size=16).hexdigest()


def check_identity(stored: Mapping[str, str], current: Mapping[str, str], source: str) -> None:
    """Raise an error if the :func:`identity` of a state, read from the file `source`, differs from the current one."""
    wrong = changed_settings(stored.get("recipe", ""), current["recipe"])
    for name in ("device", "precision"):
        if stored.get(name) != current[name]:
            wrong.append(f"{name} was {stored.get(name, 'not recorded')}, now {current[name]}")
    if stored.get("teacher") != current.get("teacher"):
        wrong.append("the teacher's weights have changed")
    if stored.get("unlabelled") != current.get("unlabelled"):
        wrong.append("the unlabelled images or their order have changed")
    if stored.get("predicted") != current.get("predicted"):
        wrong.append("the unlabelled images, or the labels that aux.model predicts for them, have changed")
    if stored.get("fingerprint") != current["fingerprint"]:
        wrong.append("the images or their labels have changed")
    elif stored.get("predicted") == current.get("predicted") and stored.get("order") != current["order"]:
        # States of earlier versions lack the order.
        wrong.append("the order of the images or their split has changed")
    if wrong:
        raise CheckpointError(
            f"{source} belongs to a run with different settings: {'; '.join(wrong)}. Use the same settings, or another "
            "--out"
        )


def with_more_epochs(state: RunState, current: Mapping[str, str]) -> RunState:
    """Reopen the state of a finished run if the current :func:`identity` only adds epochs.

    Other states are returned unchanged. The schedule continues at the corresponding point of the longer run, so a
    learning rate that had decayed rises again, and the result differs from that of a run which had this length from the
    start. Patience counts from here.
    """
    if not state.trained or not only_adds_epochs(state.identity.get("recipe", ""), current["recipe"]):
        return state
    done = len(state.history)
    return replace(
        state,
        identity={**state.identity, "recipe": current["recipe"]},
        trained=False,
        stopped_early=False,
        risen=done,
        extended=[*state.extended, done],
    )


def check_position(state: RunState, setup: Setup, score_columns: Collection[str]) -> None:
    """Raise an error if this run could not reach the position or history of a state with a correct checksum."""
    config, per_epoch = setup.config, setup.data_module.steps_per_epoch
    columns = {*_COLUMNS, *score_columns}
    epochs = config.epochs if config.steps is None else -(-config.steps // per_epoch)
    fits = {
        "step": state.step <= per_epoch,
        "epoch": config.budget is not None or state.epoch <= epochs,
        "parts": state.parts <= config.batch_size,
        "history": all(set(_COLUMNS) <= row.keys() <= columns for row in state.history),
    }
    if wrong := ", ".join(name for name, field_fits in fits.items() if not field_fits):
        raise CheckpointError(f"the state does not fit this run ({wrong}): use another --out")


@contextlib.contextmanager
def report_mismatch() -> Iterator[None]:
    """Turn errors that occur while a state is restored, such as a wrong shape, into a CheckpointError."""
    try:
        yield
    except VitreousError:
        raise
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"the state does not fit this run ({reason}): use another --out") from error


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Copy the state of each parameter, by index, and the learning rate of each group to the CPU."""
    stored = optimizer.state_dict()
    return {
        "state": {
            str(index): {name: _cpu_copy(value) for name, value in each.items()}
            for index, each in stored["state"].items()
        },
        "rates": [group["lr"] for group in stored["param_groups"]],
    }


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restore the result of :func:`optimizer_state` into an optimiser with the same parameter groups."""
    stored = optimizer.state_dict()
    stored["state"] = {int(index): dict(each) for index, each in state["state"].items()}
    for group, rate in zip(stored["param_groups"], state["rates"], strict=True):
        group["lr"] = rate
    optimizer.load_state_dict(stored)


def restore_trainer(trainer: lightning.Trainer, epoch: int, batch: int, per_epoch: int, parts: int) -> None:
    """Set the counters of a new Trainer so that training continues at a given batch.

    Lightning offers this only through its own checkpoints, so its loops receive the state that such a checkpoint would
    hold.

    Args:
        trainer: A Trainer that has not trained yet.
        epoch: The current epoch, counted from 0.
        batch: Number of completed batches in this epoch. The last of them is loaded again.
        per_epoch: Number of batches per epoch.
        parts: Number of batches per optimiser step.
    """
    repeated = batch > 0
    before = epoch * per_epoch + batch - repeated
    loops = trainer.fit_loop
    state = loops.state_dict()
    epochs = {"ready": epoch + repeated, "started": epoch + repeated, "processed": epoch, "completed": epoch}
    names = ("ready", "started", "processed", "completed")
    steps = dict.fromkeys(("ready", "completed"), (epoch * per_epoch + batch) // parts)
    for progress, total, current in (
        ("epoch_progress", epochs, epochs),
        ("epoch_loop.batch_progress", dict.fromkeys(names, before), dict.fromkeys(names, max(batch - 1, 0))),
        ("epoch_loop.manual_optimization.optim_step_progress", steps, steps),
    ):
        state[progress]["total"] |= total
        state[progress]["current"] |= current
    # A restarted loop counts an empty iteration before the first batch of an epoch.
    state["epoch_loop.state_dict"] = {"_batches_that_stepped": before - (batch == 1)}
    loops.load_state_dict(state)


def restore_module(module: VitModule, state: RunState) -> None:
    """Load the weights, their moving average, and the loss and image count of the current epoch."""
    module.model.load_state_dict(state.model)
    module.start = dict(state.start)
    if module.average is not None and state.average is not None:
        module.average.load_state_dict(state.average)
    if module.distiller is not None and state.distil is not None:
        module.distiller.restore(state.distil)
    if module.auxiliary is not None and state.auxiliary is not None:
        module.auxiliary.restore(state.auxiliary)
    if state.step:
        module.continue_epoch(state.step, state.loss_sum, state.images_seen)


def _cpu_copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
