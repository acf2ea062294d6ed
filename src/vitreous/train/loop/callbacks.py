"""Lightning callbacks of a run: when it stops, what it records, and which weights it selects.

Checkpoints are saved by the callback in resume/checkpoint.py.
"""

from __future__ import annotations

import csv
import os
import stat
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vitreous.errors import OutputError
from vitreous.files.writing import atomic_write
from vitreous.train.console import Display
from vitreous.train.loop.module import VitModule
from vitreous.train.loop.progress import Budget, Clock
from vitreous.train.preference import improves, is_better
from vitreous.train.results import SelectedWeights, copy_weights, scoring_seconds

__all__ = ["MetricsLog", "StopWhenOver", "WeightSelection"]

_TIMED_STEPS, _TIMED_SECONDS = 5, 1.0  # the speed is announced after this many steps and seconds
_MEDIAN_OF = 5  # last steps; earlier ones may have had smaller images or fewer patches
_UNSURE = 0.5  # share of the time left that may be reserved on the word of fewer steps
_VALIDATIONS = 3  # last validations, whose median time counts
_APPEND = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_EVALUATION_SPEED = 2.0  # cautious guess of images/s in evaluation over training, until a validation is timed
_COMPARED, _COMPARED_SECONDS = (2, 8, 32), 0.1  # images on which precisions are timed, more while they take less time


class StopWhenOver(Callback):
    """Stop training when the clock says so, and keep the reserve of a budget up to date.

    The budget reserves time for a validation of `val_images`, and for the test split, `test_share` times as large.
    Until one is timed, it is estimated from the steps; where a teacher slows these, count fewer images. A model that
    is `compiled` compiles again in the first validation, whose time does not count.
    """

    def __init__(
        self,
        clock: Clock,
        val_images: float,
        test_share: float = 0.0,
        precision: str = "float32",
        compiled: bool = False,
    ) -> None:
        self.clock, self._val_images, self._compiling = clock, val_images, compiled
        self._test_share, self._precision = test_share, precision
        self._validations: deque[float] = deque(maxlen=_VALIDATIONS)
        self._float32_over_bf16: float | None = None  # time of a forward pass; None until measured

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start the clock."""
        self.clock.begin()
        self._is_first_step = True
        self._last, self._seen = time.monotonic(), cast(VitModule, pl_module).images_seen
        self._per_image: deque[float] = deque(maxlen=_MEDIAN_OF)

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the clock again: what a module does when training starts, such as measuring, is not progress."""
        if self._is_first_step:
            self.clock.begin()

    def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any) -> None:
        """Estimate the time of a validation from that of the steps until one is timed, and check the clock."""
        module = cast(VitModule, pl_module)
        now, images = time.monotonic(), module.images_seen - self._seen
        if images and self._is_first_step:  # a resumed run skips its first batch, which then has no images
            self._is_first_step = False
            self.clock.begin()  # again: the first step may have compiled for a minute, which is not progress
        if isinstance(self.clock, Budget) and not self._validations:
            if images > 0:  # negative at the start of an epoch
                self._per_image.append((now - self._last) / images)
            self._last, self._seen = now, module.images_seen
            if images > 0 and len(self._per_image) > 1:  # the first step is much slower than the others
                # The fastest step counts: a machine that is busy for a moment would end the training at once.
                seconds = self._val_images * min(self._per_image) / _EVALUATION_SPEED
                self._reserve(seconds + module.extra_seconds, is_sure=len(self._per_image) == _MEDIAN_OF)
        if self.clock.over(trainer.global_step):
            trainer.should_stop = True

    def _reserve(self, validation: float, is_sure: bool = True) -> None:
        """Reserve time for a last validation, the evaluation of the selected weights, and the report."""
        if isinstance(self.clock, Budget):
            after = validation + scoring_seconds(validation, self._test_share, self._precision, self._float32_over_bf16)
            left = self.clock.started + self.clock.seconds - self.clock.ending - time.monotonic()
            self.clock.reserve = self.clock.ending + (after if is_sure else min(after, _UNSURE * max(0.0, left)))

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Time the validation."""
        self._validation_started = time.monotonic()

    def on_validation_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """Measure once how much slower float32 is, in which the selected weights are scored after training in bf16."""
        # Not in several processes: parts of a sharded model wait for each other.
        compares = self._precision == "bf16" and trainer.world_size == 1 and isinstance(self.clock, Budget)
        if compares and self._float32_over_bf16 is None:
            began = time.monotonic()
            self._float32_over_bf16 = _float32_over_bf16(cast(VitModule, pl_module), batch["images"])
            self._validation_started += time.monotonic() - began

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Update the reserve by the measured time, and check the clock."""
        if not self._compiling:
            seconds = time.monotonic() - self._validation_started
            self._validations.append(seconds + cast(VitModule, pl_module).extra_seconds)
            self._reserve(statistics.median(self._validations))
        self._compiling = False
        if self.clock.over(trainer.global_step):
            trainer.should_stop = True


@torch.no_grad()
def _float32_over_bf16(module: VitModule, images: Tensor) -> float:
    """Measure the time of a forward pass in float32 over that in bf16, on a few images (B, C, H, W) in [0, 255]."""
    for count in _COMPARED:
        inputs = module.pipeline.normalise(images[:count])
        float32, bf16 = (_forward_seconds(module, inputs, in_bf16) for in_bf16 in (False, True))
        if float32 > _COMPARED_SECONDS:
            break
    return float32 / bf16


def _forward_seconds(module: VitModule, inputs: Tensor, in_bf16: bool) -> float:
    """Return the shorter of two times: the first has to warm up."""
    times = []
    with torch.autocast(module.device.type, torch.bfloat16, in_bf16):
        for _ in range(2):
            started = time.perf_counter()
            module.eval_model.forward(inputs).cpu()  # waits for a GPU; a call would compile a compiled model again
            times.append(time.perf_counter() - started)
    return min(times)


class WeightSelection(Callback):
    """Keep the weights of the best epoch, and stop early; `save` is called with each new selection.

    For `patience`, a tie of the metric with a lower log loss is no improvement.
    """

    def __init__(self, select: str, patience: int | None, save: Callable[[SelectedWeights], None]) -> None:
        self.select, self.patience, self.save = select, patience, save
        self.best: SelectedWeights | None = None
        self.stopped_early = False
        self.improved_epoch = 0  # the last one, counted from 1, that improved the metric

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Compare the epoch with the best so far."""
        module = cast(VitModule, pl_module)
        if module.scores is None:
            return
        epoch = trainer.current_epoch + 1
        if self.best is None or improves(self.select, module.scores, self.best.scores):
            self.improved_epoch = epoch
        if self.best is None or is_better(self.select, module.scores, self.best.scores):
            weights = copy_weights(module.eval_model)
            self.best = SelectedWeights(module.scores, module.logits, module.labels, epoch, weights)
            self.save(self.best)
        if self.patience is not None and epoch - self.improved_epoch >= self.patience:
            self.stopped_early = True
            trainer.should_stop = True


class MetricsLog(Callback):
    """Write metrics.csv, print a line per epoch, and update the live line after each step.

    `epochs` is the planned number, None with a budget. `announce` is called once, with images per second and the
    estimated training time in seconds. `precision` is that of the validations, the last column of metrics.csv.
    """

    def __init__(
        self,
        folder: Path,
        view: Display,
        clock: Clock,
        epochs: int | None,
        announce: Callable[[float, float], None],
        *,
        precision: str,
    ) -> None:
        self.folder, self.view, self.clock, self.epochs, self.precision = folder, view, clock, epochs, precision
        self.history: list[dict[str, float]] = []  # rows of metrics.csv without the precision
        self._announce: Callable[[float, float], None] | None = announce

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start the timers; a resumed run rewrites metrics.csv."""
        self._run_started, self._first_step = time.monotonic(), trainer.global_step
        self._start_epoch(cast(VitModule, pl_module).images_seen)
        self._warm = self._run_started, self._images
        if self.history:
            self._write(self.history)

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start the timers of the epoch."""
        self._start_epoch(0)

    def _start_epoch(self, images: int) -> None:
        """Start the timers of an epoch of which an earlier process has seen `images` images."""
        self._epoch_started, self._images = time.monotonic(), images
        self._stepping, self._left = 1e-9, 0.0

    def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any) -> None:
        """Update the live line."""
        module, step, now = cast(VitModule, pl_module), trainer.global_step, time.monotonic()
        self._stepping = now - self._epoch_started
        speed = (module.images_seen - self._images) / self._stepping
        self._left = self.clock.seconds_left(step, (now - self._run_started) / max(1, step - self._first_step))
        if step - self._first_step <= 1:  # the first step may compile: the announced speed excludes it
            self._warm = now, module.images_seen
        elif step - self._first_step >= _TIMED_STEPS and now - self._warm[0] > _TIMED_SECONDS:
            self._announce_once((module.images_seen - self._warm[1]) / (now - self._warm[0]))
        progress = self.clock.progress(max(0, step - 1))
        self.view.step(self._epoch_name(trainer), progress, lambda: module.train_loss, speed, self._left)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the row of the epoch."""
        module = cast(VitModule, pl_module)
        speed = (module.images_seen - self._images) / self._stepping
        self._announce_once(speed)
        row = {
            "epoch": trainer.current_epoch + 1,
            "step": trainer.global_step,
            "lr": module.learning_rate,
            "train_loss": module.train_loss,
            **module.score_columns,
            "images_per_second": speed,
            "seconds": time.monotonic() - self._epoch_started,
        }
        has_columns = bool(self.history) and row.keys() <= max(self.history, key=len).keys()
        self.history.append(row)
        self._write([row] if has_columns else self.history)
        self.view.epoch(self._epoch_name(trainer), row, self._left)

    def _announce_once(self, speed: float) -> None:
        if self._announce is not None:
            self._announce(speed, self._left + time.monotonic() - self._run_started)
            self._announce = None

    def _epoch_name(self, trainer: lightning.Trainer) -> str:
        """Return the number of the epoch, such as `7`, or ` 7/80` where the number of epochs is known."""
        number = trainer.current_epoch + 1
        return str(number) if self.epochs is None else f"{number:>{len(str(self.epochs))}}/{self.epochs}"

    def _write(self, rows: list[dict[str, float]]) -> None:
        """Append rows to metrics.csv; rewrite it if `rows` is the whole history or the file cannot be appended to.

        The columns are those of the row that has most.
        """
        path = self.folder / "metrics.csv"
        try:
            columns = [*max(self.history, key=len), "validated_in"]
            if rows is not self.history and (file := _open_to_append(path)) is not None:
                with file:
                    csv.DictWriter(file, columns).writerows({**row, "validated_in": self.precision} for row in rows)
                return
            with atomic_write(path, follow=False) as written, written.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows({**row, "validated_in": self.precision} for row in self.history)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _open_to_append(path: Path) -> IO[str] | None:
    """Open a file to append to it; None if it is missing, not a regular file, or has other hard links."""
    try:
        handle = os.open(path, _APPEND)
    except OSError:
        return None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(handle)
        return None
    return os.fdopen(handle, "a", newline="", encoding="utf-8")
