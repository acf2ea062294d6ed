"""Relative positions as biases that a small MLP computes from the offset.

Shapes: B batch, H heads, P prefix tokens, (h, w) patches down and across, N = h w, n patches kept by patch dropout,
O = (2 h - 1) (2 w - 1) offsets, M hidden units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid
from vitreous.model.positions.in_attention import PositionInAttention, kept_pairs, offset_index

__all__ = ["RelativeMlp"]

# Logarithmic offsets, (O, 2); the row of each pair of patches there, (1 or B, n, n); the table (O, H) if it is shared.
Context = tuple[Tensor, Tensor, Tensor | None]
_NAMES = ("weight1", "bias1", "weight2", "bias2")


@dataclass(frozen=True)
class RelativeMlp(PositionInAttention):
    """`relative-mlp`: an MLP turns the offset between two patches into a number for each head (arXiv 2111.09883).

    It reads the logarithm of one plus the offset in rows and in columns, with its sign. The number is added to the
    score of the two patches. Scores that involve a prefix token stay as they are. Any image size works.

    Args:
        hidden: Size of the hidden layer, whose activation is ReLU.
        shared: Whether all blocks share one MLP. Otherwise each has its own.
    """

    kind = "relative-mlp"
    hidden: int = 128
    shared: bool = False

    def problems(self, shape: Shape) -> Iterator[str]:
        if self.hidden < 1:
            yield f"position.hidden is {self.hidden}, it must be at least 1"

    def _tensors(self, shape: Shape, prefix: str) -> dict[str, Tensor]:
        M, H = self.hidden, shape.heads
        sizes = dict(zip(_NAMES, ((M, 2), (M,), (H, M), (H,)), strict=True))
        return {f"{prefix}_{name}": torch.zeros(size) for name, size in sizes.items()}

    def parameters(self, shape: Shape) -> dict[str, Tensor]:
        return super().parameters(shape) | (self._tensors(shape, "pos_embed") if self.shared else {})

    def context_parameters(self, shape: Shape) -> Collection[str]:
        return tuple(self._tensors(shape, "pos_embed")) if self.shared else ()

    def attention_parameters(self, shape: Shape) -> dict[str, Tensor]:
        return {} if self.shared else self._tensors(shape, "relative")

    def initialise(self, module: nn.Module, std: float) -> None:
        super().initialise(module, std)
        for prefix in ("pos_embed", "relative"):
            for name in _NAMES:
                if hasattr(module, f"{prefix}_{name}"):
                    nn.init.normal_(
                        getattr(module, f"{prefix}_{name}"), std=0.02 if name.startswith("weight") else 1e-6
                    )

    def context(self, model: Any, shape: Shape, grid: Grid) -> Context:
        like: Tensor = model.patch_embed.proj.weight
        steps = [torch.arange(1 - length, length, dtype=torch.float64) for length in grid]
        offsets = torch.stack(torch.meshgrid(*steps, indexing="ij"), -1).flatten(0, 1)  # (O, 2)
        dtype = torch.promote_types(like.dtype, torch.float32)
        offsets = (offsets.sign() * (1 + offsets.abs()).log()).to(like.device, dtype)
        shared = self._table(model, "pos_embed", offsets) if self.shared else None
        return offsets, offset_index(grid)[None].to(like.device), shared

    def select(self, context: Context, kept: Tensor) -> Context:
        offsets, index, shared = context
        return offsets, kept_pairs(index, kept, 0), shared

    def bias(self, attention: nn.Module, q: Tensor, context: Context) -> Tensor:
        offsets, index, table = context
        table = self._table(attention, "relative", offsets) if table is None else table
        prefix = q.shape[2] - index.shape[1]
        return F.pad(table.to(q.dtype)[index].permute(0, 3, 1, 2), (prefix, 0, prefix, 0))  # (1 or B, H, P + n, P + n)

    @staticmethod
    def _table(owner: nn.Module, prefix: str, offsets: Tensor) -> Tensor:
        """Return the number of each offset and head, (O, H)."""
        dtype = torch.promote_types(offsets.dtype, torch.float32)  # bfloat16 would switch units on and off
        weight1, bias1, weight2, bias2 = (getattr(owner, f"{prefix}_{name}").to(dtype) for name in _NAMES)
        with torch.autocast(offsets.device.type, enabled=False):
            return F.linear(F.relu(F.linear(offsets.to(dtype), weight1, bias1)), weight2, bias2)

    def score_activations(self, shape: Shape, patches: int) -> int:
        return 3 * (shape.heads + 1) * (patches + shape.prefix_tokens) ** 2 + 4 * patches * (self.hidden + shape.heads)
