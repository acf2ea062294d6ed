"""What positions that act in attention have in common: a learned embedding may be added to the tokens as well.

Shapes: B batch, P prefix tokens, (h, w) patches down and across, N = h w patches in raster order, n of them kept by
patch dropout, T = P + N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid, Position
from vitreous.model.positions.learned import Learned
from vitreous.model.positions.resample import Resample

__all__ = ["PositionInAttention", "kept_pairs", "offset_index"]


@dataclass(frozen=True)
class PositionInAttention(Position):
    """A position that acts in the attention of every block.

    Args:
        absolute: Which tokens have a learned vector too, added before the first block (equation 1): `none`, the
            `patches`, they and the class token (`cls`), or `all` with registers.
        resample: Library whose interpolation is used to resize those vectors for another image size (section 3.2).
    """

    acts_in_blocks = True
    absolute: Literal["none", "patches", "cls", "all"] = "none"
    resample: Resample = "timm"

    @property
    def learned(self) -> Learned | None:
        """The embedding that is added to the tokens."""
        if self.absolute == "none":
            return None
        return Learned(prefix="none" if self.absolute == "patches" else self.absolute, resample=self.resample)

    @property
    def has_embedding(self) -> bool:
        return self.absolute != "none"

    def parameters(self, shape: Shape) -> dict[str, Tensor]:
        return self.learned.parameters(shape) if self.learned else {}

    def context_parameters(self, shape: Shape) -> Collection[str]:
        return ()

    def initialise(self, module: nn.Module, std: float) -> None:
        if self.learned and hasattr(module, "pos_embed"):
            self.learned.initialise(module, std)

    def embedding(self, module: nn.Module, shape: Shape, grid: Grid) -> Tensor:
        return self.learned.embedding(module, shape, grid) if self.learned else super().embedding(module, shape, grid)

    def resized(self, state: dict[str, Tensor], old: Shape, new: Shape) -> dict[str, Tensor]:
        return self.learned.resized(state, old, new) if self.learned else {}

    def table_bytes(self, shape: Shape, grid: Grid) -> int:
        return self.learned.table_bytes(shape, grid) if self.learned else 0


def offset_index(grid: Grid) -> Tensor:
    """Return for each pair of patches the raster index of their offset among the (2 h - 1) (2 w - 1), (N, N)."""
    h, w = grid
    patch = torch.arange(h * w)
    rows = patch[:, None] // w - patch // w + h - 1
    columns = patch[:, None] % w - patch % w + w - 1
    return rows * (2 * w - 1) + columns


def kept_pairs(index: Tensor, kept: Tensor, prefix: int) -> Tensor:
    """Return of an index of pairs (1, T, T) those of the tokens that remain, (B, P + n, P + n).

    Args:
        index: One number for each pair of tokens; the first P = ``prefix`` are always kept.
        kept: Raster indices of the patches that are kept, (B, n).
        prefix: Number of tokens before the patches (P); 0 if the index has patches alone.
    """
    first = torch.arange(prefix, device=kept.device).expand(kept.shape[0], -1)
    tokens = torch.cat((first, prefix + kept), 1)  # (B, P + n)
    return index[0][tokens[:, :, None], tokens[:, None, :]]
