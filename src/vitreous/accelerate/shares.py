"""A batch's gradient, or what a model gives for it, on a CPU by threads that take a share of its pictures each.

Threads that work on every operation together wait for each other some thousand times a step, each time for the one that
the system held up; with shares they meet once. docs/benchmarks.md has what that gains. Steps are in module.py.

In training the stem is left to all threads together: the batch norm of ``stem="conv"`` wants all pictures, and its
convolutions are few and large. That of ``stem="resnet"`` has many, and was not measured.

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

from vitreous.model.config import pair
from vitreous.model.vit import Block, VisionTransformer

__all__ = ["add_gradients", "of_each_share", "shares"]

_PATCHES = 2_000  # of a share, at least: each thread also reads all weights, and writes a gradient of its own for each
_PATCHES_IN_EVALUATION = 1_500  # the same in evaluation, where nothing is written
_PICTURES = 8  # of a share, at least: with few, one more makes a share much longer than the others
_MOST = 4  # threads; more were not measured, and each needs memory for its gradients

_Result = TypeVar("_Result")


def shares(model: nn.Module, images: Tensor) -> int:
    """Into how many shares the pictures of a batch are cut: one for each thread, or 1, the batch as it is.

    A share must not change what is computed but for the order of sums. So in training a model with dropout, whose draws
    in threads come in an order that is left to chance, or one that looks at the batch as a whole behind its stem, as
    batch norm does, gets all pictures. So does one that is compiled, by a compiler that is not made for threads, and
    one that several processes train, which meet at gradients as they are accumulated. Stochastic depth is drawn
    beforehand.

    Args:
        model: In training or not. One of another class than VisionTransformer, or with such a block, gets all pictures.
        images: (B, C, H, W), where the model is.
    """
    threads = torch.get_num_threads()
    if images.device.type != "cpu" or not 1 < threads <= _MOST or type(model) is not VisionTransformer:
        return 1
    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    counting = any(not name.startswith("patch_embed.") for name, _ in model.named_buffers())
    known = all(type(block) is Block for block in model.blocks)
    if not known or compiled or several or (model.training and (model.drops_within or counting)):
        return 1
    height, width = pair(model.config.patch_size)
    patches = (images.shape[2] // height) * (images.shape[3] // width)
    each = len(images) // threads
    least = _PATCHES if model.training else _PATCHES_IN_EVALUATION
    return threads if each >= _PICTURES and each * patches >= least else 1


def add_gradients(
    model: VisionTransformer,
    images: Tensor,
    targets: Tensor,
    count: int,
    *,
    weight: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Add the gradient of the mean cross entropy of a batch to the model's, in shares; autocast as around the call.

    Args:
        model: For which :func:`shares` gives the count.
        images: (B, C, H, W), normalised.
        targets: Distributions (B, K), or classes (B,) where there are no weights.
        count: Shares, at least 2, each taken by a thread of its own.
        weight: Of each class, (K,), as torch's ``cross_entropy`` takes it.
        scale: Factor of the gradient.

    Returns:
        The mean loss, without a gradient.
    """
    x, grid = model.patch_embed(images)  # B N D
    inner = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("patch_embed.")]
    drawn = [block.draw(x) for block in cast("Iterable[Block]", model.blocks)]  # 2 B 1 1 each, or None
    autocast = _autocast_of_caller()

    def of_share(begin: int, end: int) -> tuple[Tensor, Tensor | None, Sequence[Tensor | None]]:
        own = x[begin:end].detach().requires_grad_(x.requires_grad)
        factors = [None if each is None else each[:, begin:end] for each in drawn]
        with autocast():
            logits = model.head(model.pooled_patches(own, grid, factors))
        loss = F.cross_entropy(logits.float(), targets[begin:end], weight=weight) * ((end - begin) / len(x))
        if not own.requires_grad:
            return loss.detach(), None, torch.autograd.grad(loss * scale, inner, allow_unused=True)
        of_own, *of_inner = torch.autograd.grad(loss * scale, [own, *inner], allow_unused=True)
        return loss.detach(), of_own, of_inner

    bounds = [len(x) * i // count for i in range(count + 1)]
    losses, of_stem, gradients = zip(*_of_all(of_share, list(itertools.pairwise(bounds))), strict=True)
    if x.requires_grad:
        x.backward(torch.cat(of_stem))
    with torch.no_grad():
        for parameter, first, *others in zip(inner, *gradients, strict=True):
            if first is not None:  # then none of the others is
                total = torch.empty_like(parameter)  # lies in memory as the parameter does, as optimisers want it
                torch.add(first, others[0], out=total)
                for each in others[1:]:
                    total += each
                parameter.grad = total if parameter.grad is None else total.add_(parameter.grad)
    return cast(Tensor, sum(losses))


def of_each_share(compute: Callable[[Tensor], _Result], images: Tensor, count: int) -> list[_Result]:
    """Compute something of a batch in shares, without gradients; autocast as around the call.

    Args:
        compute: A model in evaluation, for which :func:`shares` gives the count, or a function that calls it.
        images: (B, C, H, W), normalised.
        count: Shares, at least 2, each taken by a thread of its own.

    Returns:
        What each share gives, in order: results of pictures are to be put together.
    """
    autocast = _autocast_of_caller()

    def of_share(own: Tensor) -> _Result:
        with torch.inference_mode(), autocast():
            return compute(own)

    return _of_all(of_share, [(own,) for own in images.tensor_split(count)])


def _autocast_of_caller() -> Callable[[], torch.autocast]:
    """Makes, for another thread, the autocast that holds in this one."""
    casts, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    # The cache of converted weights is one for all threads, and the first that ends would empty it.
    return partial(torch.autocast, "cpu", dtype, enabled=casts, cache_enabled=False)


def _of_all(of_share: Callable[..., _Result], each: Sequence[Sequence[Any]]) -> list[_Result]:
    """What each share gives, computed by a thread for each of them; an error of one is the caller's."""
    pool = _threads(len(each))
    begun = [pool.submit(of_share, *arguments) for arguments in each]
    wait(begun)  # even if one fails: none is left that still computes
    return [share.result() for share in begun]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    """So many threads, each of which computes alone."""
    before = torch.get_num_threads()
    met = threading.Barrier(count)  # that all are there

    def alone() -> None:
        torch.get_num_threads()  # the first call gives a thread the number of all
        torch.set_num_threads(1)  # and this one its own
        met.wait()

    pool = ThreadPoolExecutor(count, "vitreous-share")
    try:
        wait([pool.submit(alone) for _ in range(count)])
    except BaseException:  # the system has no more threads: those that wait must not wait for ever
        met.abort()
        raise
    finally:
        torch.set_num_threads(before)  # it is also what threads begin with from then on
    return pool
