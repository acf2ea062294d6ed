"""Saves a sharded run: each process writes its rows, in a thread, while training continues."""

from __future__ import annotations

import datetime
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
from torch import Tensor, distributed, nn

from vitreous.runs.lock import Lock
from vitreous.runs.shards import split, write_shards
from vitreous.train.results import RunWriter, SelectedWeights
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.resume.saving import Saver
from vitreous.train.resume.state import RunState
from vitreous.train.scale.callbacks import SharedCheckpoint
from vitreous.train.scale.fsdp.layout import Layout
from vitreous.train.scale.team import Team

__all__ = ["ShardedCheckpoint", "ShardedSaver", "ShardedWriter", "gather"]

_PATIENCE = datetime.timedelta(minutes=30)  # with a process that writes more slowly


def gather(weights: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Return whole weights on the CPU in the first process; all call this together."""
    return {name: layout.gather(value) for name, value in weights.items()}


class ShardedSaver(Saver):
    """Writes states in all processes at once, over a process group of the background threads."""

    def __init__(self, team: Team, run_dir: Path, lock: Lock) -> None:
        super().__init__(run_dir, lock)
        self._team, self._count = team, 0
        self._start = team.from_leader(secrets.token_hex(4))  # no two starts of a run write the same folder
        self._group: Any = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    def _store(self, state: RunState) -> None:
        content, tensors = split(state.to_dict())
        self._count += 1
        written = write_shards(self._run_dir, f"shards-{self._start}-{self._count}", tensors, self._group)
        if written is not None:
            self._replace({**content, "shards": written}, state.identity)


class ShardedCheckpoint(SharedCheckpoint):
    """Saves in all processes, when the first one says so."""

    _due = False

    @property
    def _saves(self) -> bool:
        return True

    def _is_due(self) -> bool:
        return self._due

    def _agree(self, trainer: lightning.Trainer) -> None:
        super()._agree(trainer)
        self._due = self._team.from_leader(Checkpoint._is_due(self))


class ShardedWriter(RunWriter):
    """Writes model files in the first process, with the weights of all."""

    def __init__(self, layout: Layout, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._layout = layout
        self.current: dict[str, Tensor] | None = None
        """Whole weights of an interrupted run before its first validation."""

    def save_best(self, selected: SelectedWeights) -> None:
        """Write the best model so far; all processes call this together."""
        team = self._layout.team
        if not team.from_leader(self.best_is_due):
            return
        with team.pulse.working("saving") if team.leads else team.pulse.waiting():
            whole = gather(selected.weights, self._layout)
            if team.leads:
                super().save_best(replace(selected, weights=whole))

    def save_interrupted(self, selected: SelectedWeights | None, model: nn.Module) -> Path:
        """Write the model file of an interrupted run, whose weights have been gathered."""
        if selected is None and self.current is not None:
            return self._save("model.safetensors", self.current, None, 1.0, {})
        return super().save_interrupted(selected, model)
