"""VISReg (arXiv 2606.02572): agreement of views, and a regulariser of variance, shape and centre. No teacher, no queue.

The shape term is a sliced Wasserstein distance: along random directions, the sorted projections of the images are
compared with the quantiles of a normal distribution.

Shapes: V views, B batch, D outputs of the projector, S slices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.train.pretrain.objectives.invariance import Invariance, RegulariserConfig, unit_vectors

__all__ = ["VisReg", "VisRegConfig", "center_loss", "scale_loss", "shape_loss"]

_EPS = 1e-4


@dataclass(frozen=True)
class VisRegConfig(RegulariserConfig):
    """Variance and sliced Wasserstein distance (:mod:`vitreous.train.pretrain.objectives.visreg`).

    Args:
        weight: Weight of the regulariser in the loss, in [0, 1]; that of the agreement is 1 minus it. The paper has 0.6
            for small datasets and 0.9 for large ones.
        slices: Number of random directions, drawn anew in each step. The paper has 4,096.
        hidden: Width of the hidden layers of the projector.
        outputs: Outputs of the projector.
        scale: Weight of the variance term in the regulariser.
        shape: Weight of the sliced Wasserstein term.
        center: Weight of the term for the mean.
    """

    weight: float = 0.6
    scale: float = 1.0
    shape: float = 1.0
    center: float = 1.0

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        negative = [f"visreg.{n} is {getattr(self, n)}" for n in ("scale", "shape", "center") if getattr(self, n) < 0]
        if negative:
            raise ConfigError(f"{'; '.join(negative)}: a weight cannot be negative")


class VisReg(Invariance):
    """Agreement of views with VISReg's regulariser."""

    part_names = ("agreement", "scale", "shape", "center")

    def regulariser(self, z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of the three terms; the statistics are those of each view on its own."""
        own = self.options
        parts = {
            "scale": scale_loss(z),
            "shape": shape_loss(z, unit_vectors(z.shape[-1], own.slices, z)),
            "center": center_loss(z),
        }
        return own.scale * parts["scale"] + own.shape * parts["shape"] + own.center * parts["center"], parts


def scale_loss(z: Tensor) -> Tensor:
    """Return the mean squared distance from 1 of each dimension's standard deviation, for (..., B, D); equation 1."""
    return (1 - z.std(dim=-2, unbiased=False)).square().mean()


def center_loss(z: Tensor) -> Tensor:
    """Return the mean square of each dimension's mean; equation 6."""
    return z.mean(dim=-2).square().mean()


def shape_loss(z: Tensor, slices: Tensor) -> Tensor:
    """Return the sliced Wasserstein distance of (..., B, D) from a normal distribution along (D, S); equation 5.

    Scale is divided out, and no gradient flows through it.
    """
    mean, std = z.mean(dim=-2, keepdim=True), z.std(dim=-2, unbiased=False, keepdim=True)
    sliced = ((z - mean) / (std.detach() + _EPS)) @ slices  # (..., B, S)
    B = z.shape[-2]
    quantiles = torch.special.ndtri(torch.arange(1, B + 1, device=z.device, dtype=torch.float32) / (B + 1))
    return (sliced.sort(dim=-2).values - quantiles.to(z)[:, None]).square().mean()
