"""Samplers: which images form which batch, and in which order, as a function of (seed, epoch).

A sampler yields the plan of a whole batch, so the number of workers cannot change the order. With gradient
accumulation, several batches form one optimiser step. If several processes train one model, each gets a :class:`Share`
of every batch, and the shares add up to the batch that a single process would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from vitreous.data.rng import generator
from vitreous.errors import CheckpointError

__all__ = ["BatchPlan", "OrderedSampler", "Share", "TrainSampler", "UnlabelledOrder", "Window", "balanced_order"]


class BatchPlan(NamedTuple):
    """The images of one batch and its position in the run."""

    epoch: int
    step: int  # optimiser step within the epoch
    offset: int  # of the first image within the step; above 0 only with gradient accumulation
    indices: npt.NDArray[np.int64]  # (B,) positions in the split
    positions: npt.NDArray[np.int64] | None = None  # (B,) positions in the step, where a process has a share of a batch
    whole: int | None = None  # number of images of the batch in all processes, where a process has a share of it
    unlabelled: BatchPlan | None = None  # images without a label that are loaded with the batch


class Share(NamedTuple):
    """Which part of every batch a process gets: that of process `rank` out of `world`."""

    rank: int
    world: int

    def of_batch(self, count: int) -> npt.NDArray[np.int64]:
        """Return this process's positions in a training batch of `count` images.

        Images (0, 1), (2, 3), ... stay together, because :func:`vitreous.data.augment.mixing.partners` mixes them. The
        last of an odd number is mixed with the first, so the first process gets it.
        """
        pairs = count // 2
        own = np.arange(2 * (pairs * self.rank // self.world), 2 * (pairs * (self.rank + 1) // self.world))
        return np.append(own, count - 1) if count % 2 and self.rank == 0 else own


class Window(NamedTuple):
    """How images in shards are shuffled: those of a few shards at a time, which a cache can hold."""

    shard_of: npt.NDArray[np.int64]  # (n,) number of the shard of each image
    shards: int  # that are mixed at a time

    @classmethod
    def of(cls, shard_of: npt.NDArray[np.int64] | None, shards: int) -> Window | None:
        """Return the window of images in shards; None if there are so few shards that all are mixed."""
        return None if shard_of is None or int(shard_of.max()) < shards else cls(shard_of, shards)

    def shuffle(self, images: npt.NDArray[np.int64], draws: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return images (m,) in random order; those of a shard lie within a part of it that is `shards` shards long.

        Of S shards in random order, that at position p begins at p and each of its images follows it by up to `shards`,
        uniformly and modulo S. `shards` of them are mixed at any time, so the last ones are also among the first.
        """
        count = int(self.shard_of.max()) + 1
        position = draws.permutation(count)
        keys = (position[self.shard_of[images]] + self.shards * draws.random(len(images))) % count
        return images[np.argsort(keys, kind="stable")]


@dataclass(frozen=True, eq=False)
class UnlabelledOrder:
    """Which unlabelled images each step gets: those that follow the ones of the step before.

    The order runs through all of them again and again, whatever the length of an epoch of labelled images.

    Args:
        num_images: Number of unlabelled images.
        per_step: How many of them a step gets.
        batch_size: Labelled images of a step, after which the unlabelled ones are numbered for augmentation.
        steps: Steps of an epoch.
        seed: Seed of the order.
        window: How images in shards are shuffled; None mixes all images.
    """

    num_images: int
    per_step: int
    batch_size: int
    steps: int
    seed: int
    window: Window | None = None
    _kept: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)  # of the last pass

    def plan(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> BatchPlan:
        """Return the images of part ``part`` of the ``parts`` of a step."""
        first, end = (self.per_step * edge // parts for edge in (part, part + 1))
        start = (epoch * self.steps + step) * self.per_step
        return BatchPlan(epoch, step, self.batch_size + first, self._images(start + first, start + end))

    def _images(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the images from ``start`` to ``end`` of all passes in a row."""
        found = [np.empty(0, np.int64)]
        while start < end:
            turn, at = divmod(start, self.num_images)
            found.append(self._order(turn)[at : at + end - start])
            start += len(found[-1])
        return np.concatenate(found)

    def _order(self, turn: int) -> npt.NDArray[np.int64]:
        """Return all images in the order of a pass through them, which is drawn once for all its steps."""
        if turn not in self._kept:
            draws, images = generator(self.seed, turn, stream="unlabelled"), np.arange(self.num_images)
            self._kept.clear()
            self._kept[turn] = draws.permutation(images) if self.window is None else self.window.shuffle(images, draws)
        return self._kept[turn]


class TrainSampler(Sampler[BatchPlan]):
    """Yield the batches of an epoch in random order; resumable at any batch.

    The images that do not fill the last step of an epoch are left out of that epoch. A split smaller than one step
    forms a single smaller step.

    Args:
        num_images: Number of images.
        batch_size: Images per optimiser step.
        accumulate: Batches per optimiser step; the order does not depend on it.
        seed: Seed of the order.
        balance: Class of each image, (num_images,), to show all classes equally often; None: each image once per epoch.
        window: How images in shards are shuffled; None mixes all images.
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int,
        accumulate: int = 1,
        seed: int = 0,
        balance: npt.NDArray[np.int64] | None = None,
        *,
        window: Window | None = None,
    ) -> None:
        self.num_images, self.batch_size = num_images, min(batch_size, num_images)
        self.accumulate = min(accumulate, self.batch_size)
        self.seed, self.balance, self.window = seed, balance, window
        self.share: Share | None = None  # the part of each batch that this process gets; None is all of it
        self.beside: UnlabelledOrder | None = None  # the unlabelled images of each batch
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[BatchPlan]:
        """Yield the batches of the current epoch, from the batch that :meth:`seek` chose or from the first."""
        epoch, start, self.start = self.epoch, self.start, 0
        order = self.order(epoch)
        for batch in range(start, len(self)):
            step, micro_batch = divmod(batch, self.accumulate)
            in_step = order[step * self.batch_size : (step + 1) * self.batch_size]
            first = self.batch_size * micro_batch // self.accumulate
            end = self.batch_size * (micro_batch + 1) // self.accumulate
            if self.beside is not None:
                others = self.beside.plan(epoch, step, micro_batch, self.accumulate)
                yield BatchPlan(epoch, step, first, in_step[first:end], unlabelled=others)
            elif self.share is None:
                yield BatchPlan(epoch, step, first, in_step[first:end])
            else:
                positions = first + self.share.of_batch(end - first)
                yield BatchPlan(epoch, step, first, in_step[positions], positions, end - first)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the images of an epoch in their order."""
        if self.balance is not None:
            order = balanced_order(self.balance, self.seed, epoch)
            return order if self.window is None else self.window.shuffle(order, self._draws(epoch))
        if self.window is not None:
            return self.window.shuffle(np.arange(self.num_images), self._draws(epoch))
        return self._draws(epoch).permutation(self.num_images)

    def _draws(self, epoch: int) -> np.random.Generator:
        return generator(self.seed, epoch, stream="order")

    @property
    def steps(self) -> int:
        """Optimiser steps per epoch."""
        return self.num_images // self.batch_size

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, also while one is resumed."""
        return self.steps * self.accumulate

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch. Lightning calls it; the current epoch keeps the start that :meth:`seek` set."""
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def seek(self, epoch: int, batch: int) -> None:
        """Start the next iteration at a batch of an epoch."""
        self.epoch, self.start = epoch, batch

    def identity(self) -> dict[str, Any]:
        """Return what the order depends on besides the epoch."""
        counts = {
            "seed": self.seed,
            "images": self.num_images,
            "batch_size": self.batch_size,
            "accumulate": self.accumulate,
        }
        window = {} if self.window is None else {"shuffle_shards": self.window.shards}
        beside = {} if self.beside is None else {"unlabelled": self.beside.num_images, "per_step": self.beside.per_step}
        return counts | window | beside | {"balanced": self.balance is not None}

    def check(self, state: dict[str, Any]) -> None:
        """Raise CheckpointError unless the :meth:`identity` of a checkpoint is this one."""
        differing = [
            f"{key} was {state.get(key)}, now {now}" for key, now in self.identity().items() if state.get(key) != now
        ]
        if differing:
            raise CheckpointError(f"the run cannot be resumed with other batches: {'; '.join(differing)}")


def balanced_order(labels: npt.NDArray[np.int64], seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return an order of an epoch in which all classes have the same number of images, to within one.

    Within a class no image is repeated before every image has been used. ``labels`` and the result have shape (n,).
    """
    draws = generator(seed, epoch, stream="balanced")
    classes = np.unique(labels)
    quotient, remainder = divmod(len(labels), len(classes))
    counts = quotient + (draws.permutation(len(classes)) < remainder)
    chosen = []
    for label, count in zip(classes, counts.tolist(), strict=True):
        members = np.flatnonzero(labels == label)
        repeats, rest = divmod(count, len(members))
        chosen += [members] * repeats + [draws.permutation(members)[:rest]]
    return draws.permutation(np.concatenate(chosen))


class OrderedSampler(Sampler[BatchPlan]):
    """Yield all images in order, for evaluation; the last batch may be smaller.

    Of several processes each gets whole batches in turn, the same that one process would compute. All get the same
    number, so the last ones may be empty. ``epoch`` is that of the plans; where images have fixed views, it selects one
    of them.
    """

    def __init__(self, num_images: int, batch_size: int, share: Share | None = None, epoch: int = 0) -> None:
        self.num_images, self.batch_size, self.epoch = num_images, batch_size, epoch
        self.share = share or Share(0, 1)

    def __iter__(self) -> Iterator[BatchPlan]:
        for turn in range(len(self)):
            step = turn * self.share.world + self.share.rank
            first = min(step * self.batch_size, self.num_images)
            indices = np.arange(first, min(first + self.batch_size, self.num_images))
            yield BatchPlan(self.epoch, step, 0, indices)

    def __len__(self) -> int:
        per_turn = self.batch_size * self.share.world
        return (self.num_images + per_turn - 1) // per_turn
