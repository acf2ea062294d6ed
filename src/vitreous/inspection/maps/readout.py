"""How much the pooling reads of each token: the row from which maps of attention start.

Shapes: B batch, H heads, (h, w) patches down and across, P prefix tokens, T = P + h w tokens, M queries (T in a block,
1 in pooling), d channels of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model.intermediates import AttentionValues, Intermediates
from vitreous.model.vit import VisionTransformer

__all__ = ["by_scores", "on_grid", "positive_weights", "readout"]


def readout(model: VisionTransformer, values: Intermediates, gradient: Tensor | None = None) -> Tensor:
    """Return the row of the pooling over all tokens, B x 1 x T.

    It is the class token for `cls`, the mean of the pooled tokens for `mean` and `prefix`, half of each for `cls-mean`,
    and for `map` and `seq` the pooling's own weights, averaged over heads. Without a gradient a row sums to 1.

    Args:
        model: The model.
        values: Of its pass.
        gradient: Of the class score by ``values.pooling.mixed``, B x H x 1 x d. With it, the pooling's weights are
            those of :func:`by_scores`; the other poolings have no weights that depend on the image.
    """
    z, pool = values.tokens, model.config.pool
    if values.pooling is not None:
        attended = values.pooling
        row = attended.weights().mean(1) if gradient is None else by_scores(attended, gradient)
        return F.pad(row, (z.shape[1] - row.shape[-1], 0))  # a pooling that skips the prefix has fewer
    class_token, mean = torch.zeros(2, 1, 1, z.shape[1], dtype=z.dtype, device=z.device)
    class_token[..., 0] = 1
    mean[..., 0 if getattr(pool, "prefix", False) else values.prefix_tokens :] = 1
    mean = mean / mean.sum()
    prefix = torch.zeros_like(class_token)
    prefix[..., : values.prefix_tokens] = 1 / max(1, values.prefix_tokens)
    rows = {"cls": class_token, "prefix": prefix, "mean": mean, "cls-mean": (class_token + mean) / 2}
    return rows[pool.kind].expand(z.shape[0], -1, -1)


def positive_weights(values: AttentionValues, gradient: Tensor) -> Tensor:
    """Return mean_h ReLU(dL/dA * A), B x M x T: equation 5 of arXiv 2103.15679.

    Args:
        values: Of one attention.
        gradient: Of the class score by ``values.mixed``, B x H x M x d.
    """
    return (values.weights_gradient(gradient) * values.weights()).relu_().mean(1)


def by_scores(values: AttentionValues, gradient: Tensor) -> Tensor:
    """Return mean_h ReLU(dL/ds), B x M x T, where s are the scores before the softmax.

    Weights sum to 1, so that only differences of dL/dA count: dL/ds = A (dL/dA - sum_t A dL/dA).

    Args:
        values: Of one attention.
        gradient: Of the class score by ``values.mixed``, B x H x M x d.
    """
    weights, by_weights = values.weights(), values.weights_gradient(gradient)
    mean = (weights * by_weights).sum(-1, keepdim=True)
    return (weights * (by_weights - mean)).relu_().mean(1)


def on_grid(row: Tensor, values: Intermediates) -> Tensor:
    """Return the patches' part of a row B x 1 x T as B x h x w."""
    return row[:, 0, values.prefix_tokens :].unflatten(-1, values.grid)
