"""Relative positions as learned biases, one for each offset and head.

Shapes: B batch, H heads, P prefix tokens, (h, w) patches down and across, N = h w, T = P + N tokens, n patches kept by
patch dropout, O = (2 h - 1) (2 w - 1) offsets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid
from vitreous.model.positions.in_attention import PositionInAttention, kept_pairs, offset_index

__all__ = ["RelativeBias"]

# For each pair of tokens its row in the table, (1 or B, P + n, P + n); the grid of the tables, and of the image; P; and
# the table for the image if blocks share it.
Context = tuple[Tensor, Grid, Grid, int, Tensor | None]
_OWN, _SHARED = "relative_bias", "pos_embed_relative"


@dataclass(frozen=True)
class RelativeBias(PositionInAttention):
    """`relative-bias`: each head adds a learned number for the offset between two patches (as in BEiT, 2106.08254).

    Three more numbers stand for pairs with tokens before the patches: from such a token to a patch, from a patch to
    such a token, and between them. For another image size the table of offsets is resized, bilinearly.

    Args:
        shared: Whether all blocks share one table. Otherwise each has its own.
    """

    kind = "relative-bias"
    shared: bool = False

    def _table(self, shape: Shape) -> Tensor:
        rows, columns = shape.grid
        return torch.zeros((2 * rows - 1) * (2 * columns - 1) + 3 * bool(shape.prefix_tokens), shape.heads)

    def parameters(self, shape: Shape) -> dict[str, Tensor]:
        return super().parameters(shape) | ({_SHARED: self._table(shape)} if self.shared else {})

    def context_parameters(self, shape: Shape) -> Collection[str]:
        return (_SHARED,) if self.shared else ()

    def attention_parameters(self, shape: Shape) -> dict[str, Tensor]:
        return {} if self.shared else {_OWN: self._table(shape)}

    def initialise(self, module: nn.Module, std: float) -> None:
        super().initialise(module, std)
        for name in (_OWN, _SHARED):
            if hasattr(module, name):
                nn.init.normal_(getattr(module, name), std=0.02)

    def context(self, model: Any, shape: Shape, grid: Grid) -> Context:
        P, device = shape.prefix_tokens, model.patch_embed.proj.weight.device
        offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1)
        index = F.pad(offset_index(grid), (P, 0, P, 0))
        if P:
            index[:P, P:], index[P:, :P], index[:P, :P] = offsets, offsets + 1, offsets + 2
        shared = self._at(getattr(model, _SHARED), shape.grid, grid) if self.shared else None
        return index[None].to(device), shape.grid, grid, P, shared

    def select(self, context: Context, kept: Tensor) -> Context:
        index, old, new, P, shared = context
        return kept_pairs(index, kept, P), old, new, P, shared

    def bias(self, attention: nn.Module, q: Tensor, context: Context) -> Tensor:
        index, old, new, _, table = context
        table = self._at(getattr(attention, _OWN), old, new) if table is None else table
        return table.to(q.dtype)[index].permute(0, 3, 1, 2)  # (1 or B, H, P + n, P + n)

    @staticmethod
    def _at(table: Tensor, old: Grid, new: Grid) -> Tensor:
        """Resize the table of a grid to that of another, (O', H) or (O' + 3, H)."""
        if old == new:
            return table
        rows, columns = 2 * old[0] - 1, 2 * old[1] - 1
        offsets, others = table.split([rows * columns, table.shape[0] - rows * columns])
        grid = offsets.t().unflatten(1, (rows, columns))[None]  # (1, H, 2 h - 1, 2 w - 1)
        grid = F.interpolate(grid, (2 * new[0] - 1, 2 * new[1] - 1), mode="bilinear")
        return torch.cat((grid[0].flatten(1).t(), others))

    def resized(self, state: dict[str, Tensor], old: Shape, new: Shape) -> dict[str, Tensor]:
        names = [name for name in state if name.endswith((f"attn.{_OWN}", _SHARED))]
        tables = {name: self._at(state[name], old.grid, new.grid).contiguous() for name in names}
        return super().resized(state, old, new) | tables

    def score_activations(self, shape: Shape, patches: int) -> int:
        return 3 * (shape.heads + 1) * (patches + shape.prefix_tokens) ** 2
