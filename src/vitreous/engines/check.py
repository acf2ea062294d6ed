"""Whether an engine agrees with PyTorch in float32: a check picture, and the bounds.

Shapes: B batch, C channels, H x W pixels, K classes, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.engines.base import Engine
from vitreous.engines.names import Precision

__all__ = ["TOLERANCE", "Agreement", "agreement", "check_picture"]


@dataclass(frozen=True)
class Agreement:
    """How far an engine is from the reference, or may be.

    Args:
        logits: The largest difference of two logits, less their mean, as a share of the largest.
        features: The same of features, as they are.
        probabilities: The largest difference of two calibrated probabilities.
    """

    logits: float
    features: float
    probabilities: float

    def within(self, bound: Agreement) -> bool:
        """Whether no difference is above its bound; one that is no number is."""
        return all(getattr(self, name) <= getattr(bound, name) for name in ("logits", "features", "probabilities"))

    def __str__(self) -> str:
        return f"logits {self.logits:.1e}, features {self.features:.1e}, probabilities {self.probabilities:.1e}"


TOLERANCE: dict[Precision, Agreement] = {
    "float32": Agreement(1e-4, 1e-4, 1e-4),
    "bf16": Agreement(5e-2, 5e-2, 2e-2),
}
"""Bounds by precision: several times what sound engines showed on every variant of the model, 5e-7 in float32, and 1e-2
in bfloat16, which rounds each number to 8 bits, 4e-3 of its value (docs/benchmarks.md)."""


def check_picture(channels: int, size: tuple[int, int]) -> Tensor:
    """Return the check picture, 1 x C x H x W of uint8, always the same: waves of several lengths, edges, and grain."""
    random = np.random.default_rng(0)
    y, x = np.meshgrid(*(np.linspace(0, 1, side) for side in size), indexing="ij")
    planes = []
    for channel in range(channels):
        waves = sum(np.sin(2 * np.pi * (n * x + (channel + 1) * y / n)) / n for n in (1, 3, 8))
        square = (abs(x - 0.4) < 0.2) & (abs(y - 0.3 - 0.1 * channel) < 0.15)
        planes.append(127 + 50 * waves + 60 * square + random.normal(0, 8, size))
    return torch.from_numpy(np.clip(np.stack(planes), 0, 255).astype(np.uint8))[None]


def agreement(engine: Engine, images: Tensor, reference: tuple[Tensor, Tensor], temperature: float) -> Agreement:
    """Have an engine compute a batch of the picture twice, and compare both rows with the reference's.

    Args:
        engine: What is checked.
        images: The check picture, normalised, 1 x C x H x W.
        reference: Its logits 1 x K and features 1 x F by PyTorch in float32.
        temperature: Of the model's probabilities.
    """
    logits, features = engine(images.expand(2, -1, -1, -1))
    if logits.shape[1:] != reference[0].shape[1:] or features.shape[1:] != reference[1].shape[1:]:
        return Agreement(torch.inf, torch.inf, torch.inf)
    own, right = (each - each.mean(1, keepdim=True) * (each.shape[1] > 1) for each in (logits, reference[0]))
    chances = [(each / temperature).softmax(1) for each in (own, right)]
    return Agreement(_share(own, right), _share(features, reference[1]), float((chances[0] - chances[1]).abs().max()))


def _share(own: Tensor, right: Tensor) -> float:
    """The largest difference as a share of the largest value."""
    return float((own - right).abs().max() / right.abs().max().clamp_min(1e-6))
