"""The step of a whole batch, computed by several processes from a share of its images each.

The result is that of one process but for the order of sums: the loss and the gradients are those of all images, batch
norm has the statistics of all images, and dropout draws for all images, of which a process uses its own rows. The CPU
adds the gradients of the processes in the order of their ranks, so the bits of a run can be repeated.

Shapes: B images of a share, C channels, H x W pixels, K classes, N images of a split.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.rng import model_seed
from vitreous.train.loop.module import VitModule
from vitreous.train.scale.team import Team

__all__ = ["SharedBatchNorm2d", "SharedVitModule", "WholeDraws", "share_batch_norm"]


class SharedVitModule(VitModule):
    """The Lightning module of one of several processes, within torch's DistributedDataParallel."""

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.team = team
        self._rows: list[int] = []  # of this process within the current micro-batch
        share_batch_norm(self.model, team)

    def on_train_start(self) -> None:
        """Let gradients be added instead of averaged."""
        super().on_train_start()
        self._add_gradients()

    def _add_gradients(self) -> None:
        # A function without annotations, because torch takes those of a postponed evaluation for wrong ones.
        cast(Any, self.trainer.model).register_comm_hook(self.team, lambda team, bucket: _add_of_all(team, bucket))  # noqa: PLW0108

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor | None:
        """Run this process's share of a micro-batch, and return the loss of all of it."""
        self._rows = [position - batch["offset"] for position in batch["positions"]]
        self._seed = model_seed(self.augment.seed, batch)
        return super().training_step(batch, batch_idx)

    def backpropagate(self, images: Tensor, targets: Tensor, count: int) -> Tensor:
        """Add the gradients of this process's share of ``count`` images, and return the loss of all of them."""
        share = len(images) / count
        ends_step = len(self._micro_batches) + 1 == self.accumulate
        with self._draws(images, count):
            logits = self.model(images)  # (B, K)
        loss = self.loss(logits.float(), targets, weight=self.class_weights)
        recomputes = self._draws(images, count) if self._recomputes else contextlib.nullcontext()
        with self._keeps_gradients(ends_step), recomputes:
            self.manual_backward(loss * share / self.accumulate)
        total = loss.detach() * share
        with self.team.pulse.waiting():
            distributed.all_reduce(total)
        return total

    def _keeps_gradients(self, ends_step: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which processes exchange gradients only at the end of a step."""
        return contextlib.nullcontext() if ends_step else cast(Any, self.trainer.model).no_sync()

    @property
    def _recomputes(self) -> bool:
        """Whether the backward pass repeats blocks, and their random draws."""
        return isinstance(self.model, FastVisionTransformer) and self.model.config.block.checkpoint

    @property
    def _compiles(self) -> bool:
        return any(module._compiled_call_impl is not None for module in self.model.modules())

    def _draws(self, images: Tensor, count: int) -> contextlib.AbstractContextManager[Any]:
        if not _draws_in_training(self.model):
            return contextlib.nullcontext()
        if self._compiles:
            torch.manual_seed(self._seed + 1 + self.team.rank)  # compiled code draws for the images it has
            return contextlib.nullcontext()
        return WholeDraws(torch.tensor(self._rows, device=images.device), count)

    def _evaluate_batch(self, model: Any, batch: dict[str, Any]) -> None:
        if len(batch["images"]):
            super()._evaluate_batch(model, batch)

    def _collect_logits(self) -> tuple[Tensor, Tensor]:
        """Put the batches of all processes together: batch i of the split is that of process i modulo their number."""
        own = self._evaluated_batches
        shapes = [tuple(each.shape[1:]) for each in own[0]] if own else None
        told = self.team.of_all(([len(labels) for _, labels in own], shapes))
        turns = max(len(counts) for counts, _ in told)
        sizes = [[*counts, *[0] * (turns - len(counts))] for counts, _ in told]  # by rank and turn
        total, (of_logits, of_labels) = sum(map(sum, sizes)), next(each for _, each in told if each is not None)
        logits, labels = torch.zeros(total, *of_logits), torch.zeros(total, *of_labels, dtype=torch.int64)
        for turn, (part, part_labels) in enumerate(own):
            first = sum(sum(counts[:turn]) for counts in sizes) + sum(c[turn] for c in sizes[: self.team.rank])
            logits[first : first + len(part)] = part
            labels[first : first + len(part)] = part_labels
        return self.team.total(logits), self.team.total(labels)


def _add_of_all(team: Team, bucket: Any) -> Future[Tensor]:
    """Add up a bucket of gradients, as a communication hook of DistributedDataParallel.

    On a CPU in the order of the ranks. A ring would add in an order that depends on how gradients are put into buckets,
    which differs between the first step of a process and the others.
    """
    own = bucket.buffer()
    if own.device.type == "cuda":
        sent = distributed.all_reduce(own, async_op=True).get_future()
        return cast("Future[Tensor]", sent.then(lambda done: done.value()[0]))
    parts = [torch.empty_like(own) for _ in range(team.world)]
    with team.pulse.waiting():
        distributed.all_gather(parts, own)
    total = parts[0]
    for part in parts[1:]:
        total += part
    finished: Future[Tensor] = Future()
    finished.set_result(total)
    return finished


def _draws_in_training(model: nn.Module) -> bool:
    """Return whether a forward pass in training draws random numbers."""
    if not isinstance(model, FastVisionTransformer):
        return True
    skips = any(getattr(module, "rate", 0) for module in model.modules())  # stochastic depth
    return model.draws_in_forward or skips


class WholeDraws(TorchDispatchMode):
    """Within this context, random numbers for B images are those of the rows of the whole micro-batch.

    Draws of another shape, which all images share, stay as they are.

    Args:
        rows: (B,) of this process.
        count: Number of images of the micro-batch in all processes.
    """

    def __init__(self, rows: Tensor, count: int) -> None:
        super().__init__()
        self.rows, self.count = rows, count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Draw for all images where an operation draws for each of B."""
        kwargs, aten = kwargs or {}, torch.ops.aten
        shape = tuple(args[0]) if func.overloadpacket is aten.rand else getattr(args[0] if args else None, "shape", ())
        draws = func.overloadpacket in (aten.rand, aten.bernoulli_, aten.native_dropout)
        if not draws or (dim := self._images(shape)) is None:
            return func(*args, **kwargs)
        whole = (*shape[:dim], self.count, *shape[dim + 1 :])
        if func.overloadpacket is aten.rand:
            return func(whole, *args[1:], **kwargs).index_select(dim, self.rows)
        if func.overloadpacket is aten.bernoulli_:
            drawn = func(_laid_out(args[0], whole), *args[1:], **kwargs)
            return args[0].copy_(drawn.index_select(dim, self.rows))
        scaled, mask = func(_laid_out(args[0], whole).fill_(1), *args[1:], **kwargs)
        return args[0] * scaled.index_select(dim, self.rows), mask.index_select(dim, self.rows)

    def _images(self, shape: tuple[int, ...]) -> int | None:
        """Return the dimension of the images, 1 for the factors (2, B, 1, 1) of stochastic depth; None without one."""
        if len(shape) == 4 and shape[0] == 2 and shape[1:] == (len(self.rows), 1, 1):
            return 1
        return 0 if len(shape) > 1 and shape[0] == len(self.rows) else None


def _laid_out(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return an empty tensor with the order of dimensions in memory of another: numbers are drawn in that order."""
    order = sorted(range(like.ndim), key=lambda dim: (like.stride(dim), like.shape[dim]), reverse=True)
    inverse = [order.index(dim) for dim in range(like.ndim)]
    return like.new_empty([shape[dim] for dim in order]).permute(inverse)


class _Total(torch.autograd.Function):
    """The sum of a tensor over all processes. Each of them depends on it, so its gradient is their sum too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, team: Team) -> Tensor:
        """Add up the tensors."""
        ctx.team, total = team, tensor.clone()
        with team.pulse.waiting():
            distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Add up the gradients."""
        return _Total.forward(ctx, gradients[0], ctx.team), None


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with the statistics of the images of all processes, on CPUs too."""

    team: Team

    def forward(self, images: Tensor) -> Tensor:
        """Normalise (B, C, H, W)."""
        if not self.training:
            return super().forward(images)
        x = images.float()
        sums = torch.cat([x.sum((0, 2, 3)), x.new_tensor([x.numel() / x.shape[1]])])  # C + 1
        sums = self._total(sums)
        mean, count = sums[:-1] / sums[-1], sums[-1].detach()
        centred = x - mean[:, None, None]
        variance = self._total(centred.square().sum((0, 2, 3))) / count
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.detach(), rate)
            self.running_var.lerp_(variance.detach() * count / (count - 1), rate)
        normal = centred * torch.rsqrt(variance + self.eps)[:, None, None]
        if self.affine:
            normal = normal * self.weight[:, None, None] + self.bias[:, None, None]
        return normal.to(images.dtype)

    def _total(self, tensor: Tensor) -> Tensor:
        return cast(Tensor, _Total.apply(tensor, self.team))


def share_batch_norm(model: nn.Module, team: Team) -> None:
    """Give the batch norms of a model the statistics of all processes; the state dict stays the same."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SharedBatchNorm2d
            cast(SharedBatchNorm2d, module).team = team
