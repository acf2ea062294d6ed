"""Trial steps of an assembled run, which measure time and memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from vitreous.data.batches.dataset import Batch, MemoryDataset, PairedDataset
from vitreous.data.batches.sampler import BatchPlan
from vitreous.errors import TrainingError
from vitreous.machine.peak_memory import MemoryMeter
from vitreous.model.vit import VisionTransformer
from vitreous.train.assembly import Session
from vitreous.train.loop.out_of_memory import is_out_of_memory, more_parts, release_memory
from vitreous.train.loop.trainer import build_trainer
from vitreous.train.setup import Setup

__all__ = ["Trials", "backbone_of", "synchronize", "training_batch", "validation_seconds"]

_WARM_UP = 2  # untimed steps at the start
_MIN_STEPS, _MAX_STEPS, _SECONDS = 8, 40, 8.0  # timed steps, and the time for all phases together
_VALIDATION_BATCHES = 8  # timed after a first, untimed one
_KEPT_FREE = 0.1  # fraction of the free memory that the largest batch does not use
_CLEAR_GROWTH = 64 << 20  # bytes of growth between two batch sizes from which a slope can be read
_LARGER_SIZES = 4  # batch sizes beyond that of the run that are tried to see growth


class Trials:
    """Trial steps of several batch sizes, and the memory in bytes that each needed."""

    def __init__(self, session: Session, meter: MemoryMeter) -> None:
        self.session, self.meter = session, meter
        self.size = min(session.setup.config.batch_size, len(session.setup.data.splits["train"]))
        self.before = meter.begin()  # memory in use before the first step
        self.free = meter.left() if meter.works else None  # None if the device does not report it
        self.growth: dict[int, int] = {}  # peak memory above `before`, by the size of the micro-batch
        self.last_growth = 0  # that of the last trial
        self.fixed = 0  # weights, gradients, optimiser state and moving average

    def record_growth(self, size: int, growth: int) -> None:
        """Record the memory of a trial; the largest counts, since on a CPU freed memory stays with the process."""
        self.growth[size] = max(growth, self.growth.get(size, 0))

    def choose_micro_batch(self) -> int:
        """Find the largest micro-batch that fits, by splitting the steps as a run does."""
        sampler = self.session.setup.data_module.train_sampler
        while True:
            size = -(-self.size // sampler.accumulate)
            try:
                for small in sorted({max(1, size // 8), max(1, size // 4)}):
                    self.probe(small)
                if self.fits(size):
                    self.probe(size)
                    return size
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            parts = more_parts(sampler.batch_size, sampler.accumulate)
            if parts is None:
                raise TrainingError(
                    "a single image does not fit into memory: choose a smaller --model or a smaller image size"
                )
            self.growth = {tried: growth for tried, growth in self.growth.items() if tried <= size}
            release_memory()
            self.session.setup.data_module.set_accumulation(parts)

    def probe(self, size: int) -> None:
        """Make two steps of one micro-batch, as at the end of the run, when they need most memory."""
        with self._at(1.0):
            module = self.session.module
            module.accumulate = 1
            batch = training_batch(self.session, size)
            twice: Any = [batch, batch]  # a dataset of two equal batches
            self._fit(DataLoader(twice, batch_size=None, collate_fn=lambda item: item), _StepTimer(2))
            self.fixed = _fixed_bytes(module, self.session.trainer)
            self.record_growth(size, self.last_growth)

    def time_phases(self) -> list[list[float]]:
        """Time steps of each phase of the run with its own data loader, in seconds."""
        phases, seconds = self.session.setup.config.phases, []
        for start, end in phases:
            timer = _StepTimer(_MAX_STEPS + _WARM_UP, _SECONDS / len(phases))
            with self._at((start + end) / 2):
                self._fit(self.session.setup.data_module.train_dataloader(), timer)
            seconds.append(timer.seconds)
        return seconds

    @contextlib.contextmanager
    def _at(self, progress: float) -> Iterator[None]:
        """Rebuild the session so that all steps are at one point of the run."""
        model = backbone_of(self.session.setup)
        dropped = model.patch_dropout
        self.session.rebuild(None)
        self.session.module.progress = lambda _: progress
        self.session.module.measures_start = False
        try:
            yield
        finally:
            model.patch_dropout = dropped

    def _fit(self, batches: Iterable[Any], timer: _StepTimer) -> None:
        session = self.session
        session.trainer = _trial_trainer(session, timer)
        self.meter.begin()
        session.trainer.fit(session.module, train_dataloaders=batches)
        self.last_growth = max(0, self.meter.most() - self.before)
        session.setup.model.zero_grad(set_to_none=True)

    def _bytes_per_image(self) -> float:
        small, large = min(self.growth), max(self.growth)
        if small == large:
            return float(self.session.setup.cost.activation_bytes)
        return max((self.growth[large] - self.growth[small]) / (large - small), 0.0)

    def _available(self) -> int:
        return int((self.free or 0) * (1 - _KEPT_FREE))

    def fits(self, size: int) -> bool:
        """Predict from the sizes tried so far whether another one fits."""
        if self.free is None or not self.growth:
            return True
        largest = max(self.growth)
        return self.growth[largest] + (size - largest) * self._bytes_per_image() <= self._available()

    def largest(self, size: int) -> tuple[int | None, bool]:
        """Estimate the largest micro-batch that fits, at least `size`, and say whether a step of it was made."""
        if self.free is None:
            return None, False
        most = len(self.session.setup.data.splits["train"])
        for _ in range(_LARGER_SIZES):
            larger = 2 * max(self.growth)
            clear = self.growth[max(self.growth)] - self.growth[min(self.growth)] >= _CLEAR_GROWTH
            if clear or larger > most or not self.fits(larger):
                break
            self.probe(larger)
        tried = max(self.growth)
        more = (self._available() - self.growth[tried]) / max(self._bytes_per_image(), 1.0)
        largest = max(size, min(most, int(tried + max(more, 0))))
        if self.meter.device.type == "cuda":
            return self._try_down_from(largest, size), True
        return largest, largest <= tried

    def _try_down_from(self, largest: int, size: int) -> int:
        while largest > size:
            try:
                self.probe(largest)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            else:
                return largest
            release_memory()
            largest = max(size, int(largest * (1 - _KEPT_FREE)))
        return largest


class _StepTimer(Callback):
    """Time steps after a warm-up, and end training after some steps or some seconds."""

    def __init__(self, max_steps: int, max_seconds: float = float("inf")) -> None:
        self.max_steps, self.max_seconds = max_steps, max_seconds
        self.seconds: list[float] = []
        self._last: float | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._steps = 0
        self._warmed_up: float | None = None

    def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any) -> None:
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        synchronize(pl_module.device)
        now = time.monotonic()
        if self._steps > _WARM_UP and self._last is not None:
            self.seconds.append(now - self._last)
        elif self._steps == _WARM_UP:
            self._warmed_up = now
        self._last = now
        timed_out = self._warmed_up is not None and now - self._warmed_up > self.max_seconds
        if self._steps >= self.max_steps or (timed_out and len(self.seconds) >= _MIN_STEPS):
            trainer.should_stop = True


class _BatchTimer(Callback):
    """Record when each batch of a validation ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_validation_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any, **__: Any
    ) -> None:
        synchronize(pl_module.device)
        self.times.append(time.monotonic())


def synchronize(device: torch.device) -> None:
    """Wait until a device has computed all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _trial_trainer(session: Session, callback: Callback) -> lightning.Trainer:
    """Build a Trainer like that of the run, but with one callback and without validation."""
    setup = session.setup
    trainer = build_trainer(session.run_dir.path, setup.device, setup.precision, [callback], [])
    trainer.limit_val_batches = 0
    return trainer


def backbone_of(setup: Setup) -> VisionTransformer:
    """Return the model that is trained: that of an objective in pretraining."""
    found: VisionTransformer = getattr(setup.model, "trained_backbone", setup.model)
    return found


def training_batch(session: Session, size: int) -> Batch:
    """Load a training batch of any size by repeating images."""
    loading = session.setup.data_module
    dataset: Any = loading.train_dataloader().dataset
    if isinstance(dataset, PairedDataset):
        dataset = dataset.labelled
    images = len(session.setup.data.splits["train"])
    distinct = min(size, images) if isinstance(dataset, MemoryDataset) else min(size, 16)  # reading files takes time
    batch: Batch = dataset[BatchPlan(0, 0, 0, np.arange(distinct))]
    if isinstance(batch, Exception):
        raise batch
    copies = torch.arange(size) % distinct
    tensors = ("images", "labels", "index", "boxes", "aspect")
    repeated = {key: value[copies] if key in tensors else value for key, value in batch.items()}
    if loading.num_beside:  # of the labelled images again: their content does not matter
        ratio = loading.num_beside / loading.train_sampler.batch_size
        others = torch.arange(max(1, round(size * ratio))) % distinct
        repeated["unlabelled"] = {key: value[others] if key in tensors else value for key, value in batch.items()}
    return repeated


def _fixed_bytes(module: Any, trainer: lightning.Trainer) -> int:
    tensors = [*module.model.parameters(), *module.model.buffers()]
    tensors += [p for p in module.model.parameters() if p.requires_grad]  # gradients have the size of their parameters
    tensors += [*module.extra.parameters()] * 2 if module.extra is not None else []
    tensors += list(module.average.state_dict().values()) if module.average is not None else []
    for state in trainer.optimizers[0].state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors)


def validation_seconds(session: Session) -> float:
    """Estimate the time of a mean epoch's validation from a few batches."""
    timer = _BatchTimer()
    trainer = _trial_trainer(session, timer)
    trainer.limit_val_batches = _VALIDATION_BATCHES + 1
    loader = session.setup.data_module.val_dataloader()
    trainer.validate(session.module, dataloaders=loader, verbose=False)
    started, warm_up = time.monotonic(), len(timer.times)
    trainer.validate(session.module, dataloaders=loader, verbose=False)
    besides = session.module.mean_extra_seconds
    if len(loader) <= _VALIDATION_BATCHES:
        return (timer.times[-1] if besides else time.monotonic()) - started + besides
    return len(loader) * (timer.times[-1] - timer.times[warm_up]) / _VALIDATION_BATCHES + besides
