"""Loaders of a run: samplers and datasets combined, for any training loop.

The order of batches is in sampler.py, their content in dataset.py, their augmentation in augment/pipeline.py.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import torch
from torch.utils.data import DataLoader

from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.augment.resized_crop import RandomResizedCrop
from vitreous.data.batches.dataset import Batch, MemoryDataset, PairedDataset, StreamedDataset, decoded_bytes
from vitreous.data.batches.sampler import OrderedSampler, Share, TrainSampler, UnlabelledOrder, Window
from vitreous.data.config import AugmentConfig, DataConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.image_data import ImageData, Split
from vitreous.data.sources.scan import Progress
from vitreous.errors import DataError, VitreousError
from vitreous.machine.cores import num_cores

__all__ = ["BatchLoader", "ImageLoaders"]

_GRACE = 5  # seconds that a worker keeps running after SIGTERM


class ImageLoaders:
    """Training, validation and test loaders of labelled images.

    If all splits fit into memory, :meth:`setup` decodes them once; otherwise workers decode them from files.

    Args:
        data: The splits `train`, `val` and optionally `test`.
        pipeline: The evaluation pipeline; provides size and channels.
        augment: Augmentation of training batches.
        batch_size: Images per optimiser step.
        accumulate: Batches per optimiser step, the Trainer's `accumulate_grad_batches`.
        seed: Seed of the order and of all augmentation.
        workers: Processes that decode streamed images; None: one per core, at most 16.
        memory_gb: GiB that all decoded splits together may use in memory.
        label_smoothing: Label smoothing of the training targets.
        balanced: Show all classes equally often in training (:func:`vitreous.data.batches.sampler.balanced_order`).
        views: Number of fixed views that each training image has, as in
            :class:`~vitreous.data.augment.pipeline.BatchAugment`; None draws new ones in each epoch.
        shuffle_shards: Shards that are mixed at a time, for images in shards.
        unlabelled_ratio: Images without a label that come with each labelled one, if the data has some; 0 for none.
        unlabelled_whole: Whether they are also needed without their random crop.
        crop_on_device: Leave random resized crops to the device, which may cut several from each image.
        progress: Called with (done, total) while a split is decoded.
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
        views: int | None = None,
        shuffle_shards: int = DataConfig.shuffle_shards,
        unlabelled_ratio: float = 0.0,
        unlabelled_whole: bool = False,
        crop_on_device: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.data, self.pipeline, self.augment = data, pipeline, augment or AugmentConfig()
        self.batch_size, self.accumulate, self.seed = batch_size, accumulate, seed
        self.progress = progress
        self.batch_augment = BatchAugment(self.augment, pipeline, len(data.classes), seed, label_smoothing, views=views)
        train = data.splits["train"]
        window = Window.of(train.shard_of(), shuffle_shards)
        balance = train.labels if balanced else None
        self.train_sampler = TrainSampler(len(train), batch_size, accumulate, seed, balance, window=window)
        self.splits = dict(data.splits)
        if data.unlabelled is not None and unlabelled_ratio > 0:
            self.splits["unlabelled"] = data.unlabelled
            self.train_sampler.beside = self._order_beside(data.unlabelled, unlabelled_ratio, shuffle_shards)
        is_cut = self.augment.resized_crop < 1
        self._crop = RandomResizedCrop(pipeline, self.augment, seed, views, crop_on_device) if is_cut else None
        self._unlabelled_crop = replace(self._crop, keeps_whole=unlabelled_whole) if self._crop is not None else None
        self.in_memory = self.decoded_bytes <= memory_gb * 2**30
        self.workers = min(num_cores(), 16) if workers is None else workers
        self._datasets: dict[str, MemoryDataset | StreamedDataset] = {}
        self._share: Share | None = None

    def setup(self, stage: str | None = None) -> None:
        """Decode the splits that a stage needs, once, if they are held in memory."""
        stages = {"fit": ("train", "val", "unlabelled"), "validate": ("val",), "test": ("test",)}
        for name in stages.get(stage or "", self.splits):
            if name in self.splits:
                self._dataset(name)

    def train_dataloader(self) -> BatchLoader:
        """Return the training batches of the current epoch, uint8 and not augmented."""
        dataset: MemoryDataset | StreamedDataset | PairedDataset = self._dataset("train")
        if self.num_beside:
            dataset = PairedDataset(self._dataset("train"), self._dataset("unlabelled"))
        return BatchLoader(dataset, self.train_sampler, self._loader_workers)

    def val_dataloader(self) -> BatchLoader:
        """Return the validation batches, in order."""
        return self._ordered_loader("val", self._dataset("val"), self._loader_workers, self._share)

    def test_dataloader(self) -> BatchLoader:
        """Return the test batches, in order."""
        return self._ordered_loader("test", self._dataset("test"), self._loader_workers, self._share)

    def feature_dataloader(self, name: str) -> BatchLoader:
        """Return all images of any split, in order and not augmented, for feature extraction."""
        if self._crop_of(name) is not None:  # memory holds images that are still to be cropped
            split = self.data.splits[name]
            streamed = StreamedDataset(split, self.pipeline)
            return self._ordered_loader(name, streamed, self.workers if split.paths else 0, None)
        return self._ordered_loader(name, self._dataset(name), self._loader_workers, None)

    def view_dataloader(self, view: int) -> BatchLoader:
        """Return the training images in order, as :meth:`train_dataloader` yields them in the epoch ``view``."""
        return self._ordered_loader("train", self._dataset("train"), self._loader_workers, epoch=view)

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps per epoch; images that do not fill the last step are left out of the epoch."""
        return self.train_sampler.steps

    @property
    def decoded_bytes(self) -> int:
        """Bytes that all splits take when they are held in memory."""
        return sum(decoded_bytes(split, self.pipeline, self._crop_of(name)) for name, split in self.splits.items())

    @property
    def num_beside(self) -> int:
        """Unlabelled images that come with the labelled ones of a step."""
        return self.train_sampler.beside.per_step if self.train_sampler.beside is not None else 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration over the training loader; a Trainer does this itself."""
        self.train_sampler.set_epoch(epoch)

    def restarted(self) -> Self:
        """Return loaders for another training on the same images, which shares those that are decoded."""
        other, used = copy.copy(self), self.train_sampler
        other.train_sampler = TrainSampler(
            used.num_images, self.batch_size, self.accumulate, self.seed, used.balance, window=used.window
        )
        other.train_sampler.beside = used.beside
        return other

    def set_accumulation(self, accumulate: int) -> None:
        """Set the number of batches per optimiser step from the next iteration on; steps and order do not change."""
        self.accumulate = self.train_sampler.accumulate = accumulate

    def set_share(self, share: Share) -> None:
        """Let this process load its share of each batch only; others load the rest."""
        self._share = self.train_sampler.share = share

    def _dataset(self, name: str) -> MemoryDataset | StreamedDataset:
        if name not in self.splits:
            raise DataError(f"{self.data.name} has no '{name}' split, it has {', '.join(self.splits)}")
        if name not in self._datasets:
            split, crop = self.splits[name], self._crop_of(name)
            if self.in_memory:
                self._datasets[name] = MemoryDataset(split, self.pipeline, crop, self.progress)
            else:
                self._datasets[name] = StreamedDataset(split, self.pipeline, crop)
        return self._datasets[name]

    def _crop_of(self, name: str) -> RandomResizedCrop | None:
        return {"train": self._crop, "unlabelled": self._unlabelled_crop}.get(name)

    def _order_beside(self, split: Split, ratio: float, shuffle_shards: int) -> UnlabelledOrder:
        """Return which unlabelled images come with each step."""
        sampler, window = self.train_sampler, Window.of(split.shard_of(), shuffle_shards)
        per_step = max(1, round(ratio * sampler.batch_size))
        return UnlabelledOrder(len(split), per_step, sampler.batch_size, sampler.steps, self.seed, window)

    def _ordered_loader(
        self,
        name: str,
        dataset: MemoryDataset | StreamedDataset,
        workers: int,
        share: Share | None = None,
        epoch: int = 0,
    ) -> BatchLoader:
        batch_size = max(1, self.batch_size // self.accumulate)
        sampler = OrderedSampler(len(self.data.splits[name]), batch_size, share, epoch)
        return BatchLoader(dataset, sampler, workers)

    @property
    def _loader_workers(self) -> int:
        return 0 if self.in_memory else self.workers


class BatchLoader(DataLoader[Batch | VitreousError]):
    """A DataLoader whose sampler yields the plans of whole batches, and that a checkpoint can resume at any batch.

    Lightning checkpoints hold its state, which counts the batches yielded, not those that workers have prefetched.
    ``vitreous train`` writes no such checkpoints: it restores the position from its own record of a run.
    """

    def __init__(
        self,
        dataset: MemoryDataset | StreamedDataset | PairedDataset,
        sampler: TrainSampler | OrderedSampler,
        workers: int,
    ) -> None:
        super().__init__(
            dataset,
            batch_size=None,
            sampler=sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=_defer_signals,
            pin_memory=torch.cuda.is_available(),
        )
        self._yielded = 0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self._yielded = self.sampler.start if isinstance(self.sampler, TrainSampler) else 0
        for batch in super().__iter__():
            if isinstance(batch, VitreousError):
                try:
                    raise batch
                finally:
                    del batch  # a cycle: torch waits 10 seconds for each worker that the garbage collector ends
            self._yielded += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the epoch, the number of batches yielded, and what the order depends on."""
        if not isinstance(self.sampler, TrainSampler):
            return {}
        return {**self.sampler.identity(), "epoch": self.sampler.epoch, "batch": self._yielded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the position of a checkpoint."""
        if isinstance(self.sampler, TrainSampler):
            self.sampler.check(state)
            self.sampler.seek(state["epoch"], state["batch"])


def _defer_signals(worker: int) -> None:
    """Keep a worker running after Ctrl-C and SIGTERM, which reach all processes: the main one still needs its batches.

    SIGTERM ends the worker after a delay: when Python exits, it sends SIGTERM to the remaining workers and waits.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(_GRACE))
