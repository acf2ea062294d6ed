"""A batch on a CPU cut into parts, one for each thread: gradients in training, results in evaluation.

Threads that share every operation wait for each other some thousand times a step; with a part each, they meet once
(docs/explanation/benchmarks.md). In training the stem stays with all threads together: batch norm needs all images, and
its convolutions are few and large.

Shapes: B batch, C channels, H x W pixels, N patches, D width, K classes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.accelerate.model import FastBlock, FastVisionTransformer
from vitreous.model.config import pair
from vitreous.model.vit import Output

__all__ = ["Forward", "PartLoss", "add_gradients", "map_parts", "num_parts"]

_MIN_PATCHES = 2_000  # of a part in training: each thread also reads all weights and writes gradients for all of them
_MIN_PATCHES_IN_EVALUATION = 1_500
_MIN_IMAGES = 8  # of a part: with few images, one more makes a part much longer than the others
_MAX_THREADS = 4  # more were not measured, and each needs memory for its gradients

_Result = TypeVar("_Result")

Forward = Callable[[Output], Tensor]
"""Computes one of the model's outputs, for a batch or for a part of it."""

PartLoss = Callable[[Forward, slice], Tensor]
"""The mean loss of a part of a batch, given its forward pass and its place in the batch."""


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
    loss_of: PartLoss | None = None,
    extra: Sequence[nn.Parameter] = (),
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

    Returns:
        The mean loss, without a gradient.
    """
    x, grid = model.patch_embed(images)  # (B, N, D)
    inner = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("patch_embed.")]
    inner += extra
    loss_of = loss_of or (lambda forward, at: F.cross_entropy(forward("logits").float(), targets[at], weight=weight))
    drawn = [block.draw(x) for block in cast("Iterable[FastBlock]", model.blocks)]  # 2 B 1 1 each, or None
    autocast = _autocast_of_caller()

    def of_part(begin: int, end: int) -> tuple[Tensor, Tensor | None, Sequence[Tensor | None]]:
        patches = x[begin:end].detach().requires_grad_(x.requires_grad)
        branch_factors = [None if factors is None else factors[:, begin:end] for factors in drawn]

        forward = partial(model.from_patches, patches, grid, branch_factors=branch_factors)
        with autocast():
            loss = loss_of(forward, slice(begin, end)) * ((end - begin) / len(x))
        if not patches.requires_grad:
            return loss.detach(), None, torch.autograd.grad(loss * scale, inner, allow_unused=True)
        of_patches, *of_inner = torch.autograd.grad(loss * scale, [patches, *inner], allow_unused=True)
        return loss.detach(), of_patches, of_inner

    bounds = [len(x) * i // parts for i in range(parts + 1)]
    losses, of_stem, gradients = zip(*_in_threads(of_part, list(itertools.pairwise(bounds))), strict=True)
    if x.requires_grad:
        x.backward(torch.cat(of_stem))
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
