"""The watch over the loss and the gradient norm: training stops at the first one that is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import NonFiniteError

__all__ = ["FiniteWatch", "NonFiniteStepError"]

_CUDA_INTERVAL = 16  # steps between two looks on CUDA, where each look waits for the device
_COPY_INTERVAL = 16  # steps, at least, between two copies of good weights


@dataclass
class _Step:
    """What is remembered of a step until it has been looked at."""

    batches: Sequence[Mapping[str, Any]]
    epoch: int
    step: int
    progress: float
    lr: float
    loss: Tensor
    norm: Tensor


class NonFiniteStepError(NonFiniteError):
    """A :class:`~vitreous.errors.NonFiniteError` that carries what is needed to look into it.

    Attributes:
        batches: The batches of the step as they were loaded (:mod:`vitreous.data.batches.dataset`), on the CPU.
        good: The model's state dict of at most 32 steps before, which gave a finite loss.
        weights: The state dict that the step began with; on CUDA, where later updates have passed over it, `good`.
        behind: Updates that were made between `weights` and the step.
        progress: Share of the run that was done.
    """

    def __init__(
        self,
        message: str,
        *,
        batches: Sequence[dict[str, Any]],
        good: dict[str, Tensor],
        weights: dict[str, Tensor],
        behind: int,
        progress: float,
    ) -> None:
        super().__init__(message)
        self.batches, self.good, self.weights = batches, good, weights
        self.behind, self.progress = behind, progress


class FiniteWatch:
    """Looks at every step's loss and gradient norm, and raises at the first one that is NaN or infinite.

    On the CPU it looks before each update. On CUDA, looking means waiting for the device: there it looks at several
    steps at once. Every 16 steps or so it copies the weights if they gave a finite loss and gradient: those of the bad
    step itself did not, although they may look fine.

    Args:
        model: The model in training.
        interval: Steps between two looks; None is 1, and 16 on CUDA.
    """

    def __init__(self, model: nn.Module, interval: int | None = None) -> None:
        on_cuda = next(model.parameters()).device.type == "cuda"
        self.model = model
        self.interval = interval or (_CUDA_INTERVAL if on_cuda else 1)
        self._pending: list[_Step] = []
        self._good = self._copy()
        self._since_copy = 0

    def check(
        self,
        batches: Sequence[Mapping[str, Any]],
        *,
        epoch: int,
        step: int,
        progress: float,
        lr: float,
        loss: Tensor,
        norm: Tensor,
    ) -> None:
        """Register a step before its update, and look if it is time to.

        Raises:
            NonFiniteStepError: If the loss or the gradient norm of a registered step is not finite.
        """
        self._pending.append(_Step(batches, epoch, step, progress, lr, loss.detach(), norm.detach()))
        if len(self._pending) >= self.interval:
            self.flush()

    def flush(self) -> None:
        """Look at all registered steps now."""
        if not self._pending:
            return
        values = torch.stack([torch.stack([s.loss.float(), s.norm.float()]) for s in self._pending])
        finite = values.isfinite().all(dim=1).tolist()
        if not all(finite):
            first = finite.index(False)
            self._fail(first, *values[first].tolist())
        self._since_copy += len(self._pending)
        self._pending.clear()
        if self._since_copy >= _COPY_INTERVAL:
            self._good, self._since_copy = self._copy(), 0

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _fail(self, place: int, loss: float, norm: float) -> None:
        bad = self._pending[place]
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        good = {name: value.cpu() for name, value in self._good.items()}
        at_once = self.interval == 1  # then no update has followed
        raise NonFiniteStepError(
            f"{what} in epoch {bad.epoch + 1}, step {bad.step}, at learning rate {bad.lr:.3g}",
            batches=[{n: v.cpu() if isinstance(v, Tensor) else v for n, v in each.items()} for each in bad.batches],
            good=good,
            weights={name: value.cpu() for name, value in self._copy().items()} if at_once else good,
            behind=0 if at_once else self._since_copy + place,
            progress=bad.progress,
        )
