"""What learned position embeddings have in common: where in the model they are added (appendix D.4).

Shapes: B batch, L blocks, P prefix tokens, (h, w) patches down and across, N = h w patches, n of them kept by patch
dropout, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid, Position

__all__ = ["LearnedPosition"]

# The embeddings of the blocks after the first, (1 or B, P + n, D) each, or the one that they share; and P.
Context = tuple[tuple[Tensor, ...], int]


@dataclass(frozen=True)
class LearnedPosition(Position):
    """An embedding made of learned tables. A kind names its tables and makes the embedding of a grid from them.

    Args:
        layers: Before which blocks the embedding is added (appendix D.4, table 8). `first`: once, after the stem
            (equation 1). `every`: before each block, and each learns its own. `shared`: before each block, the same.
    """

    has_embedding = True
    layers: Literal["first", "every", "shared"] = "first"

    def tables(self, shape: Shape) -> dict[str, Tensor]:
        """Return the tensors of one embedding, filled with zeros, by a name that starts with ``pos_embed``."""
        raise NotImplementedError

    @property
    def acts_in_blocks(self) -> bool:
        return self.layers != "first"

    def parameters(self, shape: Shape) -> dict[str, Tensor]:
        owners = ["", *(f"blocks.{index}." for index in range(1, shape.depth) if self.layers == "every")]
        return {owner + name: tensor for owner in owners for name, tensor in self.tables(shape).items()}

    def initialise(self, module: nn.Module, std: float) -> None:
        for name, table in module.named_parameters():
            if name.rpartition(".")[2].startswith("pos_embed"):
                nn.init.normal_(table, std=std)

    def context(self, model: Any, shape: Shape, grid: Grid) -> Context | None:
        if self.layers == "first":
            return None
        owners = [model] if self.layers == "shared" else list(model.blocks)[1:]
        return tuple(self.embedding(owner, shape, grid) for owner in owners), shape.prefix_tokens

    def select(self, context: Context | None, kept: Tensor) -> Context | None:
        if context is None:
            return None
        embeddings, P = context
        prefix = torch.arange(P, device=kept.device).expand(kept.shape[0], -1)
        tokens = torch.cat((prefix, P + kept), 1)  # (B, P + n)
        return tuple(embedding[0][tokens] for embedding in embeddings), P

    def before_block(self, z: Tensor, index: int, context: Context | None) -> Tensor:
        if context is None or index == 0:  # the first block reads z_0, which has E_pos by equation 1
            return z
        embeddings, _ = context
        return z + embeddings[index - 1 if self.layers == "every" else 0].to(z.dtype)

    def table_bytes(self, shape: Shape, grid: Grid) -> int:
        embeddings = {"first": 1, "every": shape.depth, "shared": 2}[self.layers]
        if grid != shape.grid:  # resampling holds two more copies of one of them at a time
            return 4 * (embeddings + 2) * grid[0] * grid[1] * shape.width
        return 4 * (embeddings - 1) * shape.tokens * shape.width
