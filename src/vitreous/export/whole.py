"""The computation that is exported, and the description stored with it.

Shapes: B batch, C channels, H x W pixels, K classes, F features before the head's last layer.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

from vitreous import __version__
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.model.vit import VisionTransformer

__all__ = ["DYNAMIC_BATCH", "WholeModel", "describe", "expected_outputs", "output_names"]

DYNAMIC_BATCH = ({0: torch.export.Dim("batch")},)
"""``dynamic_shapes`` of :func:`torch.export.export` for any batch size."""


class WholeModel(nn.Module):
    """A model with the normalisation before it and the calibrated softmax after it."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: VisionTransformer, info: ModelInfo) -> None:
        super().__init__()
        self.model = model
        self.temperature = info.temperature
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(info.pipeline.config, name)).view(-1, 1, 1))  # C 1 1

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities (B, K), logits (B, K) and features (B, F) of uint8 images (B, C, H, W).

        A model without a head returns features only.
        """
        x = (images.to(torch.float32) / 255 - self.mean) / self.std
        features = self.model(x, "features")
        if self.model.config.num_classes == 0:
            return (features * 1,)  # a new tensor, so that the output never aliases an intermediate
        logits = self.model.head(features)
        return (logits / self.temperature).softmax(1), logits, features


def output_names(model: VisionTransformer) -> list[str]:
    """Return the names of the outputs, in order."""
    return ["probabilities", "logits", "features"] if model.config.num_classes else ["features"]


def describe(model: VisionTransformer, info: ModelInfo) -> dict[str, str]:
    """Return the description stored in an exported file; all values are strings, some of them JSON."""
    (height, width), channels = info.pipeline.size, info.pipeline.channels
    colours = "RGB" if channels == 3 else "grey"
    return {
        "producer": f"vitreous {__version__}",
        "input": f"images: uint8, B x {channels} x {height} x {width}, {colours}, 0 to 255, any batch size B; "
        "resized and cropped as `pipeline` says, not normalised",
        "outputs": ", ".join(output_names(model)),
        "classes": json.dumps(info.classes),
        "temperature": repr(info.temperature),
        "pipeline": json.dumps(info.pipeline.to_dict()),
        "provenance": json.dumps(info.provenance),
        "scores": json.dumps(info.scores),
    }


@torch.inference_mode()
def expected_outputs(model: VisionTransformer, info: ModelInfo, images: Tensor) -> list[Tensor]:
    """Compute the outputs for uint8 images (B, C, H, W) by PyTorch in float32, independently of `WholeModel`."""
    x = info.pipeline.normalise(images)
    if not model.config.num_classes:
        return [model(x, "features")]
    logits = model(x)
    return [torch.softmax(logits / info.temperature, 1), logits, model(x, "features")]
