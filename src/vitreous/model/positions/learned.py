"""Learned 1-D position embeddings: one vector per token (equation 1). Shapes: P prefix tokens, N patches, D width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid
from vitreous.model.positions.learned_base import LearnedPosition
from vitreous.model.positions.resample import Resample, resample

__all__ = ["Learned"]


@dataclass(frozen=True)
class Learned(LearnedPosition):
    """`learned`: one vector per token (equation 1).

    Args:
        prefix: Which of the tokens before the patches have a position: `cls`, only the class token (equation 1);
            `all`, registers too (as in timm); or `none` (timm's no_embed_class).
        resample: Library whose interpolation is used to resize the embedding for another image size (section 3.2).
    """

    kind = "learned"
    prefix: Literal["cls", "all", "none"] = "cls"
    resample: Resample = "timm"

    def prefix_positions(self, shape: Shape) -> int:
        """Return how many prefix tokens have a position."""
        return {"none": 0, "cls": int(shape.has_class_token), "all": shape.prefix_tokens}[self.prefix]

    def tables(self, shape: Shape) -> dict[str, Tensor]:
        return {"pos_embed": torch.zeros(1, self.prefix_positions(shape) + shape.patches, shape.width)}

    def embedding(self, module: nn.Module, shape: Shape, grid: Grid) -> Tensor:
        table: Tensor = module.pos_embed  # type: ignore[assignment]
        num_prefix = self.prefix_positions(shape)
        if grid == shape.grid and num_prefix == shape.prefix_tokens:
            return table  # every token has a position, and the image its usual size: the table is E_pos
        prefix, patches = table[:, :num_prefix], resample(table[:, num_prefix:], shape.grid, grid, self.resample)
        no_position = table.new_zeros(1, shape.prefix_tokens - num_prefix, shape.width)
        return torch.cat((prefix, no_position, patches), 1)  # (1, P + N, D)

    def resized(self, state: dict[str, Tensor], old: Shape, new: Shape) -> dict[str, Tensor]:
        found = {}
        for name, table in state.items():
            if name.rpartition(".")[2] == "pos_embed":
                prefix, patches = table.split([table.shape[1] - old.patches, old.patches], 1)
                found[name] = torch.cat((prefix, resample(patches, old.grid, new.grid, self.resample)), 1)
        return found
