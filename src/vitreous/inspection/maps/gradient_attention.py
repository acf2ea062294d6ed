"""Gradient-weighted attention over all layers. Shapes: B batch, T tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, chosen, score
from vitreous.inspection.maps.readout import on_grid, positive_weights, readout
from vitreous.model.vit import VisionTransformer

__all__ = ["GradientAttention"]


@dataclass(frozen=True)
class GradientAttention(MapMethod):
    """`gradient-attention`: attention times its gradient, accumulated over layers (arXiv 2103.15679, section 3.1).

    R = I, then R += mean_h ReLU(dL/dA * A) R in each layer (equations 5 and 6). The map is the row of R that the
    pooling reads. Values are at least 0.
    """

    kind = "gradient-attention"

    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        values = model.intermediates(images.requires_grad_())
        targets = chosen(values.logits, targets)
        attentions = [*values.layers, *([values.pooling] if values.pooling else [])]
        gradients = torch.autograd.grad(score(values.logits, targets), [each.mixed for each in attentions])
        with torch.no_grad():
            row = readout(model, values, gradients[-1] if values.pooling else None)  # B 1 T
            # The row times (I + A_L) ... (I + A_1) from the left: T^2 products per layer, where R itself takes T^3.
            for layer, gradient in reversed(list(zip(values.layers, gradients, strict=False))):
                row = row + row @ positive_weights(layer, gradient)
        return ClassMaps(on_grid(row, values), values.logits, targets)
