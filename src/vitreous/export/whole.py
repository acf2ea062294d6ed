"""What an exported file computes, and what it says about itself.

Shapes: B batch, C channels, H x W pixels, K classes, F features that the head's last layer reads.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

from vitreous import __version__
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.model.vit import VisionTransformer

__all__ = ["FREE_BATCH", "WholeModel", "describe", "expected", "output_names"]

FREE_BATCH = ({0: torch.export.Dim("batch")},)
"""Which dimension of the input stays free, as :func:`torch.export.export` takes it."""


class WholeModel(nn.Module):
    """A model with its normalisation before it and its calibrated softmax behind it."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: VisionTransformer, info: ModelInfo) -> None:
        super().__init__()
        self.model = model
        self.temperature = info.temperature
        mean, std = (
            torch.tensor(each).view(-1, 1, 1) for each in (info.pipeline.config.mean, info.pipeline.config.std)
        )
        self.register_buffer("mean", mean)  # C 1 1
        self.register_buffer("std", std)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities B x K, logits B x K and features B x F of images B x C x H x W, uint8.

        A model without a head gives features alone.
        """
        x = (images.to(torch.float32) / 255 - self.mean) / self.std
        features = self.model.pooled(x)
        if self.model.config.num_classes == 0:
            return (features * 1,)  # an output of its own, whatever pooling ends with
        logits = self.model.head(features)
        return (logits / self.temperature).softmax(1), logits, features


def output_names(model: VisionTransformer) -> list[str]:
    """What an exported model's outputs are called, in order."""
    return ["probabilities", "logits", "features"] if model.config.num_classes else ["features"]


def describe(model: VisionTransformer, info: ModelInfo) -> dict[str, str]:
    """Return what an exported file says about itself, for any program to read: words, numbers and JSON as text."""
    (height, width), channels = info.pipeline.size, info.pipeline.channels
    colours = "RGB" if channels == 3 else "grey"
    return {
        "producer": f"vitreous {__version__}",
        "input": f"images: uint8, B x {channels} x {height} x {width}, {colours}, 0 to 255, any number B of them; "
        "resized and cut as `pipeline` says, not normalised",
        "outputs": ", ".join(output_names(model)),
        "classes": json.dumps(info.classes),
        "temperature": repr(info.temperature),
        "pipeline": json.dumps(info.pipeline.to_dict()),
        "provenance": json.dumps(info.provenance),
        "scores": json.dumps(info.scores),
    }


@torch.inference_mode()
def expected(model: VisionTransformer, info: ModelInfo, images: Tensor) -> list[Tensor]:
    """Return what an exported file must give for images B x C x H x W, uint8: by PyTorch in float32, step by step."""
    x = info.pipeline.normalise(images)
    if not model.config.num_classes:
        return [model.pooled(x)]
    logits = model(x)
    return [torch.softmax(logits / info.temperature, 1), logits, model.pooled(x)]
