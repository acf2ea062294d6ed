"""Rotary 2-D positions, with frequencies that are learned.

Shapes: B batch, H heads, N patches, n of them kept by patch dropout, d channels per head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid, raster
from vitreous.model.positions.in_attention import PositionInAttention
from vitreous.model.positions.rope_2d import rotate_pairs

__all__ = ["RopeMixed"]


@dataclass(frozen=True)
class RopeMixed(PositionInAttention):
    """`rope-mixed`: rotates queries and keys by learned multiples of column and row (RoPE-Mixed, arXiv 2403.13298).

    Each head of each block learns d / 2 pairs of frequencies, so that it can encode any direction.

    Args:
        theta: Base of the frequencies at the start, above 0; each head starts with a random direction.
    """

    kind = "rope-mixed"
    theta: float = 10.0

    def problems(self, shape: Shape) -> Iterator[str]:
        if shape.width % shape.heads == 0 and shape.head_dim % 4:
            yield f"position {self.kind} needs width / heads to be a multiple of 4, it is {shape.head_dim}"
        if not self.theta > 0:
            yield f"position.theta is {self.theta}, it must be above 0"

    def attention_parameters(self, shape: Shape) -> dict[str, Tensor]:
        return {"rope_frequencies": torch.zeros(2, shape.heads, shape.head_dim // 2)}  # of columns and of rows

    def initialise(self, module: nn.Module, std: float) -> None:
        super().initialise(module, std)
        if not hasattr(module, "rope_frequencies"):
            return
        table: Tensor = module.rope_frequencies  # type: ignore[assignment]
        quarter = table.shape[2] // 2
        size = self.theta ** -(torch.arange(quarter) / quarter)
        direction = torch.rand(table.shape[1], 1) * 2 * math.pi
        angles = torch.cat((direction.expand(-1, quarter), (direction + math.pi / 2).expand(-1, quarter)), 1)
        with torch.no_grad():
            table.copy_(torch.stack((angles.cos(), angles.sin())) * size.repeat(2))

    def context(self, model: Any, shape: Shape, grid: Grid) -> Tensor:
        like: Tensor = model.patch_embed.proj.weight
        rows, columns = raster(grid)
        return torch.stack((columns, rows))[:, None].to(torch.promote_types(like.dtype, torch.float32)).to(like.device)

    def select(self, context: Tensor, kept: Tensor) -> Tensor:
        return context[:, 0][:, kept]  # (2, B, n)

    def rotate(self, attention: nn.Module, x: Tensor, context: Tensor) -> Tensor:
        frequencies: Tensor = attention.rope_frequencies  # type: ignore[assignment]
        of_columns, of_rows = frequencies.to(context.dtype)[:, :, None]  # (H, 1, d/2) each
        columns, rows = context[:, :, None, :, None]  # (1 or B, 1, n, 1) each
        angles = (columns * of_columns + rows * of_rows).repeat_interleave(2, -1)  # (1 or B, H, n, d)
        return rotate_pairs(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))

    def score_activations(self, shape: Shape, patches: int) -> int:
        return 4 * patches * shape.width  # angles, their cosines and sines
