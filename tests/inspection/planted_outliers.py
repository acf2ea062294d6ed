"""Plants a register neuron in a trained model: it fires on one patch and writes a long vector there."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from vitreous.model.vit import VisionTransformer

NEURON = 5
BLOCK = 0
PATCH = 0  # the top left corner of a digit, which is nearly always empty


@torch.no_grad()
def planted(trained: VisionTransformer, images: Tensor, norm: float) -> VisionTransformer:
    """Return a copy in which the token of one patch has about this norm after the block.

    The neuron's weights separate the patch's tokens from all others by Fisher's linear discriminant.
    """
    model = copy.deepcopy(trained)
    block = model.blocks[BLOCK]
    layer = model.intermediates(images, [BLOCK]).layers[0]
    x = block.norm2(layer.before + block.ls1(block.attn.proj(layer.mixed.transpose(1, 2).flatten(2))))
    token = model.config.prefix_tokens + PATCH
    target, others = x[:, token], torch.cat((x[:, :token], x[:, token + 1 :]), 1).flatten(0, 1)
    centred = others - others.mean(0)
    spread = centred.T @ centred / len(centred) + 1e-3 * torch.eye(x.shape[-1])
    direction = torch.linalg.solve(spread, target.mean(0) - others.mean(0))
    low, high = (others @ direction).max(), (target @ direction).mean()
    scale = 16 / (high - low)
    block.mlp.fc1.weight[NEURON], block.mlp.fc1.bias[NEURON] = scale * direction, -scale * (low + high) / 2
    written = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(3))
    block.mlp.fc2.weight[:, NEURON] = written / written.norm() * norm / 8
    return model
