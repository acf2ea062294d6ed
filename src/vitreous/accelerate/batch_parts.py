"""A batch on a CPU cut into parts, one for each thread: gradients in training, results in evaluation.

Threads that share every operation wait for each other some thousand times a step; with a part each, they meet once
(docs/explanation/benchmarks.md). In training the stem stays with all threads together: batch norm needs all images, and
its convolutions are few and large.

Shapes: B batch, C channels, H x W pixels, N patches, D width, K classes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.accelerate.model import FastBlock, FastVisionTransformer
from vitreous.model.config import pair
from vitreous.model.output import Output

__all__ = [
    "Forward",
    "MaskedLoss",
    "PartLoss",
    "Passes",
    "add_gradients",
    "map_parts",
    "num_parts",
    "own_statistics",
    "without_statistics",
]

_MIN_PATCHES = 2_000  # of a part in training: each thread also reads all weights and writes gradients for all of them
_MIN_PATCHES_IN_EVALUATION = 1_500
_MIN_IMAGES = 8  # of a part: with few images, one more makes a part much longer than the others
_MAX_THREADS = 4  # more were not measured, and each needs memory for its gradients

_Result = TypeVar("_Result")

Forward = Callable[[Output], Tensor]
"""Computes one of the model's outputs, for a batch or for a part of it."""

PartLoss = Callable[[Forward, slice], Tensor]
"""The mean loss of a part of a batch, given its forward pass and its place in the batch."""


@dataclass(frozen=True, eq=False)
class Passes:
    """The forward passes of a batch, or of a part of it, behind the stem. All of them drop the same branches."""

    model: FastVisionTransformer
    patches: Tensor  # (B, N, D)
    grid: tuple[int, int]
    branch_factors: Sequence[Tensor | None]  # of stochastic depth, for each block (2, B, 1, 1)
    masked: Tensor  # (B, N, D): the patches of images in which some are hidden

    @classmethod
    def of(cls, model: FastVisionTransformer, images: Tensor, masked: Tensor | None = None) -> Passes:
        """Run the stem on a batch.

        Args:
            model: In training.
            images: (B, C, H, W), normalised.
            masked: The same images with some patches hidden, for :meth:`encode_visible`. None: the stem shows no patch
                anything of the others, so that its patches serve both.
        """
        x, grid = model.patch_embed(images)
        y = x
        if masked is not None:
            with without_statistics(model.patch_embed):
                y, _ = model.patch_embed(masked)
        return cls(model, x, grid, [block.draw(x) for block in cast("Iterable[FastBlock]", model.blocks)], y)

    def __call__(self, output: Output) -> Tensor:
        """Compute one of the model's outputs from all patches."""
        return self.model.from_patches(self.patches, self.grid, output, self.branch_factors)

    def encode_visible(self, kept: Tensor) -> Tensor:
        """Return the tokens, (B, P + n, D), computed from the patches at raster indices (B, n) alone."""
        return self.model.encode_visible(self.masked, self.grid, kept, self.branch_factors)

    def classify(self, tokens: Tensor) -> Tensor:
        """Return the logits, (B, K), of tokens after the final norm, (B, P + n, D)."""
        return cast(Tensor, self.model.head(self.model.read_out(tokens)))

    @property
    def of_stem(self) -> list[Tensor]:
        """What the stem computed, if it is trained."""
        found = [self.patches] if self.masked is self.patches else [self.patches, self.masked]
        return [x for x in found if x.requires_grad]

    def part(self, at: slice) -> Passes:
        """Return those of a part, whose gradients end behind the stem."""
        patches = _leaf(self.patches, at)
        masked = patches if self.masked is self.patches else _leaf(self.masked, at)
        factors = [None if each is None else each[:, at] for each in self.branch_factors]
        return Passes(self.model, patches, self.grid, factors, masked)


MaskedLoss = Callable[[Passes, slice], Tensor]
"""As :data:`PartLoss`, of a loss that also encodes visible patches."""


def _leaf(x: Tensor, at: slice) -> Tensor:
    return x[at].detach().requires_grad_(x.requires_grad)


@contextlib.contextmanager
def without_statistics(stem: nn.Module) -> Iterator[None]:
    """Keep masked images out of batch norm's running statistics, which evaluation uses on whole images."""
    norms = [module for module in stem.modules() if isinstance(module, nn.BatchNorm2d) and module.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


@contextlib.contextmanager
def own_statistics(stem: nn.Module) -> Iterator[None]:
    """Do as :func:`without_statistics`, and normalise by the batch in evaluation too, as in training."""
    before = stem.training
    with without_statistics(stem):
        stem.train()
        try:
            yield
        finally:
            stem.train(before)


def num_parts(model: nn.Module, images: Tensor) -> int:
    """Return into how many parts a batch is cut: the number of threads, or 1 for the batch as it is.

    Parts must not change the result but for the order of sums. So the batch stays whole in training where dropout would
    be drawn in threads, in an order left to chance, or where a module behind the stem has buffers, as batch norm has;
    for compiled models; and in distributed training, which synchronises gradients as they are accumulated. Stochastic
    depth is drawn beforehand.

    Args:
        model: In training or evaluation. The batch stays whole for models and blocks of other classes than ours.
        images: (B, C, H, W), on the model's device.
    """
    threads = torch.get_num_threads()
    if images.device.type != "cpu" or not 1 < threads <= _MAX_THREADS or type(model) is not FastVisionTransformer:
        return 1
    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    has_buffers = any(not name.startswith("patch_embed.") for name, _ in model.named_buffers())
    known = all(isinstance(block, FastBlock) for block in model.blocks)
    if not known or compiled or distributed or (model.training and (model.draws_in_forward or has_buffers)):
        return 1
    height, width = pair(model.config.patch_size)
    patches = (images.shape[2] // height) * (images.shape[3] // width)
    each = len(images) // threads
    least = _MIN_PATCHES if model.training else _MIN_PATCHES_IN_EVALUATION
    return threads if each >= _MIN_IMAGES and each * patches >= least else 1


def add_gradients(
    model: FastVisionTransformer,
    images: Tensor,
    targets: Tensor,
    parts: int,
    *,
    weight: Tensor | None = None,
    scale: float = 1.0,
    loss_of: PartLoss | MaskedLoss | None = None,
    extra: Sequence[nn.Parameter] = (),
    masked: Tensor | None = None,
) -> Tensor:
    """Add the gradient of a batch's mean loss to the model's, part by part; autocast as around the call.

    Args:
        model: For which :func:`num_parts` gives ``parts``.
        images: (B, C, H, W), normalised.
        targets: Distributions (B, K), or classes (B,) where there are no weights.
        parts: At least 2, a thread for each.
        weight: Of each class, (K,), as torch's ``cross_entropy`` takes it.
        scale: Factor of the gradient.
        loss_of: The loss of a part; None is the cross entropy with the targets.
        extra: Parameters of the loss itself, which get their gradients too.
        masked: As in :meth:`Passes.of`.

    Returns:
        The mean loss, without a gradient.
    """
    whole, count = Passes.of(model, images, masked), len(images)
    inner = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("patch_embed.")]
    inner += extra
    loss_of = loss_of or (lambda forward, at: F.cross_entropy(forward("logits").float(), targets[at], weight=weight))
    autocast = _autocast_of_caller()

    def of_part(begin: int, end: int) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor | None]]:
        at = slice(begin, end)
        part = whole.part(at)
        with autocast():
            loss = loss_of(part, at) * ((end - begin) / count)
        leaves = part.of_stem
        found = torch.autograd.grad(loss * scale, [*leaves, *inner], allow_unused=True)
        return loss.detach(), found[: len(leaves)], found[len(leaves) :]

    bounds = [count * i // parts for i in range(parts + 1)]
    losses, of_stem, gradients = zip(*_in_threads(of_part, list(itertools.pairwise(bounds))), strict=True)
    if whole.of_stem:
        torch.autograd.backward(whole.of_stem, [torch.cat(each) for each in zip(*of_stem, strict=True)])
    with torch.no_grad():
        for parameter, first, *others in zip(inner, *gradients, strict=True):
            if first is not None:  # then the others are not None either
                total = torch.empty_like(parameter)  # with the parameter's strides, as optimisers need it
                torch.add(first, others[0], out=total)
                for each in others[1:]:
                    total += each
                parameter.grad = total if parameter.grad is None else total.add_(parameter.grad)
    return cast(Tensor, sum(losses))


def map_parts(compute: Callable[[Tensor], _Result], images: Tensor, parts: int) -> list[_Result]:
    """Call a function on each part of a batch, without gradients; autocast as around the call.

    Args:
        compute: A model in evaluation, for which :func:`num_parts` gives ``parts``, or a function that calls it.
        images: (B, C, H, W), normalised.
        parts: At least 2, a thread for each.

    Returns:
        The result of each part, in order.
    """
    autocast = _autocast_of_caller()

    def of_part(part: Tensor) -> _Result:
        with torch.inference_mode(), autocast():
            return compute(part)

    return _in_threads(of_part, [(part,) for part in images.tensor_split(parts)])


def _autocast_of_caller() -> Callable[[], torch.autocast]:
    """Return a function that makes this thread's autocast for another thread."""
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    # The cache of converted weights is one for all threads, and the first that ends would empty it.
    return partial(torch.autocast, "cpu", dtype, enabled=enabled, cache_enabled=False)


def _in_threads(function: Callable[..., _Result], arguments: Sequence[Sequence[Any]]) -> list[_Result]:
    """Call a function with each of the arguments in a thread; raise the first error after all have ended."""
    pool = _threads(len(arguments))
    futures = [pool.submit(function, *each) for each in arguments]
    wait(futures)
    return [future.result() for future in futures]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Return a pool of threads, each of which computes with one thread."""
    before = torch.get_num_threads()
    started = threading.Barrier(count)

    def start() -> None:
        torch.get_num_threads()  # the first call gives a thread the global number
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(count, "vitreous-part")
    try:
        wait([pool.submit(start) for _ in range(count)])
    except BaseException:  # the system has no more threads: do not let the others wait for ever
        started.abort()
        raise
    finally:
        torch.set_num_threads(before)  # set_num_threads in a thread also sets what new threads start with
    return pool
