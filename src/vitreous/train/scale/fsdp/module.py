"""The step of a sharded model: norms, updates and evaluation that need more than a process's own rows.

Shapes: B images of a share, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from vitreous.train.loop.optim import MuonWithAdamW, StackedMuon, move_average
from vitreous.train.resume.state import RunState, restore_module
from vitreous.train.scale.fsdp.layout import Layout
from vitreous.train.scale.fsdp.sharding import shard_model
from vitreous.train.scale.shares import SharedVitModule

__all__ = ["ShardedStrategy", "ShardedVitModule"]


class ShardedVitModule(SharedVitModule):
    """The Lightning module of one of several processes that hold a part of the model each."""

    def __init__(self, layout: Layout, compiles: bool, *args: Any, **kwargs: Any) -> None:
        super().__init__(layout.team, *args, **kwargs)
        self.layout, self.compiles = layout, compiles
        self._restored: RunState | None = None

    def restore_later(self, state: RunState) -> None:
        """Take the state with which :meth:`shard` begins."""
        self._restored = state

    def shard(self, in_bf16: bool) -> None:
        """Shard the model and its average, and restore them."""
        shard_model(self.model, self.layout, in_bf16=in_bf16, compiles=self.compiles)
        if self.average is not None:
            shard_model(self.average, self.layout, in_bf16=False)
        if self._restored is not None:
            restore_module(self, self._restored)
            self._restored = None

    def score_with(self, model: nn.Module) -> None:
        """Replace what was trained by a model of the same architecture that computes in float32."""
        self.average = None
        self.model = model
        shard_model(self.model, self.layout, in_bf16=False)

    def configure_optimizers(self) -> Optimizer:
        """Build the optimiser of the rows of this process."""
        optimizer = super().configure_optimizers()
        if isinstance(optimizer, MuonWithAdamW):
            optimizer.muon.__class__ = _ShardedMuon
            cast(_ShardedMuon, optimizer.muon).layout = self.layout
        return optimizer

    def _add_gradients(self) -> None:
        """Do nothing: sharding.py adds them."""

    def _keeps_gradients(self, ends_step: bool) -> contextlib.AbstractContextManager[Any]:
        """Exchange gradients after every micro-batch: keeping them would take the memory of the whole model."""
        return contextlib.nullcontext()

    @property
    def _compiles(self) -> bool:
        return self.compiles

    def _clip_gradients(self) -> Tensor:
        """Clip by the norm of the rows of all processes, and return it."""
        gradients = [cast(DTensor, p.grad).to_local() for p in self.model.parameters() if p.grad is not None]
        square = torch.nn.utils.get_total_norm(gradients).square()
        with self.team.pulse.waiting():
            distributed.all_reduce(square)
        norm = square.sqrt()
        if self.optim.clip is not None:
            torch._foreach_mul_(gradients, (self.optim.clip / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def _update_average(self, average: nn.Module, decay: float) -> None:
        move_average(_own(average.state_dict()), _own(self.model.state_dict()), decay)

    def _evaluate_batch(self, model: Callable[[Tensor], Tensor], batch: dict[str, Any]) -> None:
        """Compute logits (B, K). A process without images computes those of a black one, since all gather weights."""
        images, count = batch["images"], len(batch["images"])
        if not count:
            images = torch.zeros(1, self.pipeline.channels, *self.pipeline.size, dtype=torch.uint8, device=self.device)
        logits = self.eval_model(self.pipeline.normalise(images))
        if count:
            self._evaluated_batches.append((logits.float().cpu(), batch["labels"].cpu()))


def _own(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the rows of this process, and whole buffers."""
    return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in weights.items()}


class _ShardedMuon(StackedMuon):
    """Muon whose matrices are gathered to be orthogonalised, in every process, which then keeps its own rows."""

    layout: Layout

    def own(self, tensor: Tensor) -> Tensor:
        """Return the rows of this process."""
        return cast(DTensor, tensor).to_local()

    def orthogonal(self, stack: Tensor, shape: torch.Size) -> list[Tensor]:
        """Return the rows of this process of the updates, given the same rows of a stack of matrices."""
        size, mesh = torch.Size((len(stack), *shape)), self.layout.mesh
        stride = torch.empty(size, device="meta").stride()
        parts = DTensor.from_local(stack, mesh, [Shard(1)], run_check=False, shape=size, stride=stride)
        with self.layout.team.pulse.waiting():
            whole = parts.full_tensor()
        return [each[self.layout.rows(shape[0])] for each in super().orthogonal(whole, shape)]


class ShardedStrategy(DDPStrategy):
    """Leaves the model as sharding.py has made it, on its device."""

    def setup(self, trainer: lightning.Trainer) -> None:
        """Build the optimiser."""
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        self.model_to_device()  # what belongs to no model, such as the weights of classes
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def teardown(self) -> None:
        """End without moving the model."""
        assert self.accelerator is not None
        self.precision_plugin.teardown()
        self.accelerator.teardown()
