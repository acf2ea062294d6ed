"""Rotary 2-D positions, with frequencies that are fixed.

Shapes: B batch, H heads, P prefix tokens, N patches, n of them kept by patch dropout, d channels per head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid, raster
from vitreous.model.positions.in_attention import PositionInAttention

__all__ = ["Rope2d", "rotary_table", "rotate_pairs"]


@dataclass(frozen=True)
class Rope2d(PositionInAttention):
    """`rope-2d`: rotates queries and keys by angles that grow with row and column (axial RoPE, arXiv 2403.13298).

    Half of the channels encode the row and half the column. The product of a rotated query and key depends only on the
    offset between their patches, not on where they lie. Prefix tokens are not rotated.

    Args:
        theta: Base of the rotation frequencies, above 0. A larger base adds slower rotations, for larger grids.
        coordinates: What a place is. `index`: number of the row and the column. `centred`: from -1 to 1 across the
            image, of the middle of a patch, and angles in turns instead of radians (as in DINOv3, arXiv 2508.10104).
        offset: Added to the number of the row and the column.
        reference: Rows and columns of the grid to which coordinates of other grids are scaled, as in EVA-02
            (arXiv 2303.11331). None scales none.
        first: Which of the two the first half of the frequencies encodes.
        pairs: Which channels form a pair that rotates: `adjacent` ones, or those of two `halves` of the head.
        rounding: Precision of the periods, theta to the power of 4 i / d. DINOv3 was trained with those of bfloat16.
        shift: In training, coordinates of rows and of columns are shifted by up to this number, drawn uniformly.
        jitter: In training, rows and columns are stretched by factors of 1 / (1 + jitter) to 1 + jitter.
        rescale: In training, both are stretched by one factor of 1 / (1 + rescale) to 1 + rescale.
    """

    kind = "rope-2d"
    theta: float = 100.0
    coordinates: Literal["index", "centred"] = "index"
    offset: float = 0.0
    reference: int | None = None
    first: Literal["column", "row"] = "column"
    pairs: Literal["adjacent", "halves"] = "adjacent"
    rounding: Literal["none", "bfloat16"] = "none"
    shift: float = 0.0
    jitter: float = 0.0
    rescale: float = 0.0

    def problems(self, shape: Shape) -> Iterator[str]:
        if shape.width % shape.heads == 0 and shape.head_dim % 4:
            yield f"position {self.kind} needs width / heads to be a multiple of 4, it is {shape.head_dim}"
        if not self.theta > 0:
            yield f"position.theta is {self.theta}, it must be above 0"
        if self.reference is not None and self.reference < 1:
            yield f"position.reference is {self.reference}, it must be at least 1, or null"
        for name in ("shift", "jitter", "rescale"):
            if getattr(self, name) < 0:
                yield f"position.{name} is {getattr(self, name)}, it must be at least 0"

    @property
    def draws_in_training(self) -> bool:
        return self.shift > 0 or self.jitter > 0 or self.rescale > 0

    def context(self, model: Any, shape: Shape, grid: Grid) -> Tensor:
        like: Tensor = model.patch_embed.proj.weight
        rows, columns = self.places(grid, model.training)
        return self.table(rows, columns, shape.head_dim).to(like.dtype).to(like.device)

    def places(self, grid: Grid, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return the coordinates of each patch, down and across, (N,) each in float64; random ones in training."""
        places = list(raster(grid))
        for axis, length in enumerate(grid):
            if self.coordinates == "centred":
                places[axis] = (places[axis] + 0.5 + self.offset) / length * 2 - 1
            else:
                scale = 1.0 if self.reference is None else self.reference / length
                places[axis] = (places[axis] + self.offset) * scale
        if training and self.draws_in_training:
            draw = torch.rand(5, dtype=torch.float64) * 2 - 1
            stretch = (1 + self.jitter) ** draw[2:4] * (1 + self.rescale) ** draw[4]
            places = [(each + self.shift * draw[axis]) * stretch[axis] for axis, each in enumerate(places)]
        return places[0], places[1]

    def table(self, rows: Tensor, columns: Tensor, head_dim: int) -> Tensor:
        """Return the cosines and sines of angles of patches at (N,) rows and columns, (2, 1, 1, N, d) in float64."""
        periods = self.theta ** (torch.arange(head_dim // 4, dtype=torch.float64) * 4 / head_dim)
        if self.rounding == "bfloat16":
            periods = periods.to(torch.bfloat16).to(torch.float64)
        omega = (2 * math.pi if self.coordinates == "centred" else 1) / periods
        first, second = (columns, rows) if self.first == "column" else (rows, columns)
        angles = torch.cat((first[:, None] * omega, second[:, None] * omega), 1)  # (N, d/2)
        angles = angles.repeat_interleave(2, 1) if self.pairs == "adjacent" else angles.repeat(1, 2)  # (N, d)
        return torch.stack((angles.cos(), angles.sin()))[:, None, None]

    def select(self, context: Tensor, kept: Tensor) -> Tensor:
        return context[:, 0, 0][:, kept][:, :, None]  # (2, B, 1, n, d)

    def rotate(self, attention: nn.Module, x: Tensor, context: Tensor) -> Tensor:
        cos, sin = context.to(x.dtype)  # (1, 1, N, d) each, or (B, 1, n, d)
        return rotate_pairs(x, cos, sin, self.pairs)

    def table_bytes(self, shape: Shape, grid: Grid) -> int:
        return 40 * grid[0] * grid[1] * shape.head_dim + super().table_bytes(shape, grid)  # float64


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, pairs: str = "adjacent") -> Tensor:
    """Rotate pairs of channels.

    Args:
        x: Queries or keys, (B, H, P + N, d). Tokens before the last N stay as they are.
        cos: Cosines of the angles, broadcastable to (B, H, N, d); those of a pair are the same.
        sin: Their sines.
        pairs: `adjacent` channels, or those of two `halves`.

    Returns:
        (B, H, P + N, d).
    """
    prefix = x.shape[2] - cos.shape[2]
    prefix_tokens, patches = x[:, :, :prefix], x[:, :, prefix:]  # (B, H, P, d), (B, H, N, d)
    if pairs == "adjacent":
        even, odd = patches.unflatten(-1, (x.shape[-1] // 2, 2)).unbind(-1)  # (B, H, N, d/2) each
        rotated = torch.stack((-odd, even), -1).flatten(-2)  # (B, H, N, d)
    else:
        left, right = patches.chunk(2, -1)
        rotated = torch.cat((-right, left), -1)
    return torch.cat((prefix_tokens, patches * cos + rotated * sin), 2)


def rotary_table(grid: Grid, head_dim: int, theta: float = 100.0) -> Tensor:
    """Return the cosines and sines of the default kind for a grid, (2, 1, 1, N, d) in float64.

    Channels are rotated in pairs. The angles of the first half of the pairs are proportional to the column, those of
    the second half to the row. Each half has d / 4 frequencies, theta^(-4 i / d) for i = 0, 1, ...
    """
    rope = Rope2d(theta=theta)
    return rope.table(*rope.places(grid), head_dim)
