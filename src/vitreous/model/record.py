"""What a block leaves behind for a reader of one pass; nothing is computed a second time except attention weights.

Shapes: B batch, H heads, T tokens (prefix and patches), M queries (T in a block, 1 in pooling), D width, d channels of
a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Record", "attention_weights"]


@dataclass
class Record:
    """The values of one block, or of the attention of a pooling, in one pass.

    They are the tensors that the pass itself computes with, so gradients with respect to them exist.

    Attributes:
        before: Tokens before the block, B x T x D.
        after: Tokens after the block, B x T x D.
        queries: As attention uses them, after their norm and rotation, B x H x M x d.
        keys: Likewise, B x H x T x d.
        values: B x H x T x d.
        bias: What the position embedding adds to the scaled scores, broadcastable to B x H x M x T, or None.
        mixed: The weighted mean of the values, before heads are joined and projected, B x H x M x d.
    """

    before: Tensor | None = None
    after: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    bias: Tensor | None = None
    mixed: Tensor | None = None

    def keep(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, mixed: Tensor) -> None:
        """Keep what attention computed."""
        self.queries, self.keys, self.values, self.bias, self.mixed = queries, keys, values, bias, mixed


def attention_weights(queries: Tensor, keys: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return softmax(q kᵀ / sqrt(d) + bias), B x H x M x T, in float32 at least (equation 6 of arXiv 2010.11929).

    Args:
        queries: B x H x M x d.
        keys: B x H x T x d.
        bias: Broadcastable to B x H x M x T.
    """
    dtype = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):  # rows of bfloat16 weights do not sum to one
        scaled = queries.to(dtype) * (1 / math.sqrt(queries.shape[-1]))
        scores = scaled @ keys.to(dtype).transpose(-2, -1)
        if bias is not None:
            scores = scores + bias.to(dtype)
        if scores.requires_grad:
            return scores.softmax(-1)
        return torch.softmax(scores, -1, out=scores)  # a second B x H x M x T tensor costs more time than the softmax
