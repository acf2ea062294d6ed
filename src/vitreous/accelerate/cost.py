"""What a model costs per image: parameters, tokens, operations and memory. No weight is allocated to find out.

Shapes: P prefix tokens, N patches, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from vitreous.accelerate.model import build
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.vit import VisionTransformer

__all__ = ["Cost", "cost", "forward_bytes"]


@dataclass(frozen=True)
class Cost:
    """What a model costs per image.

    Attributes:
        parameters: Number of parameters.
        tokens: Length of the sequence.
        flops: Floating-point operations of one forward pass, 2 per multiply-add. Matrix products and convolutions are
            counted, normalisation and activations are not.
        activation_bytes: What a training step keeps for the backward pass, in float32, with the attention weights (a
            fused attention kernel keeps less).
    """

    parameters: int
    tokens: int
    flops: int
    activation_bytes: int


def cost(config: ViTConfig, image_size: Size2d | None = None) -> Cost:
    """Count exactly, by forward passes without data on torch's meta device.

    Operations are those of the plain model, as papers count them; memory is that of the fast one, which trains.

    Args:
        config: The model.
        image_size: Pixels, where not the configuration's own.
    """
    if image_size is not None:
        config = replace(config, image_size=image_size)
    with torch.device("meta"):
        image = torch.empty(1, config.in_channels, *pair(config.image_size))
        from torch.utils.flop_counter import FlopCounterMode  # slow to import: only where it is used

        with FlopCounterMode(display=False) as counter:
            VisionTransformer(config).eval()(image)
        saved: dict[int, Tensor] = {}
        # Tensors that share one storage are kept once; holding them keeps their ids apart.
        model = build(config)
        with saved_tensors_hooks(lambda t: saved.setdefault(t.untyped_storage()._cdata, t), lambda t: t):
            model.train()(image)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept = sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in weights)
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(parameters, config.tokens, counter.get_total_flops(), kept)


def forward_bytes(config: ViTConfig, size: tuple[int, int], images: int = 1, merged: int = 0) -> int:
    """Bound the bytes that a forward pass without gradients holds at once, beside the weights; float32.

    A closed form, for questions that must cost nothing themselves.

    Args:
        config: The model.
        size: Height and width of the images in pixels.
        images: Number of images that are computed together.
        merged: Tokens that each block merges (:mod:`vitreous.accelerate.merging`).
    """
    c, (height, width), (ph, pw) = config, size, pair(config.patch_size)
    grid = (height // ph, width // pw)
    patches = grid[0] * grid[1]
    tokens = patches + c.prefix_tokens
    scores = c.position.score_activations(c, patches)
    if merged:  # similarities between two halves of the tokens, and which of them are merged
        half = patches // 2
        scores += half * max(half, 5 * min(merged, half) // 4)
    block = max(c.attention.activations(c, tokens), c.mlp.activations(c, tokens)) + scores
    largest = max(c.stem.activations(c, height, width), 2 * tokens * c.width, block, c.pool.activations(c, tokens))
    return 4 * images * (height * width * c.in_channels + largest) + c.position.table_bytes(c, grid)
