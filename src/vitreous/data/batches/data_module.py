"""The loaders of a run: training batches in an order that (seed, epoch) gives, evaluation batches in order.

What a batch is stands in batches.py, the order in plans.py, what a training batch goes through in augment.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.batches.dataset import Batch, MemoryBatches, Progress, StreamedBatches, cores, held_bytes
from vitreous.data.batches.sampler import OrderedPlans, TrainPlans
from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import ImageData
from vitreous.errors import DataError, VitreousError

__all__ = ["ImageDataModule", "PlanLoader"]


def _as_it_is(batch: Any) -> Any:
    return batch


_GRACE = 5  # seconds that a worker goes on after a SIGTERM


def _outlast_signals(worker: int) -> None:
    """In a worker: Ctrl-C and a scheduler's SIGTERM reach all processes, and the main one still wants its batches.

    SIGTERM is not ignored for good: Python ends with it the workers that are left when it exits, and waits for them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(_GRACE))


class PlanLoader(DataLoader[Batch | VitreousError]):
    """A loader whose sampler gives plans of whole batches, and which a checkpoint can stop and go on at any batch.

    Lightning saves and restores its state. The state counts the batches that were handed out, not those that workers
    have prefetched.
    """

    def __init__(
        self, dataset: MemoryBatches | StreamedBatches, plans: TrainPlans | OrderedPlans, workers: int
    ) -> None:
        super().__init__(
            dataset,
            batch_size=None,
            sampler=plans,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_as_it_is,
            worker_init_fn=_outlast_signals,
            pin_memory=torch.cuda.is_available(),
        )
        self.plans = plans
        self._given = 0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Batches of the epoch that the plans are at.

        Raises:
            DataError: If a picture cannot be read any more.
        """
        self._given = self.plans.start if isinstance(self.plans, TrainPlans) else 0
        for batch in super().__iter__():
            if isinstance(batch, VitreousError):
                raise batch
            self._given += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: epoch, batches handed out, and what the order depends on."""
        if not isinstance(self.plans, TrainPlans):
            return {}
        return {**self.plans.identity(), "epoch": self.plans.epoch, "batch": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            CheckpointError: If the state is of another order of batches.
        """
        if isinstance(self.plans, TrainPlans):
            self.plans.check(state)
            self.plans.seek(state["epoch"], state["batch"])


class ImageDataModule(LightningDataModule):
    """Loaders over labelled pictures, for any LightningModule.

    Splits that fit into memory are decoded once by :meth:`setup`; others stream from files through workers.

    In a script of your own, ``ready=True`` gives a module what it expects, augmented on the device::

        data = open_source(DataConfig("digits"))
        pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
        Trainer(max_epochs=5).fit(my_module, ImageDataModule(data, pipeline, ready=True))

    Args:
        data: The splits `train`, `val` and, if there is one, `test`.
        pipeline: The evaluation pipeline; gives size and channels.
        augment: How training batches vary.
        batch_size: Images per optimiser step.
        accumulate: Batches that each step is cut into, as Trainer's `accumulate_grad_batches`.
        seed: Of the order and of every draw.
        workers: Processes that decode streamed pictures; None: one for each core, at most 16.
        memory_gb: GiB that all decoded splits may take together to be held in memory.
        label_smoothing: Of the training targets, with `ready`.
        balanced: Show every class equally often in training (:func:`vitreous.data.batches.sampler.balanced_order`).
        ready: Hand out (images float32, targets float32 (B, K)) for training and (images float32, labels) for
            evaluation, instead of the raw dicts that :mod:`vitreous.data.batches.dataset` describes.
        progress: Called with (done, all) while a split is decoded.
    """

    def __init__(
        self,
        data: ImageData,
        pipeline: EvalPipeline,
        augment: AugmentConfig | None = None,
        *,
        batch_size: int = 128,
        accumulate: int = 1,
        seed: int = 0,
        workers: int | None = None,
        memory_gb: float = 2.0,
        label_smoothing: float = 0.0,
        balanced: bool = False,
        ready: bool = False,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.data, self.pipeline, self.augment = data, pipeline, augment or AugmentConfig()
        self.batch_size, self.accumulate, self.seed = batch_size, accumulate, seed
        self.workers = min(cores(), 16) if workers is None else workers
        self.progress = progress
        self.ready = ready
        self.batch_augment = BatchAugment(self.augment, pipeline, len(data.classes), seed, label_smoothing)
        train = data.splits["train"]
        self.plans = TrainPlans(len(train), batch_size, accumulate, seed, train.labels if balanced else None)
        cropped = self.augment.resized_crop < 1
        needed = sum(held_bytes(split, pipeline, cropped and name == "train") for name, split in data.splits.items())
        self.in_memory = needed <= memory_gb * 2**30
        self._sets: dict[str, MemoryBatches | StreamedBatches] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in an epoch; images that do not fill the last one wait for another epoch."""
        return self.plans.steps

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass over the training loader; a Trainer does this by itself."""
        self.plans.set_epoch(epoch)

    def cut_steps(self, parts: int) -> None:
        """Cut the steps of the next pass into another number of parts: the order and the steps stay the same."""
        self.accumulate = self.plans.parts = parts

    def setup(self, stage: str | None = None) -> None:
        """Decode what is held in memory, once: train and val for fitting, test when it is tested."""
        wanted = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}.get(stage or "", self.data.splits)
        for name in wanted:
            if name in self.data.splits:
                self._set(name)

    def _set(self, name: str) -> MemoryBatches | StreamedBatches:
        if name not in self.data.splits:
            known = ", ".join(self.data.splits)
            raise DataError(f"{self.data.name} has no '{name}' split, it has {known}")
        if name not in self._sets:
            split, augment = self.data.splits[name], self.augment if name == "train" else None
            if self.in_memory:
                self._sets[name] = MemoryBatches(split, self.pipeline, augment, self.seed, self.progress)
            else:
                self._sets[name] = StreamedBatches(split, self.pipeline, augment, self.seed)
        return self._sets[name]

    def _ordered(self, name: str) -> PlanLoader:
        plans = OrderedPlans(len(self.data.splits.get(name, ())), max(1, self.batch_size // self.accumulate))
        return PlanLoader(self._set(name), plans, self._processes)

    def plain_dataloader(self, name: str) -> PlanLoader:
        """All pictures of any split, in order and as the evaluation pipeline has them: for features.

        Raises:
            DataError: If the data has no such split.
        """
        if name == "train" and self.augment.resized_crop < 1:  # what is held of it are canvases to cut from
            split = self.data.splits[name]
            plans = OrderedPlans(len(split), max(1, self.batch_size // self.accumulate))
            return PlanLoader(StreamedBatches(split, self.pipeline), plans, self.workers if split.paths else 0)
        return self._ordered(name)

    @property
    def _processes(self) -> int:
        return 0 if self.in_memory else self.workers

    def train_dataloader(self) -> PlanLoader:
        """Training batches of the current epoch, uint8 and not yet augmented unless `ready`."""
        return PlanLoader(self._set("train"), self.plans, self._processes)

    def val_dataloader(self) -> PlanLoader:
        """Validation batches, in order."""
        return self._ordered("val")

    def test_dataloader(self) -> PlanLoader:
        """Test batches, in order.

        Raises:
            DataError: If the data has no test split.
        """
        return self._ordered("test")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """With `ready`, augment or normalise on the device; Lightning calls it."""
        if not self.ready or not isinstance(batch, dict):
            return batch
        trainer = self.trainer
        if trainer is None or not trainer.training:
            return self.pipeline.normalise(batch["images"]), batch["labels"]
        progress = min(trainer.global_step / max(trainer.estimated_stepping_batches, 1), 1.0)
        return self.batch_augment.of_batch(batch, progress)
