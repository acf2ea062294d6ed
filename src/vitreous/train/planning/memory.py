"""The memory of a run that does not depend on the batch, counted before a step is made. plan.py measures the same."""

from __future__ import annotations

from torch import nn

from vitreous.train.config import RunConfig
from vitreous.train.loop.optim import MuonWithAdamW, build_optimizer

__all__ = ["fixed_bytes"]


def fixed_bytes(model: nn.Module, config: RunConfig) -> int:
    """Return the bytes of weights, gradients, optimiser state and moving average, as :class:`Memory.weights` of a plan.

    The few bytes in which Adam counts its steps are left out.
    """
    optimizer = build_optimizer(model, config.optim)
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    trained = sum(p.nbytes for group in optimizer.param_groups for p in group["params"])
    state = trained if config.optim.name == "sgd" and config.optim.momentum else 2 * trained
    if config.optim.name == "sgd" and not config.optim.momentum:
        state = 0
    if isinstance(optimizer, MuonWithAdamW):  # of a matrix it keeps the momentum alone
        state -= sum(p.nbytes for group in optimizer.muon.param_groups for p in group["params"])
    average = sum(tensor.nbytes for tensor in model.state_dict().values()) if config.ema is not None else 0
    return weights + trained + state + average
