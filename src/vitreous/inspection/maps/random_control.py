"""A map that knows nothing, to compare others with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, chosen
from vitreous.model.part import pair
from vitreous.model.vit import VisionTransformer

__all__ = ["RandomControl"]


@dataclass(frozen=True)
class RandomControl(MapMethod):
    """`random`: uniform noise in [0, 1), a control. The same seed gives the same map at each position of a batch.

    Args:
        seed: Of the noise.
    """

    kind = "random"
    title = "Random values"
    uses_class: ClassVar[bool] = False
    seed: int = 0

    @torch.no_grad()
    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        (ph, pw), generator = pair(model.config.patch_size), torch.Generator().manual_seed(self.seed)
        shape = len(images), images.shape[2] // ph, images.shape[3] // pw
        logits = model(images)
        noise = torch.rand(shape, generator=generator, dtype=torch.float32).to(images.device)
        return ClassMaps(noise, logits, chosen(logits, targets))
