"""The optimiser of a model and the course of its learning rate, both as plain torch: no Trainer, no files.

The learning rate is a pure function of the share of the run that is done (:func:`schedule`), so a run that counts
steps and a run that has a wall-clock budget use the same one.
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

from vitreous.machine.device import computes_bf16
from vitreous.train.config import OptimConfig

__all__ = [
    "MuonWithAdamW",
    "StackedMuon",
    "build_optimizer",
    "layer_factors",
    "orthogonalised",
    "parameter_groups",
    "schedule",
    "set_learning_rate",
]

# OneCycleLR's defaults: the first rate is the peak / 25, the last is the first / 10,000.
_ONE_CYCLE_START = 1 / 25
_ONE_CYCLE_END = _ONE_CYCLE_START / 1e4

# Muon's polynomial a x + b x^3 + c x^5 of each singular value, and how often it is taken (torch.optim.Muon's defaults).
_NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)
_NEWTON_SCHULZ_STEPS = 5

_EMBEDDINGS = ("patch_embed.", "cls_token", "reg_token", "pos_embed")  # what stands below the first block


def schedule(config: OptimConfig, progress: float) -> float:
    """The learning rate at a point of the run, as a factor of its peak.

    Args:
        config: Reads `schedule`, `warmup` and `final_lr`.
        progress: Share of the run that is done, in [0, 1]; values outside are clipped.

    Returns:
        A factor in [0, 1]. `one-cycle` is ``torch.optim.lr_scheduler.OneCycleLR`` with cosine annealing,
        ``pct_start=warmup`` and its default division factors (25 and 10,000); only the rate, not the momentum.
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


def _cosine(start: float, end: float, share: float) -> float:
    """Go from start to end along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def set_learning_rate(optimizer: Optimizer, factor: float) -> None:
    """Set every group's rate to its peak (`initial_lr`, as torch's schedulers name it) times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def layer_factors(names: Iterable[str], layer_decay: float | None) -> dict[str, float]:
    """The learning rate of each parameter as a factor of the peak, by layer-wise decay.

    With L blocks: ``layer_decay ** (L - i)`` for block i from 0, ``layer_decay ** (L + 1)`` for what stands below the
    blocks (the patch embedding, tokens and positions), 1 for what stands above (the final norm, pooling, the head).

    Args:
        names: Of all of the model's parameters, trained or not: they tell the number of blocks.
        layer_decay: As `OptimConfig.layer_decay`; None is 1 everywhere.
    """
    names = list(names)
    if layer_decay is None:
        return dict.fromkeys(names, 1.0)
    inside = {name: int(found[1]) for name in names if (found := re.search(r"(?:^|\.)blocks\.(\d+)\.", name))}
    blocks = 1 + max(inside.values(), default=-1)
    factors = {}
    for name in names:
        below = blocks + 1 if name.startswith(_EMBEDDINGS) else 0
        factors[name] = layer_decay ** (blocks - inside[name] if name in inside else below)
    return factors


def parameter_groups(model: nn.Module, weight_decay: float, layer_decay: float | None = None) -> list[dict[str, Any]]:
    """Trainable parameters in groups: the weights of linear and convolution layers decay, nothing else does.

    So biases, norms, position embeddings, class and register tokens, latents and LayerScale factors never decay,
    whatever their shape. With layer-wise learning rates each rate has its groups, the lowest first, so that the last
    group has the peak rate.

    Returns:
        Groups for a torch optimiser, with `params`, `names` (same order), `weight_decay` and `lr_factor`; no empty
        group.
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
    """Muon, with the matrices of one shape in one batched product: torch's updates to bfloat16's rounding.

    A model has as many matrices of a shape as blocks, and products of small ones cost little more than their calls. A
    convolution is the matrix of its filters, a row for each, as in the author's code; torch's Muon takes none.

    Args:
        params: Groups of parameters of at least two dimensions, each with its `weight_decay`, which is decoupled.
        lr: A matrix of A rows and B columns has the rate ``lr * sqrt(max(1, A / B))``.
        momentum: Nesterov's, in [0, 1).
    """

    def __init__(self, params: list[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all matrices once; no closure is called here."""
        for group in self.param_groups:
            stacks: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    stacks.setdefault(matrix.shape, []).append(matrix)
            for matrices in stacks.values():
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of one shape."""
        for matrix in matrices:
            if "momentum_buffer" not in self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        momenta = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        wanted = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"]))
        turned = orthogonalised(wanted.flatten(2)).to(wanted.dtype).reshape(wanted.shape)
        rows, columns = matrices[0].flatten(1).shape
        rate = group["lr"] * math.sqrt(max(1, rows / columns))
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, list(turned.unbind()), alpha=-rate)


def orthogonalised(stack: Tensor) -> Tensor:
    """Turn matrices (B, rows, columns) into nearly orthogonal ones of the same shape.

    By the quintic Newton-Schulz iteration of Muon, whose singular values end between about 0.7 and 1.2. In bfloat16, as
    torch's; in float32 on a device that has no bfloat16 in hardware.
    """
    a, b, c = _NEWTON_SCHULZ
    x = stack.bfloat16() if computes_bf16(stack.device) else stack
    tall = x.shape[1] > x.shape[2]
    x = x.mT.contiguous() if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class MuonWithAdamW(Optimizer):
    """Muon on hidden matrices and AdamW on everything else, as one optimiser with one state.

    Muon (Keller Jordan, 2024) replaces each matrix's momentum by its nearest orthogonal matrix, found with five
    Newton-Schulz iterations; it is for the matrices between hidden layers. Rates are scaled as in the author's code and
    by torch's ``adjust_lr_fn="original"``, so those near 0.02 suit it (``"match_rms_adamw"`` would scale by
    ``0.2 * sqrt(max(A, B))``, to reuse AdamW's rates).

    Both parts share this object's `param_groups` and `state`, so schedules, checkpoints and Lightning see one.

    Args:
        matrices: Groups of matrices and convolutions for Muon.
        rest: Groups for AdamW.
        config: Reads `lr`, `muon_lr`, `betas` and `momentum`.
    """

    def __init__(self, matrices: list[dict[str, Any]], rest: list[dict[str, Any]], config: OptimConfig) -> None:
        self._muon = StackedMuon(matrices, lr=config.muon_lr, momentum=config.momentum)
        self._adamw = torch.optim.AdamW(rest, lr=config.lr, betas=config.betas, fused=_fusable(rest))
        super().__init__(self._muon.param_groups + self._adamw.param_groups, {})
        self._share()

    def _share(self) -> None:
        """Let both parts use this optimiser's groups and state, which loading replaces."""
        count = len(self._muon.param_groups)
        self._muon.param_groups, self._adamw.param_groups = self.param_groups[:count], self.param_groups[count:]
        self._muon.state = self._adamw.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters once; a closure is evaluated first and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._muon.step()
        self._adamw.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that :meth:`state_dict` of the same class gave."""
        super().load_state_dict(state_dict)
        self._share()


def build_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """Build the optimiser; each group's `initial_lr` holds its peak rate for :func:`set_learning_rate`.

    Weight decay is decoupled in `adamw` and `muon`; `adam` and `sgd` add it to the gradient, as torch's classes do.
    """
    groups = parameter_groups(model, config.weight_decay, config.layer_decay)
    optimizer: Optimizer
    if config.name == "muon":
        matrices, rest = _split_matrices(groups, config.muon_stem)
        optimizer = MuonWithAdamW(matrices, rest, config) if matrices else _adamw(rest, config)
    elif config.name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    elif config.name == "adam":
        optimizer = torch.optim.Adam(groups, lr=config.lr, betas=config.betas, fused=_fusable(groups))
    else:
        optimizer = _adamw(groups, config)
    for group in optimizer.param_groups:
        group["lr"] *= group["lr_factor"]
        group["initial_lr"] = group["lr"]
    return optimizer


def _adamw(groups: list[dict[str, Any]], config: OptimConfig) -> Optimizer:
    """AdamW with the weight decay of each group."""
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=_fusable(groups))


def _fusable(groups: list[dict[str, Any]]) -> bool:
    """Whether torch's one-kernel Adam runs where the parameters are."""
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for g in groups for p in g["params"])


def _split_matrices(groups: list[dict[str, Any]], stem: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Part the matrices inside `blocks`, and those of the stem if they are wanted (for Muon), from everything else."""
    matrices: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for group in groups:
        for target, wanted in ((matrices, True), (rest, False)):
            pairs = zip(group["names"], group["params"], strict=True)
            chosen = [(name, p) for name, p in pairs if _for_muon(name, p, stem) == wanted]
            if chosen:
                target.append({**group, "names": [name for name, _ in chosen], "params": [p for _, p in chosen]})
    return matrices, rest


def _for_muon(name: str, parameter: Tensor, stem: bool) -> bool:
    if name.startswith("patch_embed."):
        return stem and parameter.ndim > 1
    return "blocks." in name and name.endswith(".weight") and parameter.ndim == 2
