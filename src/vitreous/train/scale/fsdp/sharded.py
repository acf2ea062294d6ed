"""How the processes of a run share a model of which each holds a part, for run.py."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from vitreous.runs.shards import fill
from vitreous.train.assembly import Kit, Session, make_module
from vitreous.train.results import copy_weights
from vitreous.train.resume.state import RunState
from vitreous.train.scale.fsdp.layout import Layout
from vitreous.train.scale.fsdp.module import ShardedStrategy, ShardedVitModule
from vitreous.train.scale.fsdp.saving import ShardedCheckpoint, ShardedSaver, ShardedWriter, gather
from vitreous.train.scale.fsdp.sharding import refuse_unsharded
from vitreous.train.scale.replicated import Replicated, trainer_arguments
from vitreous.train.scale.team import Team
from vitreous.train.setup import Setup

__all__ = ["Sharded"]


class Sharded(Replicated):
    """Each process holds a part of the weights, gradients and optimiser state."""

    reads_whole = saves_alone = False

    def __init__(self, team: Team, setup: Setup, line: str) -> None:
        super().__init__(team, setup.device, line)
        team.together(lambda: refuse_unsharded(setup.model))
        self.layout = Layout(team, setup.device)
        self._parameters = {name for name, _ in setup.model.named_parameters()}

    def localise(self, state: RunState | None, run_dir: Path) -> RunState | None:
        """Return this process's rows of a state, whether it was saved in shards or whole."""
        if state is None:
            return None
        content = fill(run_dir, state.to_dict(), self.layout.empty)
        best = content["best"]
        if best is not None:
            best = {**best, "weights": self._cut_weights(best["weights"])}
        states = content["optimizer"]["state"]
        optimizer = {**content["optimizer"], "state": {index: self._cut_all(each) for index, each in states.items()}}
        average = content["average"]
        return replace(
            RunState(**content),
            model=self._cut_weights(content["model"]),
            average=self._cut_weights(average) if average is not None else None,
            optimizer=optimizer,
            best=best,
        )

    def _cut_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._cut(value) if name in self._parameters else value for name, value in weights.items()}

    def _cut_all(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: self._cut(value) for name, value in values.items()}

    def _cut(self, value: Any) -> Any:
        whole = isinstance(value, Tensor) and not hasattr(value, "placements") and value.ndim > 0
        return self.layout.cut(value) if whole else value

    def kit(self, setup: Setup) -> Kit:
        """Return what the run of one of several processes is assembled from."""
        team, layout, compiles = self.team, self.layout, setup.config.compile
        return replace(
            super().kit(setup),
            module=lambda setup, progress: make_module(setup, progress, partial(ShardedVitModule, layout, compiles)),
            checkpoint=partial(ShardedCheckpoint, team),
            writer=partial(ShardedWriter, layout),
            # What a first pass gathers is used again by later ones, which torch 2.11 refuses for inference tensors.
            strategy={**trainer_arguments(team, self.device, ShardedStrategy), "inference_mode": False},
            saver=partial(ShardedSaver, team),
            compile=lambda model: None,  # block by block, where it is sharded
            restore=lambda module, state: cast(ShardedVitModule, module).restore_later(state),
        )

    def begin(self, session: Session) -> None:
        """Shard the model, which a probe in one process has needed whole."""
        cast(ShardedVitModule, session.module).shard(session.setup.precision == "bf16")

    def end(self, session: Session) -> None:
        """Score in float32 a model whose blocks were trained in bfloat16."""
        if session.setup.precision == "bf16":
            cast(ShardedVitModule, session.module).score_with(copy.deepcopy(session.writer.model))

    def gather(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole weights in the first process; all call this together."""
        return gather(weights, self.layout)

    def gather_for_interrupted(self, session: Session) -> None:
        """Give the first process what it saves of a run that ends before training does; all call this together."""
        if session.trained or not session.checkpoint.begun:
            return
        if session.selection.best is not None:
            whole = self.gather(session.selection.best.weights)
            session.selection.best = replace(session.selection.best, weights=whole)
        else:
            cast(ShardedWriter, session.writer).current = self.gather(copy_weights(session.module.eval_model))
