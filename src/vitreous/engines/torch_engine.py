"""PyTorch as an engine: the reference in float32, and a copy of the weights in bfloat16."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.backends import cudnn

from vitreous.accelerate.shares import of_each_share, shares
from vitreous.engines.base import Outputs
from vitreous.engines.names import Precision
from vitreous.model.vit import VisionTransformer

__all__ = ["TorchEngine", "whole_float32"]


class TorchEngine:
    """The model itself in float32; in bf16 a copy of it, which is faster than autocast (docs/benchmarks.md).

    On a CPU large batches are computed in a share for each thread (:mod:`vitreous.accelerate.shares`).

    Args:
        model: In evaluation mode, float32, on the device that is to compute.
        precision: What weights and activations are.
    """

    name = "torch"

    def __init__(self, model: VisionTransformer, precision: Precision) -> None:
        self.precision = precision
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._outputs = Outputs(model if precision == "float32" else copy.deepcopy(model).to(self._dtype)).eval()

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits B x K and features B x F, float32, of normalised images B x C x H x W."""
        images = images.to(self._dtype)
        count = shares(self._outputs.model, images)
        if count > 1:
            each = of_each_share(self._outputs, images, count)
            logits, features = (torch.cat(parts) for parts in zip(*each, strict=True))
        else:
            with whole_float32(images.device):
                logits, features = self._outputs(images)
        return logits.float(), features.float()


@contextlib.contextmanager
def whole_float32(device: torch.device) -> Iterator[None]:
    """Have cuDNN convolve float32 in float32: by default it rounds to 10 bits first (TF32), 5e-4 of a value."""
    if device.type != "cuda":
        yield
        return
    kept = {"benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    with cudnn.flags(enabled=cudnn.enabled, allow_tf32=False, **kept):
        yield
