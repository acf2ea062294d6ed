"""When the state of a run is saved, and which of the two kept checkpoints a resume reads.

A state is a copy, written by a thread while training continues. What a state holds is in `state.py`, the file format in
`vitreous.runs.state_file`.
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
from vitreous.train.resume.state import RunState, load_optimizer, report_mismatch

__all__ = ["LAST", "PREVIOUS", "Checkpoint", "Saver", "load_newest"]


def load_newest(run_dir: Path, warn: Callable[[str], None], *, whole: bool = True) -> tuple[Path, RunState] | None:
    """Read the newest intact state of a run, and return it with its file; None if nothing has been saved yet.

    `warn` is called with a line about each damaged file that is skipped. Without `whole`, tensors in shards are left to
    the caller to read (:mod:`vitreous.runs.shards`).
    """
    damaged = []
    for name in (LAST, PREVIOUS):
        path = run_dir / name
        if not os.path.lexists(path):
            continue
        try:
            state = _read(path, whole)
        except CheckpointError as error:
            damaged.append(f"{error}" if str(path) in str(error) else f"'{path}' cannot be used: {error}")
            continue
        for line in damaged:
            warn(f"{line}; '{path}' is used instead")
        return path, state
    if damaged:
        raise CheckpointError(f"no usable checkpoint: {'; '.join(damaged)}. Start a new run with another --out")
    return None


def _read(path: Path, whole: bool) -> RunState:
    content = read_state(path)
    if isinstance(content, dict) and "shards" in content:
        from vitreous.runs.shards import open_shards, read_whole  # no run of one process pays for it

        content = open_shards(path.parent, content)
        content = read_whole(path.parent, content) if whole else content
    return RunState.from_dict(content)


class Saver:
    """Writes states one at a time, in a background thread.

    The newest checkpoint becomes the previous one only if it is known to be intact: either this process wrote it, or it
    passes its checksum when read again. Otherwise it is overwritten, and the previous one stays.
    """

    def __init__(self, run_dir: Path, lock: Lock) -> None:
        self._run_dir, self._lock = run_dir, lock
        self.saved: str | None = None
        """The point of the run that is safe on disk, in words; None if nothing is."""
        self._written: tuple[int, ...] | None = None  # the signature of the newest file, as this process wrote it
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a state is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, state: RunState) -> None:
        """Start writing a state, which must not be modified afterwards."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(state,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the state is written; raise the error if it could not be."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of the background thread, if there is one, without waiting."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, state: RunState) -> None:
        self._lock.record(saving=True)
        try:
            self._store(state)
            self.saved = state.where
        except BaseException as error:
            self._error = error
        finally:
            self._lock.record(saving=False)

    def _store(self, state: RunState) -> None:
        """Write a state, in the background thread."""
        self._replace(state.to_dict(), state.identity)

    def _replace(self, content: dict[str, Any], identity: dict[str, str]) -> None:
        last, previous = self._run_dir / LAST, self._run_dir / PREVIOUS
        write_state(last, content, keep=previous if self._is_intact(last, identity) else None)
        self._written = _signature(last)
        if any(self._run_dir.glob("shards-*")):  # of this run, or of one that it continues
            from vitreous.runs.shards import remove_unused

            remove_unused(self._run_dir, (last, previous))

    def _is_intact(self, last: Path, identity: dict[str, str]) -> bool:
        """Return whether the newest file is an intact state of this run, which may replace the previous one."""
        signature = _signature(last)
        if signature is None or signature == self._written:
            return signature is not None
        try:
            stored = _read(last, whole=False).identity
        except CheckpointError:
            return False
        return {**stored, "recipe": ""} == {**identity, "recipe": ""}  # the recipe may ask for more epochs by now


def _signature(path: Path) -> tuple[int, ...] | None:
    """Return what changes whenever a file is rewritten; None if the path is not a regular file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Checkpoint(Callback):
    """Saves the state at intervals, after a signal, and when training ends. It must be the last callback.

    `capture` captures the state, given whether the epoch is complete and whether training is. `state` is the one to
    resume from. States are saved after `every` seconds, and after each `epochs` epochs.
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
        self._saved_at = time.monotonic()
        self.begun = False
        """Whether training has begun, with the state restored."""

    def save(self, *, between: bool = False, trained: bool = False, wait: bool = False) -> None:
        """Save the current state; `between` if the epoch is complete, with everything that follows its last step."""
        self._saver.save(self._capture(between, trained))
        self._saved_at = time.monotonic()
        if wait:
            self._saver.wait()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Restore the optimiser, which does not exist before this point."""
        self._saved_at = time.monotonic()
        self._lock.record(phase="training")
        if self._state is not None and self._state.optimizer.get("state"):
            with report_mismatch():
                load_optimizer(trainer.optimizers[0], self._state.optimizer)
        self._state, self.begun = None, True

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Record the phase in the lock file."""
        self._lock.record(phase="training")

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a whole step, save if a signal has arrived or the interval has passed."""
        self._saver.check()
        self._lock.keep_alive()
        if (batch_idx + 1) % cast(VitModule, pl_module).accumulate:
            return
        self._save_and_stop_if_signalled(pl_module)
        if self._is_due():
            cast(VitModule, pl_module).check_finite()
            self.save()

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Finish writing before data loader workers are forked, which must not copy a process in the middle of it."""
        self._saver.wait()
        self._lock.record(phase="validating")

    def on_validation_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any, **__: Any
    ) -> None:
        """Save after a signal; the state is that after the last step."""
        self._lock.keep_alive()
        self._save_and_stop_if_signalled(pl_module)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Save if training is complete, a signal has arrived, or the interval has passed."""
        self._lock.record(phase="between epochs")
        over, signalled = trainer.should_stop, self._signals.received is not None
        due = self._is_due() or (self._epochs is not None and (trainer.current_epoch + 1) % self._epochs == 0)
        if over or signalled or due:
            cast(VitModule, pl_module).check_finite()
            self.save(between=True, trained=over, wait=over or signalled)
        self._signals.raise_if_received()

    def _is_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self._every and not self._saver.busy

    def _save_and_stop_if_signalled(self, pl_module: lightning.LightningModule) -> None:
        if self._signals.received is not None:
            cast(VitModule, pl_module).check_finite()
            self.save(wait=True)
            self._signals.raise_if_received()
