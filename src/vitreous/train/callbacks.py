"""What happens around the steps of a run: when it stops, what it records, and which weights it keeps."""

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
from lightning.pytorch.callbacks import Callback

from vitreous.errors import OutputError
from vitreous.evaluate.metrics import Scores
from vitreous.files.writing import replacing
from vitreous.train.console import View
from vitreous.train.module import VitModule
from vitreous.train.progress import Budget, Clock
from vitreous.train.results import Selected, scoring_seconds, weights_of

__all__ = ["Record", "Selection", "Stop", "better", "rises"]

_TIMED_STEPS, _TIMED_SECONDS = 5, 1.0  # after which the speed of a run is told
_MEDIAN_OF = 5  # steps: the last ones, because smaller pictures or fewer patches may have come before
_VALIDATIONS = 3  # the last ones, of whose times the median counts
_APPEND = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_EVALUATION_SPEED = 2.0  # images a second without gradients over those with: a cautious guess until it is measured


class Stop(Callback):
    """Ends training when the clock says so.

    Args:
        clock: Of the run.
        test_share: Images of the test split for each of the validation split; the budget keeps time for both.
        precision: Of the training; what follows it is scored in float32.
        compiled: Whether the model is: its first validation compiles, so its time tells nothing of what comes.
    """

    def __init__(
        self, clock: Clock, test_share: float = 0.0, precision: str = "float32", compiled: bool = False
    ) -> None:
        self.clock = clock
        self._compiling = compiled
        self._test_share, self._precision = test_share, precision
        self._validations: deque[float] = deque(maxlen=_VALIDATIONS)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start the clock."""
        self.clock.begin()
        self._cold = True
        self._last, self._seen = time.monotonic(), cast(VitModule, pl_module).images_seen
        self._per_image: deque[float] = deque(maxlen=_MEDIAN_OF)

    def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any) -> None:
        """Look at the clock."""
        module = cast(VitModule, pl_module)
        now, made = time.monotonic(), module.images_seen - self._seen
        if made and self._cold:  # none are made in the batch that a resumed run passes over
            self._cold = False
            self.clock.begin()  # again: what is compiled at first may take a minute, which is no progress
        if isinstance(self.clock, Budget) and not self._validations:
            if made > 0:  # below 0: a new epoch
                self._per_image.append((now - self._last) / made)
            self._last, self._seen = now, module.images_seen
            if made > 0 and len(self._per_image) > 1:  # a first step takes many times as long as the others
                val = len(cast(Any, trainer).datamodule.data.splits["val"])
                self._reserve(val * statistics.median_low(self._per_image) / _EVALUATION_SPEED)
        if self.clock.over(trainer.global_step):
            trainer.should_stop = True

    def _reserve(self, validation: float) -> None:
        """Keep time for a last validation, for what is scored after it, and for the report."""
        if isinstance(self.clock, Budget):
            after = validation + scoring_seconds(validation, self._test_share, self._precision)
            self.clock.reserve = self.clock.ending + after

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Time the validation."""
        self._validation_started = time.monotonic()

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Keep as much time for what follows the last step as it took now."""
        if not self._compiling:
            self._validations.append(time.monotonic() - self._validation_started)
            self._reserve(statistics.median(self._validations))
        self._compiling = False
        if self.clock.over(trainer.global_step):
            trainer.should_stop = True


def better(select: str, new: Scores, old: Scores) -> bool:
    """Whether new scores beat old ones by a metric of `RunConfig.select`; with `last` they always do.

    Of equal shares, which small splits often give, the one with the lower log loss is the better.
    """
    if select == "last":
        return True
    return rises(select, new, old) or (not rises(select, old, new) and new.log_loss < old.log_loss)


def rises(select: str, new: Scores, old: Scores) -> bool:
    """Whether the metric alone is better in new scores than in old ones; with `last` it always is."""
    if select in ("last", "log_loss"):
        return select == "last" or new.log_loss < old.log_loss
    return bool(getattr(new, select) > getattr(old, select))


class Selection(Callback):
    """Keeps the weights of the best epoch, and stops when no epoch is better for a while.

    Args:
        select: As `RunConfig.select`.
        patience: Epochs without a higher score (an equal one with a lower log loss does not count) after which
            training stops; None is off.
        save: Called with each new selection, to write the model file.

    Attributes:
        best: The selection so far.
        stopped_early: Whether patience ended the training.
        risen: The epoch, counted from 1, that had the highest score first.
    """

    def __init__(self, select: str, patience: int | None, save: Callable[[Selected], None]) -> None:
        self.select, self.patience, self.save = select, patience, save
        self.best: Selected | None = None
        self.stopped_early = False
        self.risen = 0

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Compare the epoch with the best so far."""
        module = cast(VitModule, pl_module)
        if module.scores is None:
            return
        epoch = trainer.current_epoch + 1
        if self.best is None or rises(self.select, module.scores, self.best.scores):
            self.risen = epoch
        if self.best is None or better(self.select, module.scores, self.best.scores):
            self.best = Selected(module.scores, module.logits, module.labels, epoch, weights_of(module.evaluated))
            self.save(self.best)
        if self.patience is not None and epoch - self.risen >= self.patience:
            self.stopped_early = True
            trainer.should_stop = True


class Record(Callback):
    """Writes metrics.csv and tells the view, epoch by epoch.

    Args:
        folder: Of the run.
        view: Where the lines go.
        clock: Of the run.
        epochs: Planned, for the line; None where the budget decides.
        announce: Called once, with images per second and the training time in seconds, when both can be told.
        precision: Of the validations, which metrics.csv names.

    Attributes:
        history: The rows of metrics.csv, but for its last column, which is the same in all: the precision.
    """

    def __init__(
        self,
        folder: Path,
        view: View,
        clock: Clock,
        epochs: int | None,
        announce: Callable[[float, float], None],
        *,
        precision: str,
    ) -> None:
        self.folder, self.view, self.clock, self.epochs = folder, view, clock, epochs
        self.precision = precision
        self.history: list[dict[str, float]] = []
        self._announce: Callable[[float, float], None] | None = announce

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Time the run, and write anew what it had recorded before it was resumed."""
        self._run_started, self._first_step = time.monotonic(), trainer.global_step
        self._time_epoch(cast(VitModule, pl_module).images_seen)
        self._warm = self._run_started, self._images
        if self.history:
            self._write(self.history)

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Time the epoch."""
        self._time_epoch(0)

    def _time_epoch(self, images: int) -> None:
        """Start the epoch's clock, with the images that an earlier process has seen in it."""
        self._epoch_started, self._images = time.monotonic(), images
        self._stepping, self._left = 1e-9, 0.0

    def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any) -> None:
        """Move the live line."""
        module, step, now = cast(VitModule, pl_module), trainer.global_step, time.monotonic()
        self._stepping = now - self._epoch_started
        speed = (module.images_seen - self._images) / self._stepping
        self._left = self.clock.seconds_left(step, (now - self._run_started) / max(1, step - self._first_step))
        if step - self._first_step <= 1:  # a first step may compile: the speed that is told leaves it out
            self._warm = now, module.images_seen
        elif step - self._first_step >= _TIMED_STEPS and now - self._warm[0] > _TIMED_SECONDS:
            self._tell((module.images_seen - self._warm[1]) / (now - self._warm[0]))
        share = self.clock.progress(max(0, step - 1))
        self.view.step(self._name(trainer), share, lambda: module.train_loss, speed, self._left)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the row of the epoch."""
        module = cast(VitModule, pl_module)
        speed = (module.images_seen - self._images) / self._stepping
        self._tell(speed)
        row = {
            "epoch": trainer.current_epoch + 1,
            "step": trainer.global_step,
            "lr": module.learning_rate,
            "train_loss": module.train_loss,
            **{f"val_{name}": value for name, value in (module.scores.summary() if module.scores else {}).items()},
            "images_per_second": speed,
            "seconds": time.monotonic() - self._epoch_started,
        }
        self.history.append(row)
        self._write([row] if len(self.history) > 1 else self.history)
        self.view.epoch(self._name(trainer), row, self._left)

    def _tell(self, speed: float) -> None:
        """Announce the speed, once."""
        if self._announce is not None:
            self._announce(speed, self._left + time.monotonic() - self._run_started)
            self._announce = None

    def _name(self, trainer: lightning.Trainer) -> str:
        number = trainer.current_epoch + 1
        return str(number) if self.epochs is None else f"{number:>{len(str(self.epochs))}}/{self.epochs}"

    def _told(self, row: dict[str, float]) -> dict[str, Any]:
        """A row of metrics.csv, with the precision that its scores were computed in."""
        return {**row, "validated_in": self.precision}

    def _write(self, rows: list[dict[str, float]]) -> None:
        """Append rows to metrics.csv, or write all of them anew, into a file of the run's own."""
        path = self.folder / "metrics.csv"
        try:
            columns = [*max(self.history, key=len), "validated_in"]
            if rows is not self.history and (file := _appending(path)) is not None:
                with file:
                    csv.DictWriter(file, columns).writerows(map(self._told, rows))
                return
            with replacing(path, follow=False) as written, written.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(map(self._told, self.history))
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _appending(path: Path) -> IO[str] | None:
    """The file, open to append to; None where it is not there, or leads to a file that is not the run's alone."""
    try:
        handle = os.open(path, _APPEND)
    except OSError:
        return None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(handle)
        return None
    return os.fdopen(handle, "a", newline="", encoding="utf-8")
