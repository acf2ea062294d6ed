"""Integrated gradients. Shapes: B batch, S steps of a chunk, C channels, H x W pixels, (h, w) patches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, by_patch, chosen, score
from vitreous.model.part import Shape, pair
from vitreous.model.vit import VisionTransformer

__all__ = ["IntegratedGradients"]


@dataclass(frozen=True)
class IntegratedGradients(MapMethod):
    """`integrated-gradients`: gradients by pixels on the way from a plain image (arXiv 1703.01365, equation 1).

    The plain image is 0 after normalisation: the mean colour of the training images. Values are summed over the pixels
    of a patch and may be negative; their total is the difference of the two images' logits (completeness).

    Args:
        steps: Points on the way, at least 1, by Gauss-Legendre quadrature. Each costs a forward and a backward pass.
        batch_size: Images per pass, at least 1.
    """

    kind = "integrated-gradients"
    title = "Integrated gradients"
    steps: int = 32
    batch_size: int = 8

    def problems(self, shape: Shape) -> Iterator[str]:
        for name in ("steps", "batch_size"):
            if getattr(self, name) < 1:
                yield f"{self.kind}: {name} is {getattr(self, name)}, it must be at least 1"

    def remark(self) -> str:
        return f"{self.steps} steps"

    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        with torch.no_grad():
            logits = model(images)
        targets = chosen(logits, targets)
        points, weights = (torch.from_numpy(x).to(images) for x in np.polynomial.legendre.leggauss(self.steps))
        chunk = max(1, self.batch_size // len(images))
        mean = torch.zeros_like(images)  # of the gradients, with the weights of the quadrature
        for at, weight in zip(((points + 1) / 2).split(chunk), (weights / 2).split(chunk), strict=True):
            on_way = (at[:, None, None, None, None] * images).flatten(0, 1).requires_grad_()  # SB C H W
            (gradient,) = torch.autograd.grad(score(model(on_way), targets.repeat(len(at))), on_way)
            mean += torch.einsum("s,sbchw->bchw", weight, gradient.unflatten(0, (len(at), -1)))
        (height, width), (ph, pw) = images.shape[2:], pair(model.config.patch_size)
        return ClassMaps(by_patch(images * mean, (height // ph, width // pw)), logits, targets)
