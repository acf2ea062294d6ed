"""What a run needs to go on as if nothing had happened: one dataclass, how it is taken, and how it is given back.

The order of the pictures and every draw are functions of (seed, epoch, step), so no generator has a state to keep. The
watch for values that are not finite starts anew: its copy of the weights is for looking into a failure, no more.

A mid-epoch state is taken after a step. It is given back by repeating the last batch of that step without computing
anything: everything that follows a step (the clock, the validation after an epoch's last one) then happens as it did.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.optim import Optimizer

from vitreous.errors import CheckpointError, VitreousError
from vitreous.evaluate.metrics import evaluate
from vitreous.runs.folder import differing, is_longer
from vitreous.train.module import VitModule
from vitreous.train.recipe_file import recipe_text
from vitreous.train.results import Selected
from vitreous.train.setup import Prepared

__all__ = [
    "RunState",
    "fitting_this_run",
    "given_more_epochs",
    "identity",
    "load_optimizer",
    "optimizer_state",
    "place_trainer",
    "refuse_another",
    "refuse_impossible",
    "restore_module",
    "selected_state",
]


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything that a resume needs.

    Attributes:
        identity: What must be the same: settings, data, device, precision (:func:`identity`).
        epoch: From 0.
        step: Steps made in it; 0 at its start.
        trained: Whether no step is left to make.
        parts: Parts that a step is cut into, which an out-of-memory may have raised above `accumulate`.
        model: State dict of the weights in training, with batch norm's statistics.
        average: State dict of their moving average, where there is one.
        optimizer: As :func:`optimizer_state` gives it.
        loss_sum: Of the losses of the epoch's pictures so far.
        images_seen: Their number.
        best: The selected weights and what they said on val, as :func:`selected_state` gives them; None before the
            first validation.
        risen: Epoch, from 1, that had the highest score first: patience counts from there.
        stopped_early: Whether patience ended the training.
        history: Rows of metrics.csv.
        clock: What the clock of the run says of the time used.
        seconds: Wall-clock time by phase so far.
        probed: What frozen features were worth, in a fine-tuning that probed first.
        threads: That the run computes with: the order of sums depends on them.
        extended: Numbers of epochs at which the run was finished before, and then given more.
    """

    identity: dict[str, str]
    epoch: int
    step: int
    trained: bool
    parts: int
    model: dict[str, Tensor]
    average: dict[str, Tensor] | None
    optimizer: dict[str, Any]
    loss_sum: Tensor
    images_seen: int
    best: dict[str, Any] | None
    risen: int
    stopped_early: bool
    history: list[dict[str, float]]
    clock: dict[str, float]
    seconds: dict[str, float]
    probed: dict[str, Any] | None
    threads: int
    extended: list[int]

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, nothing copied."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, content: Any) -> RunState:
        """Make a state of what a file holds.

        Raises:
            CheckpointError: If a field is missing or unknown.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or content.keys() != names:
            wrong = sorted(names.symmetric_difference(content if isinstance(content, dict) else ()))
            raise CheckpointError(f"it is of another version of vitreous, which differs in {', '.join(wrong)}")
        state = cls(**content)
        if wrong := list(state._of_other_kinds()):
            raise CheckpointError(f"it is no state of a run: {', '.join(wrong)} cannot be meant")
        return state

    def _of_other_kinds(self) -> Iterator[str]:
        """Yield the names of fields whose values no run has: a file may come from elsewhere."""
        optional = ("average", "best", "probed")
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not (isinstance(value, kind) and type(value) is not bool) and not (value is None and name in optional):
                yield name
        for name, least in (("epoch", 0), ("step", 0), ("images_seen", 0), ("risen", 0), ("parts", 1), ("threads", 1)):
            if isinstance(value := getattr(self, name), int) and value < least:
                yield name
        if type(self.trained) is not bool or type(self.stopped_early) is not bool:
            yield "trained, stopped_early"
        for name in ("clock", "seconds"):
            if not _is_numbers(getattr(self, name)):
                yield name
        if not all(map(_is_numbers, self.history)):
            yield "history"
        if isinstance(self.loss_sum, Tensor) and self.loss_sum.ndim:
            yield "loss_sum"
        if any(type(count) is not int for count in self.extended):
            yield "extended"
        if any(not isinstance(value, str) for value in dict(self.identity).values()):
            yield "identity"

    @property
    def where(self) -> str:
        """The point that was reached, for people."""
        if self.trained:
            return f"the end of training, epoch {len(self.history)}"
        return f"epoch {self.epoch + 1}, step {self.step}" if self.step else f"the start of epoch {self.epoch + 1}"

    def selected(self) -> Selected | None:
        """The selection, with its scores."""
        if self.best is None:
            return None
        logits, labels = self.best["logits"], self.best["labels"]
        return Selected(evaluate(logits, labels), logits, labels, self.best["epoch"], self.best["weights"])


_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("identity", "model", "average", "optimizer", "best", "clock", "seconds", "probed"), dict),
    **dict.fromkeys(("epoch", "step", "parts", "images_seen", "risen", "threads"), int),
    **dict.fromkeys(("history", "extended"), list),
    "loss_sum": Tensor,
}
_COLUMNS = ("epoch", "step", "lr", "train_loss", "images_per_second", "seconds")  # of metrics.csv, but for scores


def _is_numbers(value: Any) -> bool:
    """Whether a value is a dictionary of numbers."""
    return isinstance(value, dict) and all(type(number) in (int, float) for number in value.values())


def selected_state(selected: Selected | None) -> dict[str, Any] | None:
    """A selection for :class:`RunState`; nothing is copied, since a selection never changes."""
    if selected is None:
        return None
    return {name: getattr(selected, name) for name in ("logits", "labels", "epoch", "weights")}


def identity(ready: Prepared) -> dict[str, str]:
    """What two runs must share for one to go on where the other stopped."""
    return {
        "recipe": recipe_text(ready.config),
        "fingerprint": ready.data.fingerprint,
        "order": ready.data.order,
        "device": ready.device.type,
        "precision": ready.precision,
    }


def refuse_another(found: Mapping[str, str], ours: Mapping[str, str], where: str) -> None:
    """Compare the :func:`identity` of a stored state with that of a run.

    Raises:
        CheckpointError: If they differ: the message says in what, and how to go on.
    """
    wrong = differing(found.get("recipe", ""), ours["recipe"])
    places = [name for name in ("device", "precision") if found.get(name) != ours[name]]
    wrong += [f"{name} was {found.get(name, 'not said')}, now {ours[name]}" for name in places]
    if found.get("fingerprint") != ours["fingerprint"]:
        wrong.append("the pictures or their labels are others")
    elif found.get("order") != ours["order"]:  # a state of an earlier version has none
        wrong.append("the images come in another order or another split")
    if wrong:
        raise CheckpointError(
            f"{where} is of a run with other settings: {'; '.join(wrong)}. Give it the same, or another --out"
        )


def given_more_epochs(state: RunState, ours: Mapping[str, str]) -> RunState:
    """The state of a finished run as one to go on from, where the run that takes it up has more epochs.

    Its schedule is then at the same share of the longer run, so a rate that had come down goes up again: the end is not
    that of a run of so many epochs from the start. Patience counts from here. Any other state stays as it is.

    Args:
        state: As it was read.
        ours: The :func:`identity` of the run.
    """
    if not state.trained or not is_longer(state.identity.get("recipe", ""), ours["recipe"]):
        return state
    done = len(state.history)
    return replace(
        state,
        identity={**state.identity, "recipe": ours["recipe"]},
        trained=False,
        stopped_early=False,
        risen=done,
        extended=[*state.extended, done],
    )


def refuse_impossible(state: RunState, ready: Prepared) -> None:
    """Refuse a state at a point that no run of these settings comes to.

    Raises:
        CheckpointError: If its checksum is right, but its numbers or columns are none of this run's.
    """
    config, per_epoch = ready.config, ready.loading.steps_per_epoch
    scores = evaluate(torch.zeros(1, len(ready.data.classes)), torch.zeros(1, dtype=torch.int64)).summary()
    columns = {*_COLUMNS, *(f"val_{name}" for name in scores)}
    epochs = config.epochs if config.steps is None else -(-config.steps // per_epoch)
    wrong = {
        "step": state.step > per_epoch,
        "epoch": config.budget is None and state.epoch > epochs,
        "parts": state.parts > config.batch_size,
        "history": not all(set(_COLUMNS) <= row.keys() <= columns for row in state.history),
    }
    if any(wrong.values()):
        names = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
        raise CheckpointError(f"the state does not fit this run ({names}): begin with another --out")


@contextlib.contextmanager
def fitting_this_run() -> Iterator[None]:
    """Within, values of a state are given back; what does not fit is told as such.

    Raises:
        CheckpointError: If a value is of another shape or kind than the run has: no run of these settings wrote it.
    """
    try:
        yield
    except VitreousError:
        raise
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"the state does not fit this run ({reason}): begin with another --out") from error


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """A copy on the CPU: the state of each parameter by its number, and each group's present learning rate."""
    stored = optimizer.state_dict()
    return {
        "state": {
            str(number): {name: _copied(v) for name, v in each.items()} for number, each in stored["state"].items()
        },
        "rates": [group["lr"] for group in stored["param_groups"]],
    }


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimiser, built as it was, the state that it had."""
    stored = optimizer.state_dict()
    stored["state"] = {int(number): dict(each) for number, each in state["state"].items()}
    for group, rate in zip(stored["param_groups"], state["rates"], strict=True):
        group["lr"] = rate
    optimizer.load_state_dict(stored)


def place_trainer(trainer: lightning.Trainer, epoch: int, batch: int, per_epoch: int, parts: int) -> None:
    """Set the counters of a Trainer that is to go on, before its fit.

    Lightning has no function for this but its own checkpoints, so its loops are given the state that one would have.

    Args:
        trainer: Fresh.
        epoch: From 0.
        batch: Batches made in it. Above 0, the next batch is the last of them once more.
        per_epoch: Batches in a whole epoch.
        parts: Batches in a step.
    """
    repeated = batch > 0
    before = epoch * per_epoch + batch - repeated
    loops = trainer.fit_loop
    state = loops.state_dict()
    of_epochs = {"ready": epoch + repeated, "started": epoch + repeated, "processed": epoch, "completed": epoch}
    _count(state["epoch_progress"], total=of_epochs, current=of_epochs)
    names = ("ready", "started", "processed", "completed")
    current = dict.fromkeys(names, max(batch - 1, 0))
    _count(state["epoch_loop.batch_progress"], total=dict.fromkeys(names, before), current=current)
    made = dict.fromkeys(("ready", "completed"), (epoch * per_epoch + batch) // parts)
    _count(state["epoch_loop.manual_optimization.optim_step_progress"], total=made, current=made)
    # Before an epoch's first batch, a restarting loop counts an empty round.
    state["epoch_loop.state_dict"] = {"_batches_that_stepped": before - (batch == 1)}
    loops.load_state_dict(state)


def _count(progress: dict[str, Any], total: dict[str, int], current: dict[str, int]) -> None:
    progress["total"] |= total
    progress["current"] |= current


def restore_module(module: VitModule, state: RunState) -> None:
    """Give the module its weights, their average, and the sums of the epoch."""
    module.model.load_state_dict(state.model)
    if module.average is not None and state.average is not None:
        module.average.load_state_dict(state.average)
    if state.step:
        module.continue_epoch(state.step, state.loss_sum, state.images_seen)


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
