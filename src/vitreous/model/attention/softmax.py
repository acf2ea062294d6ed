"""Multi-head self-attention (appendix A of arXiv 2010.11929).

Shapes: B batch, H heads, T tokens (prefix and patches), D width, d = D / H channels per head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.init import Scheme
from vitreous.model.norm import build_norm
from vitreous.model.part import Part, Shape
from vitreous.model.positions import Position
from vitreous.model.positions.base import Grid
from vitreous.model.record import Record

__all__ = ["Attention", "AttentionConfig", "NoKeyBias"]


@dataclass(frozen=True)
class AttentionConfig(Part):
    """`softmax`: scaled dot-product attention.

    Args:
        qkv_bias: Whether the query, key and value projections have biases.
        key_bias: Whether the key projection has one too. Without positions in attention it has no effect, because
            softmax ignores what it adds to all scores of a query (as in BEiT, arXiv 2106.08254).
        qk_norm: Whether the queries and keys of each head pass through a LayerNorm, which keeps the attention scores
            from growing without bound (arXiv 2302.05442).
        out_norm: Whether a norm stands before the output projection (arXiv 2210.06423).
        dropout: Dropout probability of the attention weights, in [0, 1).
        proj_dropout: Dropout probability after the output projection, in [0, 1). None uses the model's ``dropout``.
    """

    kind = "softmax"
    needs_grid: ClassVar[bool] = False
    """Whether patches must form whole rows and columns, so that none can be dropped or merged."""
    qkv_bias: bool = True
    key_bias: bool = True
    qk_norm: bool = False
    out_norm: bool = False
    dropout: float = 0.0
    proj_dropout: float | None = None

    def problems(self, shape: Shape) -> Iterator[str]:
        for name in ("dropout", "proj_dropout"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                yield f"attention.{name} is {getattr(self, name)}, it must be in [0, 1)"

    def conflicts(self, position: Position, patch_dropout: float) -> Iterator[str]:
        """Yield one sentence for each setting of other parts that this attention cannot work with."""
        yield from ()

    def build(self, shape: Shape, index: int, position: Position) -> Attention:
        """Return the attention module of block number ``index``, counted from 0."""
        return Attention(self, shape, position)

    def context(self, context: Any, grid: Grid) -> Any:
        """Return what the attention of every block receives, given the position embedding's context and the grid."""
        return context

    def activations(self, shape: Shape, tokens: int) -> int:
        """Return how many numbers per image the projections hold in memory at once."""
        return 6 * tokens * shape.width


class Attention(nn.Module):
    """Equations 5 to 8.

    One matrix, U_qkv, computes the queries, keys and values of all heads. Some position embeddings rotate the queries
    and keys, or add a bias to the attention scores.
    """

    def __init__(self, config: AttentionConfig, shape: Shape, position: Position) -> None:
        super().__init__()
        D, d = shape.width, shape.head_dim
        self.heads, self.dropout, self.position = shape.heads, config.dropout, position
        without_key_bias = config.qkv_bias and not config.key_bias
        self.qkv = NoKeyBias(D) if without_key_bias else nn.Linear(D, 3 * D, bias=config.qkv_bias)
        self.q_norm = build_norm(shape, d, config.qk_norm)
        self.k_norm = build_norm(shape, d, config.qk_norm)
        self.norm = build_norm(shape, used=config.out_norm)
        self.proj = nn.Linear(D, D)
        self.proj_drop = nn.Dropout(shape.dropout if config.proj_dropout is None else config.proj_dropout)
        for name, tensor in position.attention_parameters(shape).items():
            self.register_parameter(name, nn.Parameter(tensor))

    def forward(self, x: Tensor, context: Any = None, record: Record | None = None) -> Tensor:
        """Let every token attend to every token: (B, T, D) to (B, T, D).

        ``context`` is what the position embedding prepared for this image size. ``record`` keeps what is computed.
        """
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)  # (B, T, H, d) each
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, d) each
        rotate = self.position.rotate
        q, k = rotate(self, self.q_norm(q), context), rotate(self, self.k_norm(k), context)
        bias = self.position.bias(self, q, context)  # (B, H, T, T), or None
        if record is not None and record.explicit:
            out = record.attend(q, k, v, bias)  # (B, H, T, d)
        else:
            out = F.scaled_dot_product_attention(q, k, v, bias, self.dropout if self.training else 0.0)  # (B, H, T, d)
        if record is not None:
            record.keep(q, k, v, bias, out)
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))  # (B, T, D)

    def initialise(self, scheme: Scheme) -> None:
        """Initialise the projections in place."""
        scheme.attention(self.qkv, self.proj)

    def initialise_tokens(self, scheme: Scheme) -> None:
        """Initialise the parameters that the position embedding adds to attention."""
        self.position.initialise(self, scheme.position_std)


class NoKeyBias(nn.Linear):
    """The matrix of queries, keys and values, with a bias for queries and for values, (2 D,), but none for keys."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width, bias=False)
        self.bias = nn.Parameter(torch.zeros(2 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, T, 3 D)."""
        return F.linear(x, self.weight, self.full_bias())

    def full_bias(self) -> Tensor:
        """Return the bias with zeros for the keys, (3 D,)."""
        of_queries, of_values = self.bias.chunk(2)
        return torch.cat((of_queries, torch.zeros_like(of_queries), of_values))
