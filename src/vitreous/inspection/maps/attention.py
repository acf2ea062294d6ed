"""Attention of one layer as it is. Shapes: B batch, H heads, T tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, block_name, chosen
from vitreous.inspection.maps.readout import on_grid, readout
from vitreous.model.part import Shape
from vitreous.model.vit import VisionTransformer

__all__ = ["RawAttention"]


@dataclass(frozen=True)
class RawAttention(MapMethod):
    """`attention`: the attention weights of one layer, from the tokens that the pooling reads.

    It does not depend on the class. Values are in [0, 1]; with those of the prefix tokens they sum to 1.

    Args:
        layer: The block, from 0; negative numbers count from the end.
        head: The head, from 0. None: the mean of all.
    """

    kind = "attention"
    title = "Attention of one layer"
    uses_class: ClassVar[bool] = False
    layer: int = -1
    head: int | None = None

    def problems(self, shape: Shape) -> Iterator[str]:
        if self.head is not None and not 0 <= self.head < shape.heads:
            yield f"{self.kind}: head is {self.head}, the model has heads 0 to {shape.heads - 1}"

    def heading(self) -> str:
        layer = block_name(self.layer)
        return f"Attention of {layer}" if self.head is None else f"Attention of head {self.head} of {layer}"

    @torch.no_grad()
    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        values = model.intermediates(images, [self.layer])
        weights = values.layers[0].weights()
        one = weights.mean(1) if self.head is None else weights[:, self.head]  # B T T
        row = readout(model, values).to(one.dtype) @ one
        return ClassMaps(on_grid(row, values), values.logits, chosen(values.logits, targets))
