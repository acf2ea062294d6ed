"""Gradient-weighted attention over all layers. Shapes: B batch, C channels, H x W pixels, D width, T tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, chosen, score
from vitreous.inspection.maps.readout import on_grid, positive_weights, readout
from vitreous.model.vit import VisionTransformer

__all__ = ["GradientAttention", "rounding"]


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
                row = _shares(_above_mean(values.tokens, of_tokens, row > 0))
            # The row times (I + A_L) ... (I + A_1) from the left: T^2 products per layer, where R itself takes T^3.
            # What attention adds is summed apart: where it is little, a difference of rows would be all rounding.
            added = torch.zeros_like(row)
            for layer, gradient in reversed(list(zip(values.layers, gradients, strict=False))):
                added = added + (row + added) @ positive_weights(layer, gradient)
            row = row + (_shares(added) if is_mean else added)
        return ClassMaps(on_grid(row, values), values.logits, targets)


def rounding(model: VisionTransformer, images: Tensor, targets: Tensor) -> Tensor:
    """Return how far the rounding of float32 may move the map of each image, as a share of its largest value, (B,).

    Only where the mean of the patches is read, a map starts from a difference: of each token's contribution from their
    mean. In a plain image, tokens are nearly equal, and their differences are small beside ``|z| |dL/dz|``, which
    decides how values are rounded. Measured in float32 beside float64, maps then differ by 0.1 to 1.2 times what is
    returned.

    Args:
        model: In evaluation mode.
        images: Normalised, B x C x H x W.
        targets: A class for each image, integers (B,).
    """
    if model.config.pool.kind != "mean":
        return images.new_zeros(len(images))
    with torch.enable_grad():
        values = model.intermediates(images.detach().clone().requires_grad_(), [])
        z = values.tokens
        (gradient,) = torch.autograd.grad(score(values.logits, targets), z)
    with torch.no_grad():
        above = _above_mean(z, gradient, readout(model, values) > 0).amax((1, 2))
        sizes = z.norm(dim=-1).amax(1) * gradient.norm(dim=-1).amax(1)  # B
        return torch.finfo(torch.float32).eps * sizes / above.clamp_min(torch.finfo(above.dtype).tiny)


def _above_mean(z: Tensor, gradient: Tensor, pooled: Tensor) -> Tensor:
    """Return how far each pooled token's contribution to the class score is above their mean, or 0, B x 1 x T.

    Args:
        z: Tokens that the pooling reads, B x T x D.
        gradient: Of the class score by ``z``.
        pooled: Which tokens the mean is over, B x 1 x T bool.
    """
    each = (z * gradient).sum(-1)[:, None]  # B 1 T; 0 for tokens that are not pooled
    mean = each.sum(-1, keepdim=True) / pooled.sum(-1, keepdim=True)
    return (each - mean).relu() * pooled


def _shares(row: Tensor) -> Tensor:
    """Return a row B x 1 x T divided by its sum; zeros stay zeros."""
    total = row.sum(-1, keepdim=True)
    return row / torch.where(total > 0, total, 1)
