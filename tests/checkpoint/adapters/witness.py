"""Original libraries' models with random weights in every tensor, and how far two sets of logits are apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BOUND = 1e-5  # largest difference of two logits, relative to the largest logit


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every tensor anew: norms around 1, biases and tokens too, so that no tensor can hide behind a zero."""
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


def pictures(count: int, height: int, width: int | None = None, channels: int = 3) -> Tensor:
    """Noise of the size of normalised pictures, B x C x H x W."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, channels, height, width or height, generator=generator)


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value of the first."""
    return float((a - b).abs().max() / a.abs().max())
