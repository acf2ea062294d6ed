"""The optimiser and the learning rate schedule, in plain PyTorch without a Trainer.

The learning rate is a pure function of the fraction of the run that is done (:func:`schedule`). The same function
therefore serves runs that count epochs or steps, and runs with a wall-clock budget.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitreous.train.config import OptimConfig

__all__ = [
    "MuonWithAdamW",
    "StackedMuon",
    "build_optimizer",
    "layer_factors",
    "move_average",
    "orthogonalise",
    "parameter_groups",
    "schedule",
    "set_learning_rate",
]

# OneCycleLR's defaults: the first rate is the peak / 25, and the last rate is the first / 10,000.
_ONE_CYCLE_START = 1 / 25
_ONE_CYCLE_END = _ONE_CYCLE_START / 1e4

# Each iteration of Muon maps the singular values x to a x + b x^3 + c x^5. Coefficients are torch.optim.Muon's.
_NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)
_NEWTON_SCHULZ_STEPS = 5

_EMBEDDINGS = ("patch_embed.", "cls_token", "reg_token", "pos_embed", "norm_pre.")  # parameters below the first block


def schedule(config: OptimConfig, progress: float) -> float:
    """Return the learning rate, as a fraction of its peak, when a fraction `progress` of the run is done.

    `progress` is clipped to [0, 1]. `one-cycle` equals ``torch.optim.lr_scheduler.OneCycleLR`` with cosine annealing,
    ``pct_start=warmup``, the default division factors (25 and 10,000) and constant momentum.
    """
    progress = min(max(progress, 0.0), 1.0)
    if config.schedule == "one-cycle":
        if progress < config.warmup:
            return _cosine(_ONE_CYCLE_START, 1.0, progress / config.warmup)
        return _cosine(1.0, _ONE_CYCLE_END, (progress - config.warmup) / (1 - config.warmup))
    if progress < config.warmup:
        return progress / config.warmup
    rest = (progress - config.warmup) / (1 - config.warmup)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "linear":
        return 1.0 + (config.final_lr - 1.0) * rest
    return _cosine(1.0, config.final_lr, rest)


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2


def set_learning_rate(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rate of each group to a factor times its peak, `initial_lr`."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def layer_factors(names: Iterable[str], layer_decay: float | None) -> dict[str, float]:
    """Return the learning rate of each parameter as a fraction of the peak, with layer-wise decay.

    With L blocks, the fraction is

    - ``layer_decay ** (L + 1)`` below the blocks (patch embedding, tokens, positions),
    - ``layer_decay ** (L - i)`` in block i, counted from 0,
    - 1 above the blocks (final norm, pooling, head).

    L is derived from `names`, so these must include frozen parameters.
    """
    names = list(names)
    if layer_decay is None:
        return dict.fromkeys(names, 1.0)
    of_encoder = [name for name in names if not name.startswith(_EMBEDDINGS)]  # a ResNet stem has blocks of its own
    block_of = {n: int(found[1]) for n in of_encoder if (found := re.search(r"(?:^|\.)blocks\.(\d+)\.", n))}
    blocks = 1 + max(block_of.values(), default=-1)
    layers_up = {name: blocks + 1 if name.startswith(_EMBEDDINGS) else 0 for name in names}
    layers_up |= {name: blocks - block for name, block in block_of.items()}
    return {name: layer_decay**count for name, count in layers_up.items()}


def parameter_groups(model: nn.Module, weight_decay: float, layer_decay: float | None = None) -> list[dict[str, Any]]:
    """Group the trainable parameters by weight decay and learning rate.

    Only the weights of linear and convolution layers decay. Biases, norms, position embeddings, tokens, latents and
    LayerScale factors do not, whatever their shape.

    Returns:
        Groups for a torch optimiser, each with `params`, their `names`, `weight_decay` and `lr_factor`. No group is
        empty. They are sorted by learning rate, so the last one has the peak rate.
    """
    decaying = {
        f"{path}.weight" if path else "weight"
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
    }
    factors = layer_factors((name for name, _ in model.named_parameters()), layer_decay)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = []
    for factor, decay in itertools.product(sorted({factors[name] for name, _ in named}), (True, False)):
        chosen = [(name, p) for name, p in named if (name in decaying) == decay and factors[name] == factor]
        if chosen:
            groups.append(
                {
                    "params": [p for _, p in chosen],
                    "names": [name for name, _ in chosen],
                    "weight_decay": weight_decay if decay else 0.0,
                    "lr_factor": factor,
                }
            )
    return groups


class StackedMuon(Optimizer):
    """Muon that updates all matrices of the same shape together. It equals torch's Muon up to bfloat16 rounding.

    Every block has matrices of the same shapes, and one batched product is faster than many small ones. A convolution
    is treated as a matrix with one filter per row, as in the author's code; torch's Muon does not accept convolutions.
    The learning rate of a matrix with A rows and B columns is ``lr * sqrt(max(1, A / B))``. Momentum is Nesterov's, and
    weight decay is decoupled.
    """

    def __init__(self, params: list[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all matrices. The closure is ignored."""
        for group in self.param_groups:
            stacks: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    stacks.setdefault(matrix.shape, []).append(matrix)
            for matrices in stacks.values():
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        for matrix in matrices:
            if "momentum_buffer" not in self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        gradients = [self.own(matrix.grad) for matrix in matrices if matrix.grad is not None]
        momenta = [self.own(self.state[matrix]["momentum_buffer"]) for matrix in matrices]
        values = [self.own(matrix) for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        stack = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"]))  # (matrices, A, B, ...)
        updates = self.orthogonal(stack, matrices[0].shape)
        rows = matrices[0].shape[0]
        columns = matrices[0].numel() // rows
        rate = group["lr"] * math.sqrt(max(1, rows / columns))
        torch._foreach_mul_(values, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(values, updates, alpha=-rate)

    def own(self, tensor: Tensor) -> Tensor:
        """Return what this process holds of a tensor: all of it, but for a model in shards (scale/fsdp)."""
        return tensor

    def orthogonal(self, stack: Tensor, shape: torch.Size) -> list[Tensor]:
        """Return the updates of a stack of matrices, (count, A, B, ...), whose shape is (A, B, ...)."""
        return list(orthogonalise(stack.flatten(2)).to(stack.dtype).reshape(stack.shape).unbind())


def orthogonalise(stack: Tensor) -> Tensor:
    """Approximately orthogonalise a stack of matrices, (count, rows, columns).

    Muon's quintic Newton-Schulz iteration moves all singular values to between about 0.7 and 1.2, so that an update
    changes all directions about equally. It runs in bfloat16, as in torch's Muon, where products of the step do
    (autocast); otherwise in the dtype of the stack, so that a run in float32 does not depend on the order of sums.
    """
    a, b, c = _NEWTON_SCHULZ
    x = stack.bfloat16() if torch.is_autocast_enabled(stack.device.type) else stack
    tall = x.shape[1] > x.shape[2]
    x = x.mT.contiguous() if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class MuonWithAdamW(Optimizer):
    """Muon for hidden weight matrices and AdamW for all other parameters, as one optimiser with one state.

    Muon (Keller Jordan, 2024) replaces the momentum of a matrix by the nearest orthogonal matrix, which five
    Newton-Schulz iterations approximate. Learning rates are scaled as in the author's code (``adjust_lr_fn="original"``
    in torch), for which values near 0.02 are a good start.
    """

    def __init__(self, matrices: list[dict[str, Any]], rest: list[dict[str, Any]], config: OptimConfig) -> None:
        self.muon = StackedMuon(matrices, lr=config.muon_lr, momentum=config.momentum)
        self._adamw = _adamw(rest, config)
        super().__init__(self.muon.param_groups + self._adamw.param_groups, {})
        self._share_state()

    def _share_state(self) -> None:
        """Make both optimisers use the groups and state of this one. Loading a state replaces them."""
        count = len(self.muon.param_groups)
        self.muon.param_groups, self._adamw.param_groups = self.param_groups[:count], self.param_groups[count:]
        self.muon.state = self._adamw.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters. If there is a closure, it is called first, and its loss is returned."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        self.muon.step()
        self._adamw.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that :meth:`state_dict` returned."""
        super().load_state_dict(state_dict)
        self._share_state()


def build_optimizer(model: nn.Module, config: OptimConfig, extra: nn.Module | None = None) -> Optimizer:
    """Build the optimiser of a model and, at the peak rate, of an extra module that is trained with it.

    Each group has its peak learning rate under `initial_lr`, where :func:`set_learning_rate` reads it. Weight decay is
    decoupled in `adamw` and `muon`; `adam` and `sgd` add it to the gradient, as torch's classes do.
    """
    groups = parameter_groups(model, config.weight_decay, config.layer_decay)
    if extra is not None:
        groups += parameter_groups(extra, config.weight_decay)
    optimizer: Optimizer
    if config.name == "muon":
        matrices, rest = _split_matrices(groups, config.muon_stem)
        optimizer = MuonWithAdamW(matrices, rest, config) if matrices else _adamw(rest, config)
    elif config.name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    elif config.name == "adam":
        optimizer = torch.optim.Adam(groups, lr=config.lr, betas=config.betas, fused=_fusable(groups))
    else:  # adamw
        optimizer = _adamw(groups, config)
    for group in optimizer.param_groups:
        group["lr"] *= group["lr_factor"]
        group["initial_lr"] = group["lr"]
    return optimizer


@torch.no_grad()
def move_average(averaged: dict[str, Tensor], current: dict[str, Tensor], decay: float) -> None:
    """Update a moving average of weights and of batch norm's statistics."""
    floats = [name for name, value in averaged.items() if value.is_floating_point()]
    torch._foreach_lerp_([averaged[n] for n in floats], [current[n] for n in floats], 1 - decay)
    for name in averaged.keys() - set(floats):
        averaged[name].copy_(current[name])


def _adamw(groups: list[dict[str, Any]], config: OptimConfig) -> Optimizer:
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=_fusable(groups))


def _fusable(groups: list[dict[str, Any]]) -> bool:
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for g in groups for p in g["params"])


def _split_matrices(groups: list[dict[str, Any]], stem: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    matrices: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for group in groups:
        for target, for_muon in ((matrices, True), (rest, False)):
            pairs = zip(group["names"], group["params"], strict=True)
            chosen = [(name, p) for name, p in pairs if _uses_muon(name, p, stem) == for_muon]
            if chosen:
                target.append({**group, "names": [name for name, _ in chosen], "params": [p for _, p in chosen]})
    return matrices, rest


def _uses_muon(name: str, parameter: Tensor, stem: bool) -> bool:
    """Return whether Muon updates a parameter: a matrix in a block or, with `stem`, a kernel of the patch embedding."""
    if re.search(r"(?:^|\.)patch_embed\.", name):  # in pretraining, of a backbone
        return stem and parameter.ndim > 1
    return "blocks." in name and name.endswith(".weight") and parameter.ndim == 2
