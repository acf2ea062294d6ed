"""When a run's state is saved, and which of the saved ones a resume uses: the last two good ones are kept.

Training goes on while a state is written: what is saved is a copy, and only the copying takes time from the steps.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lightning
from lightning.pytorch.callbacks import Callback

from vitreous.errors import CheckpointError
from vitreous.runs.folder import LAST, PREVIOUS
from vitreous.runs.lock import Lock
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.module import VitModule
from vitreous.train.resume.signals import Signals
from vitreous.train.resume.state import RunState, fitting_this_run, load_optimizer

__all__ = ["LAST", "PREVIOUS", "Checkpoint", "Saver", "newest"]


def newest(folder: Path, tell: Callable[[str], None]) -> tuple[Path, RunState] | None:
    """Read the newest good state of a run's folder.

    Args:
        folder: Of the run.
        tell: Called with a line about a file that is damaged and passed over.

    Returns:
        The file and the state; None where nothing was saved yet.

    Raises:
        CheckpointError: If there are files, and all are damaged.
    """
    damaged = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not os.path.lexists(path):
            continue
        try:
            state = RunState.from_dict(read_state(path))
        except CheckpointError as error:
            damaged.append(f"{error}" if str(path) in str(error) else f"'{path}' cannot be used: {error}")
            continue
        for line in damaged:
            tell(f"{line}; the one before, '{path}', is used")
        return path, state
    if damaged:
        raise CheckpointError(f"nothing to go on from: {'; '.join(damaged)}. Begin with another --out")
    return None


class Saver:
    """Writes states one after the other, in a thread.

    The newest file becomes the one before only if it is known to be good: as this process wrote it, or read once more
    with its checksum. Else it is replaced, and the one before stays.

    Args:
        folder: Of the run.
        lock: Is told while a state is being written.

    Attributes:
        saved: The point of the run that is safe on the disk, for people; None where nothing is.
    """

    def __init__(self, folder: Path, lock: Lock) -> None:
        self._folder, self._lock = folder, lock
        self.saved: str | None = None
        self._written: tuple[int, ...] | None = None  # the newest file, as it was when this process had written it
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a state is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, state: RunState) -> None:
        """Begin to write a state, which nobody may change any more."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(state,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until everything is written.

        Raises:
            OutputError: If something could not be; then the last state that was written is still there.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what went wrong since the last look, without waiting."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _write(self, state: RunState) -> None:
        self._lock.say(saving=True)
        try:
            last = self._folder / LAST
            keep = self._folder / PREVIOUS if self._is_good(last, state.identity) else None
            write_state(last, state.to_dict(), keep=keep)
            self._written, self.saved = _mark(last), state.where
        except BaseException as error:
            self._failed = error
        finally:
            self._lock.say(saving=False)

    def _is_good(self, last: Path, identity: dict[str, str]) -> bool:
        """Whether the newest file is a whole state of this run, so that it may take the place of the one before."""
        mark = _mark(last)
        if mark is None or mark == self._written:
            return mark is not None
        try:
            found = RunState.from_dict(read_state(last)).identity
        except CheckpointError:
            return False
        return {**found, "recipe": ""} == {**identity, "recipe": ""}  # which may have got more epochs


def _mark(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content; None for what is no regular file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Checkpoint(Callback):
    """Saves the state of a run now and then, after a signal, and when training ends; the last of the callbacks.

    Args:
        saver: Writes it.
        capture: Gives the state, as of between two epochs or within one, and whether training is over.
        state: To go on from; None begins.
        signals: Of the user or a scheduler.
        lock: Is told what the run is doing.
        every: Seconds after which to save again.
        epochs: Save at the end of every so many; None is off.

    Attributes:
        begun: Whether training has begun, with all that the state had given back.
    """

    def __init__(
        self,
        saver: Saver,
        capture: Callable[[bool, bool], RunState],
        state: RunState | None,
        *,
        signals: Signals,
        lock: Lock,
        every: float,
        epochs: int | None,
    ) -> None:
        self._saver, self._capture, self._state = saver, capture, state
        self._signals, self._lock, self._every, self._epochs = signals, lock, every, epochs
        self._saved = time.monotonic()
        self.begun = False

    def save(self, *, between: bool = False, trained: bool = False, wait: bool = False) -> None:
        """Save the state as it is.

        Args:
            between: Whether the epoch has ended, with all that follows its last step.
            trained: Whether no step is left to make.
            wait: For the disk.
        """
        self._saver.save(self._capture(between, trained))
        self._saved = time.monotonic()
        if wait:
            self._saver.wait()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Give the optimiser its state back."""
        self._saved = time.monotonic()
        self._lock.say(phase="training")
        if self._state is not None and self._state.optimizer.get("state"):
            with fitting_this_run():
                load_optimizer(trainer.optimizers[0], self._state.optimizer)
        self._state, self.begun = None, True

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Say which epoch it is."""
        self._lock.say(phase="training")

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a whole step, save if it is time or if a signal came."""
        self._saver.check()
        self._lock.live()
        if (batch_idx + 1) % cast(VitModule, pl_module).accumulate:
            return
        self._obey(pl_module)
        if time.monotonic() - self._saved >= self._every and not self._saver.busy:
            cast(VitModule, pl_module).look()
            self.save()

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Let nothing be written while workers are made: they would be copies of a process in the middle of it."""
        self._saver.wait()
        self._lock.say(phase="validating")

    def on_validation_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any, **__: Any
    ) -> None:
        """After a signal, save: nothing has changed since the last step."""
        self._lock.live()
        self._obey(pl_module)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Save at the end of training, after a signal, and if it is time."""
        self._lock.say(phase="between epochs")
        module, over = cast(VitModule, pl_module), trainer.should_stop
        asked = self._signals.asked is not None
        number = trainer.current_epoch + 1
        due = self._epochs is not None and number % self._epochs == 0
        if over or asked or due or time.monotonic() - self._saved >= self._every:
            module.look()
            self.save(between=True, trained=over, wait=over or asked)
        self._signals.obey()

    def _obey(self, pl_module: lightning.LightningModule) -> None:
        if self._signals.asked is not None:
            cast(VitModule, pl_module).look()
            self.save(wait=True)
            self._signals.obey()
