"""What an engine is, and what it computes: logits and features of a batch, by one forward pass.

Shapes: B batch, C channels, H x W pixels, K classes, F features that the head's last layer reads.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from vitreous.engines.names import Precision
from vitreous.model.vit import VisionTransformer

__all__ = ["DynamicBatch", "Engine", "Outputs"]


class Engine(Protocol):
    """A model that is ready to compute on some machine in some precision."""

    @property
    def name(self) -> str:
        """`torch`, `openvino` or `onnxruntime`."""

    @property
    def precision(self) -> Precision:
        """What it multiplies in. Sums and results are float32 at least where the engine lets us."""

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits B x K and features B x F, float32, of normalised images B x C x H x W, float32."""


class Outputs(nn.Module):
    """A model from images to logits and features: what engines compute."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits B x K and features B x F of images B x C x H x W."""
        features = self.model.pooled(images)
        logits = self.model.head(features)
        return (logits * 1 if logits is features else logits), features  # a graph's outputs must differ


class DynamicBatch:
    """A picture to trace a graph with, whose first dimension then stays free.

    Args:
        model: What is traced: it says channels.
        size: Height and width in pixels, which the graph is fixed to.
    """

    def __init__(self, model: VisionTransformer, size: tuple[int, int]) -> None:
        self.images = torch.zeros(2, model.config.in_channels, *size)  # two: torch.export takes 1 for a constant
        self.shapes = ({0: torch.export.Dim("batch")},)
