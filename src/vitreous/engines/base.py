"""What an engine is, and what it computes: the logits and features of a batch in one forward pass.

Shapes: B batch, C channels, H x W pixels, K classes, F features that the head's last layer reads.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from vitreous.engines.names import Precision
from vitreous.model.vit import VisionTransformer

__all__ = ["Engine", "Outputs"]


class Engine(Protocol):
    """A model ready to compute on some device in some precision."""

    @property
    def name(self) -> str:
        """`torch`, `openvino` or `onnxruntime`."""

    @property
    def precision(self) -> Precision:
        """The precision of products. Sums and results are at least float32 where the engine allows it."""

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and features (B, F), float32, of normalised images (B, C, H, W), float32."""


class Outputs(nn.Module):
    """A model that returns both logits and features, as engines do."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and features (B, F) of images (B, C, H, W)."""
        features = self.model(images, "features")
        logits = self.model.head(features)
        return (logits * 1 if logits is features else logits), features  # a graph's outputs must be distinct
