"""Learned 2-D position embeddings (appendix D.4).

Shapes: (h, w) patches down and across, N = h w, P prefix tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid, needs_multiple_of_4
from vitreous.model.positions.learned_base import LearnedPosition
from vitreous.model.positions.resample import Resample, resample

__all__ = ["Learned2d"]


@dataclass(frozen=True)
class Learned2d(LearnedPosition):
    """`learned-2d`: one learned vector per row and per column, half the width each (appendix D.4).

    A patch has the vectors of its row and its column, concatenated. Prefix tokens have no position.

    Args:
        resample: Library whose interpolation is used to resize the embeddings for another image size.
    """

    kind = "learned-2d"
    resample: Resample = "timm"

    def problems(self, shape: Shape) -> Iterator[str]:
        yield from needs_multiple_of_4(self.kind, shape)

    def tables(self, shape: Shape) -> dict[str, Tensor]:
        rows, columns = shape.grid
        half = shape.width // 2
        return {"pos_embed_row": torch.zeros(1, rows, half), "pos_embed_column": torch.zeros(1, columns, half)}

    def embedding(self, module: nn.Module, shape: Shape, grid: Grid) -> Tensor:
        (rows, columns), (h, w) = shape.grid, grid
        # (1, h, D/2) and (1, w, D/2)
        row = resample(module.pos_embed_row, (rows, 1), (h, 1), self.resample)  # type: ignore[arg-type]
        column = resample(module.pos_embed_column, (1, columns), (1, w), self.resample)  # type: ignore[arg-type]
        halves = row[:, :, None].expand(-1, -1, w, -1), column[:, None].expand(-1, h, -1, -1)
        return F.pad(torch.cat(halves, -1).flatten(1, 2), (0, 0, shape.prefix_tokens, 0))  # (1, P + N, D)

    def resized(self, state: dict[str, Tensor], old: Shape, new: Shape) -> dict[str, Tensor]:
        (rows, columns), (h, w) = old.grid, new.grid
        sizes = {"pos_embed_row": ((rows, 1), (h, 1)), "pos_embed_column": ((1, columns), (1, w))}
        ends = {name: name.rpartition(".")[2] for name in state}
        return {name: resample(state[name], *sizes[end], self.resample) for name, end in ends.items() if end in sizes}
