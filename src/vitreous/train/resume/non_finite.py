"""Stops a run at the first step whose loss or gradient norm is not finite, with what `replay.py` needs to repeat it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import NonFiniteError

__all__ = ["FiniteWatch", "NonFiniteStepError", "Step"]

_CUDA_INTERVAL = 16  # steps per check on CUDA, where each check waits for the device
_COPY_INTERVAL = 16  # minimum number of steps between two copies of good weights
_MODEL, _AUXILIARY = "model", "auxiliary"  # the modules that are watched


@dataclass
class Step:
    """A step to be checked."""

    batches: Sequence[Mapping[str, Any]]
    epoch: int
    step: int
    progress: float
    lr: float
    loss: Tensor  # detached, like the gradient norm
    norm: Tensor


@dataclass(eq=False, repr=False)
class NonFiniteStepError(NonFiniteError):
    """A :class:`~vitreous.errors.NonFiniteError` with what a replay of the step needs."""

    message: str
    batches: Sequence[dict[str, Any]]  # as they were loaded (vitreous.data.batches.dataset), on the CPU
    good: dict[str, Tensor]  # a state dict from at most 32 steps before, which gave a finite loss and gradient
    weights: dict[str, Tensor]  # the state dict before the step; on CUDA, where it is overwritten by then, `good`
    auxiliary: dict[str, Tensor]  # the state dict of a second task, empty without one, from the same time as `weights`
    behind: int  # updates between `weights` and the step
    progress: float  # share of the run that was complete, in [0, 1]

    def __post_init__(self) -> None:
        super().__init__(self.message)


class FiniteWatch:
    """Checks the loss and gradient norm of every step, and raises at the first that is NaN or infinite.

    On the CPU each step is checked before its update. On CUDA a check waits for the device, so several steps are
    checked together. About every 16 steps the weights are copied, if they gave a finite loss and gradient. The weights
    of the failing step are no substitute: they did not, even if they are finite themselves.

    Args:
        model: The model in training.
        interval: Steps per check. None: 1 on the CPU, 16 on CUDA.
        auxiliary: A second task that is trained with it.
    """

    def __init__(self, model: nn.Module, interval: int | None = None, auxiliary: nn.Module | None = None) -> None:
        on_cuda = next(model.parameters()).device.type == "cuda"
        self._watched = nn.ModuleDict({_MODEL: model} | ({} if auxiliary is None else {_AUXILIARY: auxiliary}))
        self.interval = interval or (_CUDA_INTERVAL if on_cuda else 1)
        self._pending: list[Step] = []
        self._good = self._copy()
        self._since_copy = 0

    def check(self, step: Step) -> None:
        """Register a step before its update, and check all registered steps if the interval is complete."""
        self._pending.append(step)
        if len(self._pending) >= self.interval:
            self.flush()

    def flush(self) -> None:
        """Check all registered steps now."""
        if not self._pending:
            return
        values = torch.stack([torch.stack([s.loss.float(), s.norm.float()]) for s in self._pending])  # steps x 2
        finite = values.isfinite().all(dim=1).tolist()
        if not all(finite):
            first = finite.index(False)
            self._fail(first, *values[first].tolist())
        self._since_copy += len(self._pending)
        self._pending.clear()
        if self._since_copy >= _COPY_INTERVAL:
            self._good, self._since_copy = self._copy(), 0

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._watched.state_dict().items()}

    def _fail(self, index: int, loss: float, norm: float) -> None:
        bad = self._pending[index]
        problem = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        good = {name: value.cpu() for name, value in self._good.items()}
        not_updated = self.interval == 1  # the model still holds the weights of the failing step
        weights = self._before_step(good) if not_updated else good
        raise NonFiniteStepError(
            f"{problem} in epoch {bad.epoch + 1}, step {bad.step}, at learning rate {bad.lr:.3g}",
            batches=[_on_cpu(each) for each in bad.batches],
            good=_part(good, _MODEL),
            weights=_part(weights, _MODEL),
            auxiliary=_part(weights, _AUXILIARY),
            behind=0 if not_updated else self._since_copy + index,
            progress=bad.progress,
        )

    def _before_step(self, good: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state before the failing step, whose forward pass has already followed its images in buffers.

        Running statistics that are no longer finite are those of the last copy: training does not read them.
        """
        learned = {name for name, _ in self._watched.named_parameters()}
        return {
            name: value.cpu() if name in learned or bool(value.isfinite().all()) else good[name]
            for name, value in self._copy().items()
        }


def _part(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return what a state dict of several modules has of one of them."""
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}


def _on_cpu(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch, and the unlabelled images that come with it, on the CPU."""

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.cpu()
        return _on_cpu(value) if isinstance(value, Mapping) else value

    return {name: moved(value) for name, value in batch.items()}
