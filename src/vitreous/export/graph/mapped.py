"""The graph after the resize with one more output, the class map of :func:`vitreous.explain` for the predicted class.

Shapes: B batch, C channels, H x W pixels of the model's input, (h, w) patches down and across, K classes.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from vitreous.checkpoint.model_info import ModelInfo
from vitreous.export.graph.core import Core, output_names
from vitreous.export.graph.gradients import FREE_BATCH, trace_gradients
from vitreous.inspection.maps.gradient_attention import GradientAttention, rounding
from vitreous.model.vit import VisionTransformer

__all__ = ["Mapped", "class_map", "class_map_rounding"]


class Mapped(nn.Module):
    """A core whose results have the class map (B, h, w) after its outputs, before its taps.

    Args:
        core: In float32, of a model with classes.
        pixels: An example, (1, C, H, W).
        plain_norms: As :func:`.trace_gradients` has it.
    """

    def __init__(self, core: Core, pixels: Tensor, plain_norms: bool) -> None:
        super().__init__()
        count = len(output_names(core.info))

        def both(pixels: Tensor) -> tuple[Tensor, ...]:
            with torch.no_grad():
                results = core(pixels)
            logits, normalised = results[1], results[count].detach()  # the first tap
            values = GradientAttention().compute(core.model, normalised, _most_probable(core.info, logits)).values
            return (*results[:count], values, *results[count:])

        self.traced = trace_gradients(
            both, (pixels.expand(FREE_BATCH, -1, -1, -1),), free=True, plain_norms=plain_norms
        )

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Map pixels (B, C, H, W) to the core's outputs, the class map, and the taps."""
        return cast(tuple[Tensor, ...], self.traced(pixels))


def class_map(model: VisionTransformer, info: ModelInfo, images: Tensor) -> Tensor:
    """Return the class map as PyTorch computes it, (B, h, w), for normalised images (B, C, H, W)."""
    return GradientAttention()(model, images, _explained(model, info, images)).values


def class_map_rounding(model: VisionTransformer, info: ModelInfo, images: Tensor) -> Tensor:
    """Return how far rounding may move these maps, as shares of their largest values, (B,)."""
    return rounding(model, images, _explained(model, info, images))


@torch.no_grad()
def _explained(model: VisionTransformer, info: ModelInfo, images: Tensor) -> Tensor:
    return _most_probable(info, model(images))


def _most_probable(info: ModelInfo, logits: Tensor) -> Tensor:
    """Return the classes (B,) whose map is wanted; of several labels, slopes and offsets change the order."""
    return (logits if info.multilabel is None else info.multilabel.calibrated(logits)).argmax(1)
