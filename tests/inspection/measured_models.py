"""Small models with drawn weights, and images, that the tests of measures share."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_reference import small_config, stir
from vitreous.accelerate.model import accelerate
from vitreous.model.vit import VisionTransformer


def model_of(fast: bool = False, **options: object) -> VisionTransformer:
    model = stir(VisionTransformer(small_config(**options))).double().eval()
    return accelerate(model) if fast else model


def images_of(model: VisionTransformer, count: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (count, model.config.in_channels, *model.config.image_size)
    return torch.randn(size, generator=generator, dtype=torch.float64)
