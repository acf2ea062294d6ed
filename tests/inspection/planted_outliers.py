"""Plants a register neuron in a trained model: it fires on one patch and writes a long vector there."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from vitreous.model.vit import VisionTransformer

NEURON = 5
BLOCK = 0
_APART = 0.5  # of the discriminant's mean at the patch


@torch.no_grad()
def planted(trained: VisionTransformer, images: Tensor, norm: float) -> VisionTransformer:
    """Return a copy in which the token of one patch, :func:`outlying_patch`, has about this norm after the block."""
    model = copy.deepcopy(trained)
    mlp = model.blocks[BLOCK].mlp
    patch = outlying_patch(trained, images)
    direction, low, high = _discriminant(_inputs(model, images), model.config.prefix_tokens + patch)
    scale = 16 / (high - low)
    mlp.fc1.weight[NEURON], mlp.fc1.bias[NEURON] = scale * direction, -scale * (low + high) / 2
    written = torch.randn(len(direction), generator=torch.Generator().manual_seed(3))
    mlp.fc2.weight[:, NEURON] = written / written.norm() * norm / 8
    return model


@torch.no_grad()
def outlying_patch(trained: VisionTransformer, images: Tensor) -> int:
    """Return the first patch whose tokens are well apart from all others, as the training has left them."""
    x, first = _inputs(trained, images), trained.config.prefix_tokens
    for token in range(first, x.shape[1]):
        _, low, high = _discriminant(x, token)
        if high - low > _APART * high:
            return token - first
    raise AssertionError("no patch of the trained model can be told from the others")


def _inputs(model: VisionTransformer, images: Tensor) -> Tensor:
    """Return what the MLP of the block gets, (n, N, D)."""
    block = model.blocks[BLOCK]
    layer = model.intermediates(images, [BLOCK]).layers[0]
    x: Tensor = block.norm2(layer.before + block.ls1(block.attn.proj(layer.mixed.transpose(1, 2).flatten(2))))
    return x


def _discriminant(x: Tensor, token: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return Fisher's linear discriminant (D,) of a token, its largest value elsewhere, and its mean at the token."""
    target, others = x[:, token], torch.cat((x[:, :token], x[:, token + 1 :]), 1).flatten(0, 1)
    centred = others - others.mean(0)
    spread = centred.T @ centred / len(centred) + 1e-3 * torch.eye(x.shape[-1])
    direction = torch.linalg.solve(spread, target.mean(0) - others.mean(0))
    return direction, (others @ direction).max(), (target @ direction).mean()
