"""How the processes of a run share a model: each holds all of it. fsdp/ has the other way, in which each holds a part.

run.py asks what differs between the two of the object that :func:`~vitreous.train.scale.choice.choose` returns.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from vitreous.train.assembly import Kit, Session, make_module
from vitreous.train.resume.state import RunState
from vitreous.train.scale.callbacks import (
    PlaceEnvironment,
    SharedBudget,
    SharedCheckpoint,
    SharedMetricsLog,
    SharedWriter,
)
from vitreous.train.scale.shares import SharedVitModule
from vitreous.train.scale.team import Team
from vitreous.train.setup import Setup

__all__ = ["Replicated", "trainer_arguments"]


def trainer_arguments(team: Team, device: torch.device, kind: type[DDPStrategy] = DDPStrategy) -> dict[str, Any]:
    """Return the Trainer's arguments for several processes."""
    place = team.place
    strategy = kind(
        parallel_devices=[device] * place.devices, cluster_environment=PlaceEnvironment(place), broadcast_buffers=False
    )
    return {"strategy": strategy, "num_nodes": place.nodes, "use_distributed_sampler": False}


class Replicated:
    """Each process holds all weights, and DistributedDataParallel adds up the gradients."""

    reads_whole = True
    """Whether the first process reads a checkpoint for all."""

    saves_alone = True
    """Whether one process can save the state of the run."""

    def __init__(self, team: Team, device: torch.device, line: str) -> None:
        self.team, self.device = team, device
        self.line = line  # what this means, for the user

    def localise(self, state: RunState | None, run_dir: Path) -> RunState | None:
        """Return what this process holds of a state that the first one has read; all call this together."""
        return state

    def kit(self, setup: Setup) -> Kit:
        """Return what the run of one of several processes is assembled from."""
        team = self.team
        return Kit(
            module=lambda setup, progress: make_module(setup, progress, partial(SharedVitModule, team)),
            metrics=partial(SharedMetricsLog, team),
            checkpoint=partial(SharedCheckpoint, team),
            writer=partial(SharedWriter, team),
            budget=partial(SharedBudget, team),
            strategy=trainer_arguments(team, self.device),
        )

    def begin(self, session: Session) -> None:
        """Prepare the model for training, after what one process does alone."""

    def end(self, session: Session) -> None:
        """Prepare the model for scores in float32, after training."""

    def gather(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole weights in the first process; all call this together."""
        return weights

    def gather_for_interrupted(self, session: Session) -> None:
        """Give the first process what it saves of a run that ends before training does; all call this together."""
