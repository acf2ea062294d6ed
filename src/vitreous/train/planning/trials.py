"""Steps that are made only to see what they take, of a run that is put together but not begun."""

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

from vitreous.data.batches.dataset import Batch, MemoryBatches
from vitreous.data.batches.sampler import BatchPlan
from vitreous.errors import TrainingError
from vitreous.machine.peak_memory import Meter
from vitreous.train.assembly import Assembled, rebuild
from vitreous.train.out_of_memory import free_memory, is_out_of_memory, more_parts
from vitreous.train.trainer import build_trainer

__all__ = ["Trials", "validation_seconds"]

_WARM, _STEPS, _MOST_STEPS, _SECONDS = 2, 8, 40, 8.0  # untimed steps, timed ones at least and at most, and for how long
_VALIDATED = 8  # batches of a validation that are timed, after a first one that is not
_KEPT_FREE = 0.1  # share of the memory that is left which the largest batch leaves alone
_CLEAR = 64 << 20  # growth in bytes between two batch sizes from which a slope can be read
_PROBED = 4  # batch sizes that are tried beyond the run's own to see growth


class Trials:
    """Steps of several sizes, and what each took at most besides what is always there."""

    def __init__(self, this: Assembled, meter: Meter) -> None:
        self.this, self.meter = this, meter
        self.size = min(this.ready.config.batch_size, len(this.ready.data.splits["train"]))
        self.before = meter.begin()
        self.left = meter.left() if meter.works else None
        self.growth: dict[int, int] = {}
        self.last_growth = 0
        self.fixed = 0

    def add(self, part: int, growth: int) -> None:
        """Note what a size took; on the CPU the mark never falls, as freed memory is kept."""
        self.growth[part] = max(growth, self.growth.get(part, 0))

    def choose_part(self) -> int:
        """Find the pictures of a part that fit: the run's own, or fewer, as a run would cut them."""
        plans = self.this.ready.loading.plans
        while True:
            part = -(-self.size // plans.parts)
            try:
                for small in sorted({max(1, part // 8), max(1, part // 4)}):
                    self.probe(small)
                if self.fits(part):
                    self.probe(part)
                    return part
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            parts = more_parts(plans.batch_size, plans.parts)
            if parts is None:
                raise TrainingError(
                    "a single picture does not fit into memory: choose a smaller --model or a smaller image size"
                )
            self.growth = {size: grown for size, grown in self.growth.items() if size <= part}
            free_memory()
            self.this.ready.loading.cut_steps(parts)

    def probe(self, part: int) -> None:
        """Make two steps of so many pictures in one part, as at the end of the run, when they take most."""
        with self._at(1.0):
            module = self.this.module
            module.accumulate = 1
            self._fit(_alike(_batch(self.this, part)), _Timing(2))
            self.fixed = _fixed_bytes(module, self.this.trainer)
            self.add(part, self.last_growth)

    def timed(self) -> list[list[float]]:
        """Time steps of each phase of the run with its own loader, in seconds."""
        phases, found = self.this.ready.config.phases, []
        for begin, end in phases:
            timing = _Timing(_MOST_STEPS + _WARM, _SECONDS / len(phases))
            with self._at((begin + end) / 2):
                self._fit(self.this.ready.loading.train_dataloader(), timing)
            found.append(timing.seconds)
        return found

    @contextlib.contextmanager
    def _at(self, progress: float) -> Iterator[None]:
        """Within, each step is one at that share of the run."""
        model = self.this.ready.model
        dropped = model.patch_dropout
        rebuild(self.this, None)
        self.this.module.progress = lambda _: progress
        try:
            yield
        finally:
            model.patch_dropout = dropped

    def _fit(self, batches: Iterable[Any], timing: _Timing) -> None:
        ready = self.this.ready
        self.this.trainer = _trainer(self.this, timing)
        self.meter.begin()
        self.this.trainer.fit(self.this.module, train_dataloaders=batches)
        self.last_growth = max(0, self.meter.most() - self.before)
        ready.model.zero_grad(set_to_none=True)

    def _per_picture(self) -> float:
        """Bytes that a picture more takes, between the smallest and the largest size that were tried."""
        small, large = min(self.growth), max(self.growth)
        if small == large:
            return float(self.this.ready.cost.activation_bytes)
        return max((self.growth[large] - self.growth[small]) / (large - small), 0.0)

    def _room(self) -> int:
        return int((self.left or 0) * (1 - _KEPT_FREE))

    def fits(self, part: int) -> bool:
        """Whether the sizes so far say that one more fits."""
        if self.left is None or not self.growth:
            return True
        largest = max(self.growth)
        return self.growth[largest] + (part - largest) * self._per_picture() <= self._room()

    def largest(self, part: int) -> tuple[int | None, bool]:
        """The most pictures of one part, and whether a step of them was made."""
        if self.left is None:
            return None, False
        most = len(self.this.ready.data.splits["train"])
        for _ in range(_PROBED):
            size = 2 * max(self.growth)
            clear = self.growth[max(self.growth)] - self.growth[min(self.growth)] >= _CLEAR
            if clear or size > most or not self.fits(size):
                break
            self.probe(size)
        largest = max(self.growth)
        more = (self._room() - self.growth[largest]) / max(self._per_picture(), 1.0)
        size = max(part, min(most, int(largest + max(more, 0))))
        return self._checked(size, part) if self.meter.device.type == "cuda" else (size, size <= largest)

    def _checked(self, size: int, part: int) -> tuple[int, bool]:
        """Make a step of the size, or of less where it does not fit."""
        while size > part:
            try:
                self.probe(size)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            else:
                return size, True
            free_memory()
            size = max(part, int(size * (1 - _KEPT_FREE)))
        return size, True


class _Timing(Callback):
    """Ends training after some steps, or some seconds, and times those after the first few."""

    def __init__(self, most: int, seconds: float = float("inf")) -> None:
        self.most, self.limit = most, seconds
        self.seconds: list[float] = []
        self._last: float | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin."""
        self._made = 0
        self._began: float | None = None

    def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any) -> None:
        """Note the time of a step whose last part this was."""
        if trainer.global_step == self._made:
            return
        self._made = trainer.global_step
        _wait(pl_module.device)
        now = time.monotonic()
        if self._made > _WARM and self._last is not None:
            self.seconds.append(now - self._last)
        elif self._made == _WARM:
            self._began = now
        self._last = now
        over = self._began is not None and now - self._began > self.limit and len(self.seconds) >= _STEPS
        if self._made >= self.most or over:
            trainer.should_stop = True


def _wait(device: torch.device) -> None:
    """Let a device finish what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _trainer(this: Assembled, callback: Callback) -> lightning.Trainer:
    """A Trainer as the run's, with one callback and without validation."""
    trainer = build_trainer(this.place.folder, this.ready.device, this.ready.precision, [callback], [])
    trainer.limit_val_batches = 0
    return trainer


def _batch(this: Assembled, size: int) -> Batch:
    """A training batch of any size, in which pictures may come several times."""
    sets: Any = this.ready.loading.train_dataloader().dataset
    images = len(this.ready.data.splits["train"])
    few = min(size, images) if isinstance(sets, MemoryBatches) else min(size, 16)  # reading files takes time
    batch: Batch = sets[BatchPlan(0, 0, 0, np.arange(few))]
    if isinstance(batch, Exception):
        raise batch
    copies = torch.arange(size) % few
    tensors = ("images", "labels", "index", "boxes")
    return {key: value[copies] if key in tensors else value for key, value in batch.items()}


def _fixed_bytes(module: Any, trainer: lightning.Trainer) -> int:
    """The bytes of weights, gradients, optimiser state and average."""
    tensors = [*module.model.parameters(), *module.model.buffers()]
    tensors += [p for p in module.model.parameters() if p.requires_grad]  # as large again: the gradients
    tensors += list(module.average.state_dict().values()) if module.average is not None else []
    for state in trainer.optimizers[0].state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors)


def _alike(batch: Batch) -> DataLoader[Batch]:
    """A loader of one batch, twice."""
    return DataLoader([batch, batch], batch_size=None, collate_fn=lambda item: item)  # type: ignore[arg-type]


def validation_seconds(this: Assembled) -> float:
    """Time of one pass over the validation split, from a few batches."""
    ready = this.ready
    ends = _Ends()
    trainer = _trainer(this, ends)
    trainer.limit_val_batches = _VALIDATED + 1
    loader = ready.loading.val_dataloader()
    trainer.validate(this.module, dataloaders=loader, verbose=False)
    began, before = time.monotonic(), len(ends.times)
    trainer.validate(this.module, dataloaders=loader, verbose=False)
    if len(loader) <= _VALIDATED:
        return time.monotonic() - began
    return len(loader) * (ends.times[-1] - ends.times[before]) / _VALIDATED


class _Ends(Callback):
    """Notes when the batches of a validation end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_validation_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any, **__: Any
    ) -> None:
        """Note the time."""
        _wait(pl_module.device)
        self.times.append(time.monotonic())
