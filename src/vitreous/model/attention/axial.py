"""Axial attention (appendix D.6 of arXiv 2010.11929, after arXiv 1912.12180): along rows, then along columns.

Shapes: B batch, H heads, (h, w) patches down and across, N = h w patches in raster order, R rows or columns of
the grid, called lines, S patches of a line, D width, d channels per head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model.attention.softmax import Attention, AttentionConfig
from vitreous.model.part import Shape
from vitreous.model.positions import POSITIONS, Position
from vitreous.model.positions.base import Grid
from vitreous.model.record import Record

__all__ = ["AxialAttention", "AxialConfig"]


@dataclass(frozen=True)
class AxialConfig(AttentionConfig):
    """`axial`: each patch attends to those of its row in even blocks, of its column in odd ones (appendix D.6).

    Blocks count from 0, so two blocks are one axial block of the paper: row attention and an MLP, then column attention
    and an MLP. The paper's counterpart of a model has twice its depth. Attention takes time in proportion to
    N (h + w) / 2 instead of N^2. A token without a place in the grid has no row, so there are no prefix tokens.
    """

    kind = "axial"
    needs_grid = True

    def problems(self, shape: Shape) -> Iterator[str]:
        yield from super().problems(shape)
        if shape.has_class_token:
            yield (
                "attention axial has no row or column for a class token: use class_token false and a pool that does "
                "not read it, such as mean, or attention softmax"
            )
        if shape.registers > 0:
            yield (
                f"attention axial has no row or column for registers, registers is {shape.registers}: use registers 0 "
                "or attention softmax"
            )

    def conflicts(self, position: Position, patch_dropout: float) -> Iterator[str]:
        if position.acts_in_attention:
            others = ", ".join(kind.kind for kind in POSITIONS if not kind().acts_in_attention)
            yield (
                f"position {position.kind} acts on all pairs of patches at once, attention axial sees one row or "
                f"column: use a position that is added to the tokens ({others}), or attention softmax"
            )
        if patch_dropout > 0:
            yield (
                f"patch_dropout is {patch_dropout}, but attention axial needs whole rows and columns: use "
                "patch_dropout 0 or attention softmax"
            )

    def build(self, shape: Shape, index: int, position: Position) -> AxialAttention:
        return AxialAttention(self, shape, position, down=index % 2 == 1)

    def context(self, context: Any, grid: Grid) -> Grid:
        return grid

    def activations(self, shape: Shape, tokens: int) -> int:
        return 11 * tokens * shape.width  # queries, keys, values and their mean are copied line by line, and back


class AxialAttention(Attention):
    """Equations 5 to 8 within each row, or with ``down`` within each column, of the grid."""

    def __init__(self, config: AxialConfig, shape: Shape, position: Position, down: bool) -> None:
        super().__init__(config, shape, position)
        self.down = down

    def forward(self, x: Tensor, context: Any = None, record: Record | None = None) -> Tensor:
        """Let every patch attend to its row or column: (B, N, D) to (B, N, D).

        ``context`` is the grid (h, w). ``record`` keeps what is computed, for all pairs of patches.
        """
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)  # (B, N, H, d) each
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, N, d) each
        q, k = self.q_norm(q), self.k_norm(k)
        q_lines, k_lines, v_lines = (self.lines(each, context) for each in (q, k, v))  # (B, H R, S, d) each
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q_lines, k_lines, v_lines, dropout_p=dropout)  # (B, H R, S, d)
        out = self.raster(out, context)  # (B, H, N, d)
        if record is not None:
            record.keep(q, k, v, self.outside(context, q), out)
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))  # (B, N, D)

    def lines(self, x: Tensor, grid: Grid) -> Tensor:
        """Cut patches (B, H, N, d) into rows or columns, which take part in attention as heads do: (B, H R, S, d)."""
        x = x.unflatten(2, grid)  # (B, H, h, w, d)
        return (x.transpose(2, 3) if self.down else x).flatten(1, 2)

    def raster(self, x: Tensor, grid: Grid) -> Tensor:
        """Undo :meth:`lines`: (B, H R, S, d) to (B, H, N, d)."""
        x = x.unflatten(1, (self.heads, -1))  # (B, H, R, S, d)
        return (x.transpose(2, 3) if self.down else x).flatten(2, 3)

    def outside(self, grid: Grid, like: Tensor) -> Tensor:
        """Return the bias that would make attention to all patches the same as this: (1, 1, N, N).

        It is 0 for two patches of one line and minus infinity for others.
        """
        h, w = grid
        patch = torch.arange(h * w, device=like.device)
        line = patch % w if self.down else patch // w
        bias = torch.zeros(h * w, h * w, dtype=like.dtype, device=like.device)
        return bias.masked_fill_(line[:, None] != line, float("-inf"))[None, None]
