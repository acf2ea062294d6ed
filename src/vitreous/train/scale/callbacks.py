"""The parts of a run that differ in one of several processes: all decide the same, and only the first one writes."""

from __future__ import annotations

from types import FrameType
from typing import Any, cast

import lightning
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

from vitreous.runs.lock import Lock
from vitreous.train.loop.callbacks import MetricsLog
from vitreous.train.loop.module import VitModule
from vitreous.train.loop.progress import Budget
from vitreous.train.results import RunWriter
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.resume.signals import Signals, Stopped
from vitreous.train.scale.place import Place
from vitreous.train.scale.team import Team

__all__ = [
    "NoLock",
    "PlaceEnvironment",
    "SharedBudget",
    "SharedCheckpoint",
    "SharedMetricsLog",
    "SharedSignals",
    "SharedWriter",
    "leave_signals_alone",
]


class SharedSignals(Signals):
    """Signals that take effect in all processes after the same step, whichever of them received one."""

    def __init__(self, team: Team) -> None:
        super().__init__()
        self._team, self._own = team, 0

    def agree(self) -> None:
        """Learn of a signal that any process has received; all call this after the same step."""
        if self.received is None:
            self.received = self._team.largest(self._own) or None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._waiting and self.received is None and not self._own:
            self._own = number  # takes effect when all know
        elif self._waiting and number == 2:
            raise Stopped(self.received or self._own, at_once=True)
        elif not self._waiting:
            super()._receive(number, frame)


class SharedCheckpoint(Checkpoint):
    """Saves in the first process, and agrees on signals after each step and each batch of a validation."""

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._team = team
        self.is_between_epochs = False  # whether an epoch is complete, but not yet counted by the Trainer

    def save(self, *, between: bool = False, trained: bool = False, wait: bool = False) -> None:
        """Save the current state."""
        if self._saves:
            with self._team.pulse.working("saving"):
                super().save(between=between, trained=trained, wait=wait)

    @property
    def _saves(self) -> bool:
        """Whether this process saves."""
        return self._team.leads

    def _is_due(self) -> bool:  # only the first process saves, and so knows when it did
        return self._team.leads and super()._is_due()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Restore the optimiser; from here on all processes take the same steps."""
        super().on_train_start(trainer, pl_module)
        self._team.pulse.phase = "training"

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a whole step, agree on signals."""
        if (batch_idx + 1) % cast(VitModule, pl_module).accumulate == 0:
            self._agree(trainer)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Finish writing."""
        with self._team.pulse.working("saving"):
            super().on_validation_start(trainer, pl_module)

    def on_validation_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *arguments: Any, **named: Any
    ) -> None:
        """Agree on signals."""
        self._agree(trainer)
        super().on_validation_batch_end(trainer, pl_module, *arguments, **named)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Agree on signals, and save if it is time."""
        self.is_between_epochs = True
        self._agree(trainer)
        super().on_train_epoch_end(trainer, pl_module)
        self.is_between_epochs = False

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Leave the phase in which all take the same steps."""
        self._team.pulse.phase = "selecting"

    def _agree(self, trainer: lightning.Trainer) -> None:
        pulse = self._team.pulse
        pulse.epoch, pulse.step = trainer.current_epoch + 1, trainer.global_step
        cast(SharedSignals, self._signals).agree()


class SharedMetricsLog(MetricsLog):
    """Keeps the history in all processes, and writes it in the first."""

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._team = team

    def _write(self, rows: list[dict[str, float]]) -> None:
        if self._team.leads:
            super()._write(rows)


class SharedWriter(RunWriter):
    """Writes the best weights so far in the first process only."""

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._team = team

    def save_best(self, selected: Any) -> None:
        """Write the best model so far."""
        if self._team.leads:
            with self._team.pulse.working("saving"):
                super().save_best(selected)


class SharedBudget(Budget):
    """The clock of the first process, which all follow."""

    def __init__(self, team: Team, started: float, seconds: float, reserve: float) -> None:
        super().__init__(started, seconds, reserve)
        self.team = team

    def progress(self, step: int) -> float:
        """Return the fraction of the training time that has passed, in [0, 1]."""
        self._progress = self.team.from_leader(super().progress(step))
        return self._progress

    def over(self, steps_done: int) -> bool:
        """Return whether training is over."""
        return self.team.from_leader(super().over(steps_done))


def leave_signals_alone(trainer: lightning.Trainer) -> None:
    """Keep Lightning from handling SIGTERM: in several processes its handler waits for the others, and so hangs.

    It also asks the others before every batch, which :meth:`SharedSignals.agree` does after every step.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


class NoLock(Lock):
    """Stands for the lock that the first process holds."""

    def __init__(self) -> None:
        self.previous_holder = None

    def record(self, **facts: Any) -> None:
        """Do nothing."""

    def keep_alive(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


class PlaceEnvironment(ClusterEnvironment):
    """Tells Lightning the place of this process."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    creates_processes_externally = True

    @property
    def main_address(self) -> str:
        """The address of the first machine."""
        return self._place.address

    @property
    def main_port(self) -> int:
        """The port on it where the processes meet."""
        return self._place.port

    @staticmethod
    def detect() -> bool:
        """Return False: it is always given explicitly."""
        return False

    def world_size(self) -> int:
        """Return the number of processes."""
        return self._place.world

    def set_world_size(self, size: int) -> None:
        """Do nothing: it is known."""

    def global_rank(self) -> int:
        """Return the number of this process."""
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: it is known."""

    def local_rank(self) -> int:
        """Return the number of this process on its machine."""
        return self._place.local_rank or 0

    def node_rank(self) -> int:
        """Return the number of this machine."""
        return self._place.node
