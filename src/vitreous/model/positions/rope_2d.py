"""Rotary 2-D positions. Shapes: B batch, H heads, P prefix tokens, N patches, d channels per head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid, Position, raster

__all__ = ["Rope2d", "rotary_table"]


@dataclass(frozen=True)
class Rope2d(Position):
    """`rope-2d`: rotates queries and keys by angles that grow with row and column (axial RoPE, arXiv 2403.13298).

    Half of the channels encode the row and half the column. The product of a rotated query and key depends only on the
    offset between their patches, not on where they lie. Prefix tokens are not rotated.

    Args:
        theta: Base of the rotation frequencies, above 0. A larger base adds slower rotations, for larger grids.
    """

    kind = "rope-2d"
    acts_in_blocks = True
    theta: float = 100.0

    def problems(self, shape: Shape) -> Iterator[str]:
        if shape.width % shape.heads == 0 and shape.head_dim % 4:
            yield f"position rope-2d needs width / heads to be a multiple of 4, it is {shape.head_dim}"
        if not self.theta > 0:
            yield f"position.theta is {self.theta}, it must be above 0"

    def context(self, model: Any, shape: Shape, grid: Grid) -> Tensor:
        like: Tensor = model.patch_embed.proj.weight
        return rotary_table(grid, shape.head_dim, self.theta).to(like.dtype).to(like.device)

    def select(self, context: Tensor, kept: Tensor) -> Tensor:
        return context[:, 0, 0][:, kept][:, :, None]  # (2, B, 1, n, d)

    def rotate(self, attention: nn.Module, x: Tensor, context: Tensor) -> Tensor:
        cos, sin = context.to(x.dtype)  # (1, 1, N, d) each, or (B, 1, n, d)
        prefix = x.shape[2] - cos.shape[2]
        prefix_tokens, patches = x[:, :, :prefix], x[:, :, prefix:]  # (B, H, P, d), (B, H, N, d)
        even, odd = patches.unflatten(-1, (x.shape[-1] // 2, 2)).unbind(-1)  # (B, H, N, d/2) each
        rotated = torch.stack((-odd, even), -1).flatten(-2)  # (B, H, N, d)
        return torch.cat((prefix_tokens, patches * cos + rotated * sin), 2)

    def table_bytes(self, shape: Shape, grid: Grid) -> int:
        return 40 * grid[0] * grid[1] * shape.head_dim  # float64


def rotary_table(grid: Grid, head_dim: int, theta: float = 100.0) -> Tensor:
    """Return the cosines and sines of the rotation angles of a grid, (2, 1, 1, N, d) in float64.

    Channels are rotated in pairs. The angles of the first half of the pairs are proportional to the column, those of
    the second half to the row. Each half has d / 4 frequencies, theta^(-4 i / d) for i = 0, 1, ...
    """
    rows, columns = raster(grid)
    omega = theta ** -(torch.arange(head_dim // 4, dtype=torch.float64) * 4 / head_dim)
    angles = torch.cat((columns[:, None] * omega, rows[:, None] * omega), 1)  # (N, d/2)
    angles = angles.repeat_interleave(2, 1)  # (N, d)
    return torch.stack((angles.cos(), angles.sin()))[:, None, None]
