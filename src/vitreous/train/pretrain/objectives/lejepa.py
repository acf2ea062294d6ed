"""LeJEPA (arXiv 2511.08544): agreement of views, and SIGReg, which makes embeddings isotropic Gaussian.

SIGReg compares, along random directions, the characteristic function of the embeddings with that of a normal
distribution (the Epps-Pulley statistic). No teacher, no queue.

Shapes: V views, B batch, D outputs of the projector, S slices, T frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.train.pretrain.objectives.invariance import Invariance, RegulariserConfig, unit_vectors

__all__ = ["LeJepa", "LeJepaConfig", "sigreg"]

_KNOTS, _HIGHEST = 17, 3.0  # frequencies 0 to 3, as in the paper


@dataclass(frozen=True)
class LeJepaConfig(RegulariserConfig):
    """Sketched isotropic Gaussian regularisation (:mod:`vitreous.train.pretrain.objectives.lejepa`).

    Args:
        weight: Weight of SIGReg in the loss, in [0, 1]; that of the agreement is 1 minus it. The paper explores 0.01 to
            0.1.
        slices: Number of random directions, drawn anew in each step. The paper has 1,024.
        hidden: Width of the hidden layers of the projector.
        outputs: Outputs of the projector.
    """

    group: ClassVar[str] = "lejepa"
    weight: float = 0.05


class LeJepa(Invariance):
    """Agreement of views with SIGReg."""

    part_names = ("agreement", "sigreg")

    def regulariser(self, z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return SIGReg, computed for each view on its own and averaged."""
        value = sigreg(z, unit_vectors(z.shape[-1], self.options.slices, z))
        return value, {"sigreg": value}


def sigreg(z: Tensor, slices: Tensor) -> Tensor:
    """Return the Epps-Pulley statistic of (..., B, D) along (D, S), averaged over slices.

    The integral over frequencies from -3 to 3 has the trapezoidal rule; the integrand is even.
    """
    t = torch.linspace(0, _HIGHEST, _KNOTS, device=z.device, dtype=z.dtype)  # T
    gaussian = torch.exp(-t.square() / 2)
    steps = torch.full_like(t, 2 * _HIGHEST / (_KNOTS - 1))
    steps[[0, -1]] /= 2
    angles = (z @ slices)[..., None] * t  # (..., B, S, T)
    real, imaginary = angles.cos().mean(-3), angles.sin().mean(-3)
    error = (real - gaussian).square() + imaginary.square()  # (..., S, T)
    return ((error @ (steps * gaussian)) * z.shape[-2]).mean()
