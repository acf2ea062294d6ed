"""LeGrad. Shapes: B batch, H heads, T tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, chosen, score
from vitreous.inspection.maps.readout import on_grid
from vitreous.model.vit import VisionTransformer

__all__ = ["LeGrad"]


@dataclass(frozen=True)
class LeGrad(MapMethod):
    """`legrad`: how each layer's attention changes the class score read off that layer (LeGrad, arXiv 2404.03214).

    The tokens after each block pass through the final norm, the pooling and the head. Of the score's gradient by that
    block's attention weights, the positive part is averaged over heads and queries; the map is the mean of the layers.
    Values are at least 0; the paper scales them to [0, 1] afterwards.
    """

    kind = "legrad"
    title = "LeGrad"

    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        values = model.intermediates(images.requires_grad_())
        targets = chosen(values.logits, targets)
        total = torch.zeros_like(values.tokens[:, None, :, 0])  # B 1 T
        for layer in values.layers:
            pooled = model.pool(model.norm(layer.after))
            logits = model.head(model.pre_logits(model.fc_norm(pooled)))
            # Only this block lies between its attention and its tokens: all layers together cost one backward pass.
            (gradient,) = torch.autograd.grad(score(logits, targets), layer.mixed, retain_graph=True)
            with torch.no_grad():
                total += layer.weights_gradient(gradient).relu_().mean((1, 2))[:, None]
        return ClassMaps(on_grid(total / len(values.layers), values), values.logits, targets)
