"""What a block leaves behind for a reader of one pass.

Shapes: B batch, H heads, T tokens (prefix and patches), M queries (T in a block, 1 in pooling), D width, d channels of
a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Record", "attention_weights"]

_IMAGE_ALONE = 1 << 17
"""Attention weights of an image from which on a CPU computes one image after the other: they stay in its cache, and the
strided queries, keys and values of one image need no copy. S/16 at 224 px: 0.93 of the time."""


@dataclass
class Record:
    """The values of one block, or of the attention of a pooling, in one pass.

    They are the tensors that the pass itself computes with, so gradients with respect to them exist.

    Attributes:
        explicit: Whether the block computes attention as equations 6 and 7 stand, with all weights, instead of by the
            fused kernel, in which weights do not exist. Computing them beside the fused kernel costs twice as much.
        before: Tokens that the block reads, (B, T, D), with any position that is added before it.
        after: Tokens after the block, (B, T, D).
        queries: As attention uses them, after their norm and rotation, (B, H, M, d).
        keys: Likewise, (B, H, T, d).
        values: (B, H, T, d).
        bias: What the position embedding adds to the scaled scores, broadcastable to (B, H, M, T), or None; minus
            infinity where a token cannot attend to another.
        mixed: The weighted mean of the values, before heads are joined and projected, (B, H, M, d).
        weights: What :meth:`attend` computed, (B, H, M, T).
    """

    explicit: bool = False
    before: Tensor | None = None
    after: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    bias: Tensor | None = None
    mixed: Tensor | None = None
    weights: Tensor | None = None

    def keep(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, mixed: Tensor) -> None:
        """Keep what attention computed."""
        self.queries, self.keys, self.values, self.bias, self.mixed = queries, keys, values, bias, mixed

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Return the weighted mean of the values, (B, H, M, d), and keep the weights (equations 6 and 7)."""
        is_plain = not torch.is_grad_enabled() and bias is None and queries.dtype == keys.dtype == torch.float32
        if is_plain and queries.device.type == "cpu" and queries[0, :, :, 0].numel() * keys.shape[2] >= _IMAGE_ALONE:
            self.weights, mixed = _attend_by_image(queries, keys, values)
            return mixed
        self.weights = attention_weights(queries, keys, bias)
        return self.weights.to(values.dtype) @ values


def attention_weights(queries: Tensor, keys: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return softmax(q kᵀ / sqrt(d) + bias), (B, H, M, T), in float32 at least (equation 6 of arXiv 2010.11929).

    Args:
        queries: (B, H, M, d).
        keys: (B, H, T, d).
        bias: Broadcastable to (B, H, M, T).
    """
    dtype = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):  # rows of bfloat16 weights do not sum to one
        q, k = (x.to(dtype).flatten(0, 1) for x in (queries, keys))  # (B * H, M, d), (B * H, T, d)
        in_place = not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad))
        room = q.new_empty(q.shape[0], q.shape[1], k.shape[1])  # (B * H, M, T); with beta 0 its values are not read
        out = room if in_place else None
        scores = torch.baddbmm(room, q, k.transpose(1, 2), beta=0, alpha=1 / math.sqrt(q.shape[-1]), out=out)
        scores = scores.unflatten(0, queries.shape[:2])  # (B, H, M, T)
        if bias is not None:
            scores = scores + bias.to(dtype)
        # Another tensor of this size would cost about as much time as the softmax.
        return torch.softmax(scores, -1, out=scores) if in_place else scores.softmax(-1)


def _attend_by_image(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return what :func:`attention_weights` does, and weights times values, (B, H, M, d), to the same bits."""
    B, H, M, d = q.shape
    weights = q.new_empty(B, H, M, k.shape[2])
    mixed = q.new_empty(B, M, H, d).transpose(1, 2)  # as the fused kernel has it: joining the heads copies nothing
    for q_b, k_b, v_b, w, out in zip(q, k, v, weights, mixed, strict=True):
        torch.baddbmm(w, q_b, k_b.transpose(1, 2), beta=0, alpha=1 / math.sqrt(d), out=w)
        torch.bmm(torch.softmax(w, -1, out=w), v_b, out=out)
    return weights, mixed
