"""The order of training: which images make which batch, as a function of (seed, epoch), resumable at any batch.

A sampler's item is the plan of a whole batch, so that workers cannot change the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from vitreous.data.rng import generator
from vitreous.errors import CheckpointError

__all__ = ["BatchPlan", "OrderedPlans", "TrainPlans", "balanced_order"]


class BatchPlan(NamedTuple):
    """One batch before any picture is read.

    Args:
        epoch: Epoch, from 0.
        step: Optimiser step within the epoch, from 0.
        offset: Position of the first image within the step; above 0 only with gradient accumulation.
        indices: (B,) positions in the split.
    """

    epoch: int
    step: int
    offset: int
    indices: npt.NDArray[np.int64]


def balanced_order(labels: npt.NDArray[np.int64], seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """An epoch's order in which every class has the same number of images, but for one where they do not divide evenly.

    Within a class no image comes twice before each has come once.

    Args:
        labels: Class of each image, (n,).
        seed: Of the draws.
        epoch: From 0.

    Returns:
        Positions (n,) in random order.
    """
    draws = generator(seed, epoch, stream="balanced")
    classes = np.unique(labels)
    share, rest = divmod(len(labels), len(classes))
    counts = share + (draws.permutation(len(classes)) < rest)
    chosen = []
    for label, count in zip(classes, counts.tolist(), strict=True):
        members = np.flatnonzero(labels == label)
        whole, part = divmod(count, len(members))
        chosen += [members] * whole + [draws.permutation(members)[:part]]
    return draws.permutation(np.concatenate(chosen))


class TrainPlans(Sampler[BatchPlan]):
    """Every epoch in its own random order; the last images that fill no step are left out of that epoch.

    Args:
        images: Number of images. A set smaller than one step is one smaller step.
        batch_size: Images per optimiser step.
        accumulate: Batches that a step is cut into; the order is the same for every value.
        seed: Of the order.
        balance: Classes of the images, (images,), to show equally often; None shows each image once an epoch.
    """

    def __init__(
        self,
        images: int,
        batch_size: int,
        accumulate: int = 1,
        seed: int = 0,
        balance: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.images = images
        self.batch_size = min(batch_size, images)
        self.parts = min(accumulate, self.batch_size)
        self.seed = seed
        self.balance = balance
        self.epoch = 0
        self.start = 0

    @property
    def steps(self) -> int:
        """Optimiser steps in an epoch."""
        return self.images // self.batch_size

    def __len__(self) -> int:
        """Batches in a whole epoch, also while one is resumed."""
        return self.steps * self.parts

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, as Lightning tells; the epoch that :meth:`seek` chose goes on where it was."""
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def seek(self, epoch: int, batch: int) -> None:
        """Let the next pass begin at a batch of an epoch."""
        self.epoch, self.start = epoch, batch

    def __iter__(self) -> Iterator[BatchPlan]:
        """Plans from the start, which is 0 unless :meth:`seek` moved it for this one pass."""
        epoch, start, self.start = self.epoch, self.start, 0
        order = (
            generator(self.seed, epoch, stream="order").permutation(self.images)
            if self.balance is None
            else balanced_order(self.balance, self.seed, epoch)
        )
        for batch in range(start, len(self)):
            step, part = divmod(batch, self.parts)
            first, last = (self.batch_size * edge // self.parts for edge in (part, part + 1))
            yield BatchPlan(epoch, step, first, order[step * self.batch_size :][first:last])

    def identity(self) -> dict[str, Any]:
        """What the order depends on besides the epoch."""
        counts = {"seed": self.seed, "images": self.images, "batch_size": self.batch_size, "parts": self.parts}
        return counts | {"balanced": self.balance is not None}

    def check(self, state: dict[str, Any]) -> None:
        """Compare with a saved state.

        Raises:
            CheckpointError: If the state is of another order of batches.
        """
        differing = [
            f"{key} was {state.get(key)}, now {now}" for key, now in self.identity().items() if state.get(key) != now
        ]
        if differing:
            raise CheckpointError(f"the run cannot go on with other batches: {'; '.join(differing)}")


class OrderedPlans(Sampler[BatchPlan]):
    """All images in order, for evaluation; the last batch may be smaller."""

    def __init__(self, images: int, batch_size: int) -> None:
        self.images, self.batch_size = images, batch_size

    def __len__(self) -> int:
        """Batches."""
        return (self.images + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[BatchPlan]:
        """Plans of epoch 0."""
        for step in range(len(self)):
            first = step * self.batch_size
            yield BatchPlan(0, step, 0, np.arange(first, min(first + self.batch_size, self.images)))
