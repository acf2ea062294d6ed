"""Relative positions (appendix D.4).

Shapes: B batch, H heads, P prefix tokens, N patches, n of them kept by patch dropout, d channels per head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.positions.base import Grid, Position

__all__ = ["Relative"]

Context = tuple[Tensor, int]  # the raster index of each patch, (1 or B, n), and the number N of patches in the image


@dataclass(frozen=True)
class Relative(Position):
    """`relative`: one learned vector per offset between two patches, used as extra keys (appendix D.4).

    The offset is the difference of raster indices. In every block, the product of a query and the vector of an offset
    is added to the attention score of the two patches. Scores that involve a prefix token stay as they are.
    """

    kind = "relative"
    acts_in_blocks = True

    def attention_parameters(self, shape: Shape) -> dict[str, Tensor]:
        return {"relative": torch.zeros(2 * shape.patches - 1, shape.head_dim)}

    def initialise(self, module: nn.Module, std: float) -> None:
        if hasattr(module, "relative"):
            nn.init.normal_(module.relative, std=0.02)  # type: ignore[arg-type]

    def context(self, model: Any, shape: Shape, grid: Grid) -> Context:
        patches = grid[0] * grid[1]
        return torch.arange(patches, device=model.patch_embed.proj.weight.device)[None], patches

    def select(self, context: Context, kept: Tensor) -> Context:
        return kept, context[1]

    def bias(self, attention: nn.Module, q: Tensor, context: Context) -> Tensor:
        index, patches = context
        table: Tensor = attention.relative  # type: ignore[assignment]
        if len(table) != 2 * patches - 1:  # another image size: stretch the table of offsets linearly
            table = _stretched(table, 2 * patches - 1)
        prefix = q.shape[2] - index.shape[1]
        offsets = index[:, :, None] - index[:, None, :] + patches - 1  # (1 or B, n, n)
        scores = q[:, :, prefix:] @ table.t().to(q.dtype) / math.sqrt(q.shape[-1])  # (B, H, n, 2N - 1)
        scores = scores.gather(-1, offsets[:, None].expand(q.shape[0], q.shape[1], -1, -1))  # (B, H, n, n)
        return F.pad(scores, (prefix, 0, prefix, 0))  # (B, H, P + n, P + n)

    def resized(self, state: dict[str, Tensor], old: Shape, new: Shape) -> dict[str, Tensor]:
        names = [name for name in state if name.endswith("attn.relative")]
        return {name: _stretched(state[name], 2 * new.patches - 1).contiguous() for name in names}

    def score_activations(self, shape: Shape, patches: int) -> int:
        tokens = patches + shape.prefix_tokens  # scores by offset; then gathered, padded and added
        return shape.heads * tokens * (2 * patches) + 3 * shape.heads * tokens**2 + 2 * patches**2


def _stretched(table: Tensor, length: int) -> Tensor:
    return F.interpolate(table.t()[None], size=length, mode="linear", align_corners=True)[0].t()
