"""When the state of a run is saved: at intervals, after a signal, and when training ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import lightning
from lightning.pytorch.callbacks import Callback

from vitreous.runs.lock import Lock
from vitreous.train.loop.module import VitModule
from vitreous.train.resume.saving import Saver
from vitreous.train.resume.signals import Signals
from vitreous.train.resume.state import RunState, load_optimizer, report_mismatch

__all__ = ["Checkpoint"]


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
