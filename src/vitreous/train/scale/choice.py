"""Chooses how the processes of a run share its model: by --strategy, or by what fits into memory."""

from __future__ import annotations

import torch

from vitreous.machine.free_memory import memory_left
from vitreous.train.planning.memory import fixed_bytes
from vitreous.train.scale.replicated import Replicated
from vitreous.train.scale.team import Team
from vitreous.train.setup import Setup

__all__ = ["choose", "fits"]

_KEPT_FREE = 0.1  # fraction of the free memory that is not planned for
_GB = 1e9


def choose(asked: str, setup: Setup, team: Team) -> Replicated:
    """Return how the processes share the model; all call this together."""
    fixed, images = fixed_bytes(setup.model, setup.config), setup.data_module.train_sampler.batch_size
    images = -(-images // setup.data_module.train_sampler.accumulate // team.world)
    activations = images * setup.cost.activation_bytes // (2 if setup.precision == "bf16" else 1)
    free = _free_bytes(setup.device, team.place.devices)
    too_large = bool(team.largest(not fits(fixed, activations, free)))
    name = asked if asked != "auto" else "fsdp" if too_large else "ddp"
    each = fixed // team.world if name == "fsdp" else fixed
    needed = f"about {(each + activations) / _GB:.2g} GB" + ("" if free is None else f" of {free / _GB:.2g} free")
    shared = f"a part of the weights (fsdp, {needed})" if name == "fsdp" else f"all weights (ddp, {needed})"
    line = f"each with a share of every batch and {shared}"
    if name == "fsdp" and not fits(each, activations, free):
        line += "; that may not fit: --model.block.checkpoint true and a larger --accumulate take less"
    if name == "ddp":
        return Replicated(team, setup.device, line)
    from vitreous.train.scale.fsdp.sharded import Sharded  # no other run pays for it

    return Sharded(team, setup, line)


def fits(fixed: int, activations: int, free: int | None) -> bool:
    """Return whether weights, gradients and optimiser state fit, with what a step needs besides."""
    return free is None or fixed + activations <= free * (1 - _KEPT_FREE)


def _free_bytes(device: torch.device, processes: int) -> int | None:
    """Return the free memory for this process: of its GPU, or its share of the machine's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    left = memory_left()
    return None if left is None else left // processes
