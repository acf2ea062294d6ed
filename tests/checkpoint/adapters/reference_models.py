"""Helpers for comparisons with other libraries: random weights, random images, and the difference of two outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BOUND = 1e-5  # largest difference of two logits, relative to the largest logit


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fill every tensor with random values, so that a lost one changes the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim == 1 and name.endswith("weight"):
                tensor.copy_(1 + 0.2 * noise)  # norms
            elif name.endswith(("gamma", "lambda1")):
                tensor.copy_(0.5 + 0.2 * noise)
            elif tensor.ndim == 4 or (tensor.ndim == 2 and name.endswith("weight")):
                tensor.copy_(noise / max(1, tensor[0].numel()) ** 0.5)
            else:
                tensor.copy_(0.3 * noise)
    return model.eval()


def random_images(count: int, height: int, width: int | None = None, channels: int = 3) -> Tensor:
    """Return noise like normalised images, B x C x H x W."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, channels, height, width or height, generator=generator)


def difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest value of the first."""
    return float((a - b).abs().max() / a.abs().max())
