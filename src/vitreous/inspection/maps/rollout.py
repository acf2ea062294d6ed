"""Attention rollout. Shapes: B batch, H heads, T tokens, R rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, chosen
from vitreous.inspection.maps.readout import on_grid, readout
from vitreous.model.part import Shape
from vitreous.model.vit import VisionTransformer

__all__ = ["Rollout", "roll_out"]

Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True)
class Rollout(MapMethod):
    """`rollout`: attention multiplied over layers, with the residual connection as identity (arXiv 2005.00928).

    It does not depend on the class. Values are at least 0; with those of the prefix tokens they sum to 1.

    Args:
        residual: Weight of the identity in each layer, in [0, 1].
        fusion: How heads become one: their `mean`, `max` or `min`. Rows are scaled to sum to 1 again.
    """

    kind = "rollout"
    title = "Attention rollout"
    uses_class: ClassVar[bool] = False
    residual: float = 0.5
    fusion: Fusion = "mean"

    def problems(self, shape: Shape) -> Iterator[str]:
        if not 0 <= self.residual <= 1:
            yield f"{self.kind}: residual is {self.residual}, it must be in [0, 1]"

    def remark(self) -> str:
        return f"heads by their {self.fusion}, identity with weight {self.residual:g}"

    @torch.no_grad()
    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        values = model.intermediates(images)
        weights = (layer.weights() for layer in reversed(values.layers))  # one layer at a time
        row = roll_out(readout(model, values), weights, self.residual, self.fusion)
        return ClassMaps(on_grid(row, values), values.logits, chosen(values.logits, targets))


def roll_out(rows: Tensor, weights: Iterable[Tensor], residual: float = 0.5, fusion: Fusion = "mean") -> Tensor:
    """Return rows A_L ... A_1, where A = residual I + (1 - residual) fused weights (equation 1 of arXiv 2005.00928).

    Args:
        rows: Of the read-out, B x R x T.
        weights: Attention from the last layer to the first, B x H x T x T each.
        residual: Weight of the identity.
        fusion: How heads become one.

    Returns:
        B x R x T.
    """
    for each in weights:
        fused = each.mean(1) if fusion == "mean" else each.amax(1) if fusion == "max" else each.amin(1)  # B T T
        fused = fused / fused.sum(-1, keepdim=True)
        rows = residual * rows + (1 - residual) * (rows @ fused.to(rows.dtype))
    return rows
