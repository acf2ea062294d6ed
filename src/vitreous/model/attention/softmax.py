"""Multi-head self-attention (appendix A of arXiv 2010.11929).

Shapes: B batch, H heads, T tokens (prefix and patches), D width, d = D / H channels per head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.init import Scheme
from vitreous.model.part import Part, Shape
from vitreous.model.positions import Position
from vitreous.model.positions.base import Grid
from vitreous.model.record import Record

__all__ = ["Attention", "AttentionConfig"]


@dataclass(frozen=True)
class AttentionConfig(Part):
    """`softmax`: scaled dot-product attention.

    Args:
        qkv_bias: Whether the query, key and value projections have biases.
        qk_norm: Whether the queries and keys of each head pass through a LayerNorm, which keeps the attention scores
            from growing without bound (arXiv 2302.05442).
        dropout: Dropout probability of the attention weights, in [0, 1).
        proj_dropout: Dropout probability after the output projection, in [0, 1). None uses the model's ``dropout``.
    """

    kind = "softmax"
    needs_grid: ClassVar[bool] = False
    """Whether patches must form whole rows and columns, so that none can be dropped or merged."""
    qkv_bias: bool = True
    qk_norm: bool = False
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
        self.qkv = nn.Linear(D, 3 * D, bias=config.qkv_bias)
        self.q_norm = nn.LayerNorm(d, eps=shape.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(d, eps=shape.norm_eps) if config.qk_norm else nn.Identity()
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
        q, k = self.position.rotate(self.q_norm(q), context), self.position.rotate(self.k_norm(k), context)
        bias = self.position.bias(self, q, context)  # (B, H, T, T), or None
        out = F.scaled_dot_product_attention(q, k, v, bias, self.dropout if self.training else 0.0)  # (B, H, T, d)
        if record is not None:
            record.keep(q, k, v, bias, out)
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))  # (B, T, D)

    def initialise(self, scheme: Scheme) -> None:
        """Initialise the projections in place."""
        scheme.attention(self.qkv, self.proj)

    def initialise_tokens(self, scheme: Scheme) -> None:
        """Initialise the parameters that the position embedding adds to attention."""
        self.position.initialise(self, scheme.position_std)
