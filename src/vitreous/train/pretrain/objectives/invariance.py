"""What visreg and lejepa share: a projector, agreement of the views, and a regulariser against collapse.

Shapes: B batch, V views, V_g large ones, D outputs of the projector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError
from vitreous.train.pretrain.objectives.base import Losses
from vitreous.train.pretrain.objectives.spread import find_low_rank
from vitreous.train.pretrain.objectives.views import MultiView, ViewsConfig, make_projector

__all__ = ["Invariance", "RegulariserConfig", "invariance_loss", "unit_vectors"]

_SMALL = 0.1  # standard deviation of the projections; the regularisers pull it to 1


@dataclass(frozen=True)
class RegulariserConfig:
    """Options that visreg and lejepa share.

    Args:
        weight: Weight of the regulariser in the loss, in [0, 1]; that of the agreement is 1 minus it.
        slices: Number of random directions, drawn anew in each step.
        hidden: Width of the hidden layers of the projector.
        outputs: Outputs of the projector.
    """

    group: ClassVar[str] = "visreg"  # of the options, as errors name them
    weight: float = 0.5
    slices: int = 512
    hidden: int = 512
    outputs: int = 128

    def __post_init__(self) -> None:
        """Check ranges, and report all problems in one error."""
        problems = [] if 0 <= self.weight <= 1 else [f"{self.group}.weight is {self.weight}, it must be in [0, 1]"]
        problems += [
            f"{self.group}.{name} is {getattr(self, name)}, it must be from 1 to 65536"
            for name in ("slices", "hidden", "outputs")
            if not 1 <= getattr(self, name) <= 65536
        ]
        if problems:
            raise ConfigError("; ".join(problems))


class Invariance(MultiView):
    """Views of an image agree with the mean of its large views, and a regulariser spreads the images."""

    remedy = "Raise the weight of the regulariser and the batch size, or lower --optim.lr"

    def __init__(
        self, backbone: FastVisionTransformer, pipeline: EvalPipeline, options: Any, views: ViewsConfig
    ) -> None:
        super().__init__(backbone, pipeline, options, views)
        self.projector = make_projector(backbone.config.features, options.hidden, options.outputs)

    def forward(self, views: Sequence[Tensor]) -> Losses:
        """Return the weighted sum of agreement and regulariser. Only the first view is watched."""
        features = self.features_of(self.backbone, views)  # (V, B, F)
        z = self.projector(features.flatten(0, 1)).float().view(*features.shape[:2], -1)  # (V, B, D)
        with torch.autocast(z.device.type, enabled=False):
            agreement = invariance_loss(z, self.view_options.count)
            regulariser, parts = self.regulariser(z)
        weight = self.options.weight
        named = {"agreement": agreement.detach()} | {name: value.detach() for name, value in parts.items()}
        return Losses((1 - weight) * agreement + weight * regulariser, z[0].detach(), features[0].detach(), named)

    def regulariser(self, z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the regulariser of projections (V, B, D), and its terms."""
        raise NotImplementedError

    def find_collapse(self, embeddings: Tensor) -> str | None:
        """Name a collapse of the projections to a point, to a line, or in scale."""
        deviation = float(embeddings.var(0, unbiased=False).mean().sqrt())
        if deviation < _SMALL:
            return (
                f"complete collapse: the projections of all images are nearly equal, with a standard deviation of "
                f"{deviation:.2g} where the regulariser asks for 1"
            )
        return find_low_rank(embeddings)


def invariance_loss(z: Tensor, count: int) -> Tensor:
    """Return the mean squared distance of views (V, B, D) from the mean of the first ``count`` (arXiv 2511.08544)."""
    return (z[:count].mean(0) - z).square().mean()


def unit_vectors(features: int, count: int, like: Tensor) -> Tensor:
    """Draw random directions, (D, count)."""
    drawn = torch.randn(features, count, device=like.device, dtype=like.dtype)
    return drawn / drawn.norm(p=2, dim=0)
