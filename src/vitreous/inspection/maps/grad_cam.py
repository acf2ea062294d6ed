"""Grad-CAM on tokens. Shapes: B batch, P prefix tokens, N patches, D width, (h, w) patches down and across."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, block_name, chosen, score
from vitreous.model.vit import VisionTransformer

__all__ = ["GradCam"]


@dataclass(frozen=True)
class GradCam(MapMethod):
    """`grad-cam`: patch tokens weighted by the mean gradient of each channel (arXiv 1610.02391, equations 1 and 2).

    Values are at least 0: the positive part of the weighted sum over channels.

    Args:
        layer: The block whose input tokens are weighted, from 0; negative numbers count from the end. After the last
            block, patches have no gradient where the class token is read, so that its input is the last that serves.
    """

    kind = "grad-cam"
    title = "Grad-CAM"
    layer: int = -1

    def remark(self) -> str:
        return "" if self.layer == -1 else f"input of {block_name(self.layer)}"

    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        values = model.intermediates(images.requires_grad_(), [self.layer])
        targets, z = chosen(values.logits, targets), values.layers[0].before
        (gradient,) = torch.autograd.grad(score(values.logits, targets), z)
        z, gradient = (x[:, values.prefix_tokens :] for x in (z.detach(), gradient))  # B N D
        weights = gradient.mean(1)  # B D: equation 1
        cam = (z @ weights[..., None])[..., 0].relu()  # B N: equation 2
        return ClassMaps(cam.unflatten(1, values.grid), values.logits, targets)
