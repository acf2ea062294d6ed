"""Fixed 2-D sine-cosine positions. Shapes: P prefix tokens, N patches, D width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid, Position, needs_multiple_of_4, raster

__all__ = ["SinCos2d", "sincos_table"]


@dataclass(frozen=True)
class SinCos2d(Position):
    """`sincos-2d`: fixed sines and cosines of row and column (arXiv 2205.01580).

    Nothing is learned, so any image size works. Prefix tokens have no position.
    """

    kind = "sincos-2d"
    has_embedding = True

    def problems(self, shape: Shape) -> Iterator[str]:
        yield from needs_multiple_of_4(self.kind, shape)

    def embedding(self, module: nn.Module, shape: Shape, grid: Grid) -> Tensor:
        return F.pad(sincos_table(grid, shape.width), (0, 0, shape.prefix_tokens, 0))

    def table_bytes(self, shape: Shape, grid: Grid) -> int:
        return 20 * grid[0] * grid[1] * shape.width  # float64: the angles, their sines and cosines, and the table


def sincos_table(grid: Grid, width: int) -> Tensor:
    """Return the sine-cosine positions of a grid, (1, N, D) in float64, as in big_vision's ``posemb_sincos_2d``."""
    omega = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / max(1, width // 4 - 1))
    y, x = (coordinate[:, None] * omega for coordinate in raster(grid))  # (N, D/4)
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), 1)[None]
