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

    The paper's models read a class token. Where the pooling is an attention, the row starts with ReLU(dL/ds), the
    gradient by the pooling's scores before the softmax: with the gradient by its weights, tokens that speak less for
    the class than the others do would count too. Where the mean of the patches is read, the row would start with the
    same value for all of them, whatever they contribute. Instead it starts with how far the contribution of each token
    to the class score, z dL/dz after the last norm, is above the mean of them. The map is then the sum of two rows,
    each divided by its own sum: this one, and what attention adds to it.
    """

    kind = "gradient-attention"
    title = "Gradient x attention"

    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        values = model.intermediates(images.requires_grad_())
        targets = chosen(values.logits, targets)
        attentions = [*values.layers, *([values.pooling] if values.pooling else [])]
        inputs = [*(each.mixed for each in attentions), values.tokens]
        *gradients, of_tokens = torch.autograd.grad(score(values.logits, targets), inputs)
        is_mean = model.config.pool.kind == "mean"
        with torch.no_grad():
            row = readout(model, values, gradients[-1] if values.pooling else None)  # B 1 T
            if is_mean:
                row = _contributions(values.tokens, of_tokens, row > 0)
            # The row times (I + A_L) ... (I + A_1) from the left: T^2 products per layer, where R itself takes T^3.
            # What attention adds is summed apart: where it is little, a difference of rows would be all rounding.
            added = torch.zeros_like(row)
            for layer, gradient in reversed(list(zip(values.layers, gradients, strict=False))):
                added = added + (row + added) @ positive_weights(layer, gradient)
            row = row + (_shares(added) if is_mean else added)
        return ClassMaps(on_grid(row, values), values.logits, targets)


def _contributions(z: Tensor, gradient: Tensor, pooled: Tensor) -> Tensor:
    """Return how far each pooled token's contribution to the class score is above their mean, as shares, B x 1 x T.

    Args:
        z: Tokens that the pooling reads, B x T x D.
        gradient: Of the class score by ``z``.
        pooled: Which tokens the mean is over, B x 1 x T bool.
    """
    each = (z * gradient).sum(-1)[:, None]  # B 1 T; 0 for tokens that are not pooled
    mean = each.sum(-1, keepdim=True) / pooled.sum(-1, keepdim=True)
    return _shares((each - mean).relu() * pooled)


def _shares(row: Tensor) -> Tensor:
    """Return a row B x 1 x T divided by its sum; zeros stay zeros."""
    total = row.sum(-1, keepdim=True)
    return row / torch.where(total > 0, total, 1)
