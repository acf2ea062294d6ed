"""What a model costs per image: parameters, tokens, operations, memory of a step. Nothing is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.vit import VisionTransformer

__all__ = ["Cost", "cost"]


@dataclass(frozen=True)
class Cost:
    """What a model costs per picture.

    Attributes:
        parameters: Number of parameters.
        tokens: Length of the sequence.
        flops: Floating-point operations of one forward pass (2 per multiply-add), matrix products and convolutions
            counted, normalisation and activations not.
        activation_bytes: What one training step keeps for the backward pass, in float32, with attention's weights
            kept (a fused attention kernel keeps less).
    """

    parameters: int
    tokens: int
    flops: int
    activation_bytes: int


def cost(config: ViTConfig, image_size: Size2d | None = None) -> Cost:
    """Count exactly, by forward passes without data (on torch's meta device).

    Args:
        config: The model.
        image_size: Pixels, if not the configuration's own.
    """
    if image_size is not None:
        config = replace(config, image_size=image_size)
    with torch.device("meta"):
        model = VisionTransformer(config)
        image = torch.empty(1, config.in_channels, *pair(config.image_size))
        saved: dict[int, Tensor] = {}
        # Tensors that share one storage are kept once; holding them keeps their ids apart.
        keep = saved_tensors_hooks(lambda t: saved.setdefault(t.untyped_storage()._cdata, t), lambda t: t)
        with FlopCounterMode(display=False) as counter:
            model.eval().forward_head(model.forward_features(image))  # all tokens of all blocks, as the paper counts
        with keep:
            model.train()(image)
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    kept = sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in own)
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(parameters, config.tokens, counter.get_total_flops(), kept)
