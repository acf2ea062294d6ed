"""PyTorch as an engine: the model itself in float32, or a bfloat16 copy of it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import cudnn

from vitreous.accelerate.batch_parts import map_parts, num_parts
from vitreous.engines.base import Outputs
from vitreous.engines.names import Precision
from vitreous.model.vit import VisionTransformer

__all__ = ["TorchEngine", "no_tf32"]


class TorchEngine:
    """The model itself in float32; in bf16 a copy of it, faster than autocast (docs/explanation/benchmarks.md).

    On a CPU, large batches are split between the threads (:mod:`vitreous.accelerate.batch_parts`). ``outputs`` makes
    the module that computes; another one than :class:`Outputs` returns other features.
    """

    name = "torch"

    def __init__(
        self, model: VisionTransformer, precision: Precision, outputs: Callable[[VisionTransformer], Any] = Outputs
    ) -> None:
        self.precision = precision
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._outputs = outputs(model if precision == "float32" else _converted(model, self._dtype)).eval()

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and features (B, F), float32, of normalised images (B, C, H, W)."""
        images = images.to(self._dtype)
        count = num_parts(self._outputs.model, images)
        if count > 1:
            each = map_parts(self._outputs, images, count)
            logits, features = (torch.cat(parts) for parts in zip(*each, strict=True))
        else:
            with no_tf32(images.device):
                logits, features = self._outputs(images)
        return logits.float(), features.float()


def _converted(model: VisionTransformer, dtype: torch.dtype) -> VisionTransformer:
    """Return a copy of a model in another dtype, without copying its weights as they are."""
    weights = {id(p): nn.Parameter(p.detach().to(dtype), requires_grad=p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, weights).to(dtype)  # deepcopy takes what it is given for each object


@contextlib.contextmanager
def no_tf32(device: torch.device) -> Iterator[None]:
    """Make cuDNN compute float32 convolutions in float32; by default it rounds inputs to 10 bits (TF32)."""
    if device.type != "cuda":
        yield
        return
    unchanged = {"enabled": cudnn.enabled, "benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    with cudnn.flags(**unchanged, allow_tf32=False):
        yield
