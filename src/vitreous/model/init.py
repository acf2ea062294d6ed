"""How weights start. The paper's JAX code, timm and torchvision differ; the default is the paper's (``init="jax"``)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitreous.model.attention import Attention
from vitreous.model.config import ViTConfig
from vitreous.model.embeddings import sincos_table

if TYPE_CHECKING:
    from vitreous.model.vit import VisionTransformer

__all__ = ["initialise"]


def initialise(model: VisionTransformer, config: ViTConfig) -> None:
    """Draw all weights in place, by the global random generator, as ``config.init`` says (see :class:`ViTConfig`)."""
    {"jax": _jax, "timm": _timm, "torchvision": _torchvision, "torch": _torch, "mimetic": _mimetic}[config.init](model)
    zero = config.init in ("jax", "torchvision", "mimetic") if config.zero_head is None else config.zero_head
    if zero and isinstance(model.head, nn.Linear):
        nn.init.zeros_(model.head.weight)
        nn.init.zeros_(model.head.bias)
    if config.zero_residual:
        for name, weight in model.blocks.named_parameters():
            if name.endswith(("attn.proj.weight", "mlp.fc2.weight")):
                nn.init.zeros_(weight)


def _jax(model: VisionTransformer) -> None:
    """google-research/vision_transformer, models_vit.py: xavier uniform in the encoder, flax defaults outside."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            _lecun_normal(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        if name.endswith(("attn.qkv", "attn_pool.kv")):
            # Query, key and value are drawn apart.
            for matrix in module.weight.split(module.in_features):
                nn.init.xavier_uniform_(matrix)
        elif name.startswith(("blocks.", "attn_pool.")):
            nn.init.xavier_uniform_(module.weight)
        if name.endswith(("mlp.fc1", "mlp.fc2")):
            nn.init.normal_(module.bias, std=1e-6)
    _tokens(model, cls=0.0, position=0.02)


def _timm(model: VisionTransformer) -> None:
    """Timm 1.0 vision_transformer.py, weight_init='': linear layers normal 0.02, biases zero.

    Timm and torchvision cut their normals at -2 and 2, many standard deviations out. There torch 2.11's
    ``trunc_normal_`` puts one weight in some 17 million at exactly -2, so here they are not cut.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    _tokens(model, cls=1e-6, position=0.02)
    if model.config.pool == "map":
        std = model.config.width**-0.5
        nn.init.trunc_normal_(model.attn_pool.latent, std=std, a=-2 * std, b=2 * std)


def _torchvision(model: VisionTransformer) -> None:
    """Torchvision vision_transformer.py: patches normal by fan-in, MLP and qkv xavier uniform."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=math.sqrt(1 / module.weight[0].numel()))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and name.endswith(("mlp.fc1", "mlp.fc2")):
            nn.init.xavier_uniform_(module.weight)
            nn.init.normal_(module.bias, std=1e-6)
        elif isinstance(module, nn.Linear) and name.endswith(("attn.qkv", "attn_pool.kv")):
            nn.init.xavier_uniform_(module.weight)  # over the stacked matrix, as nn.MultiheadAttention does
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and name.endswith("attn.proj"):
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and name == "pre_logits.fc":
            nn.init.normal_(module.weight, std=math.sqrt(1 / module.in_features))
            nn.init.zeros_(module.bias)
    _tokens(model, cls=0.0, position=0.02)


def _torch(model: VisionTransformer) -> None:
    """PyTorch's own layer defaults; tokens and positions from N(0, 1), as the public tutorials have them."""
    _tokens(model, cls=1.0, position=1.0)


@torch.no_grad()
def _mimetic(model: VisionTransformer) -> None:
    """Mimetic initialisation (arXiv 2305.09828): attention begins as trained ViTs end; the rest is as :func:`_jax`.

    Each head's queries times keys are near the identity, so that tokens look at those alike; values times the
    projection are near its negative; learned positions begin as sines and cosines, half as large.
    """
    _jax(model)
    width = model.config.width
    for attention in model.modules():
        if not isinstance(attention, Attention):
            continue
        heads = [_factors(width, attention.head_dim, noise=0.7, identity=0.7) for _ in range(attention.heads)]
        queries, keys = zip(*heads, strict=True)
        projection, values = _factors(width, width, noise=0.4, identity=-0.4)
        attention.qkv.weight.copy_(torch.cat([*queries, *keys, values]))
        attention.proj.weight.copy_(projection.T)
    if model.config.position == "learned":
        patches = model.pos_embed[:, -math.prod(model.config.grid) :]
        patches.copy_(sincos_table(model.config.grid, model.config.width) / 2)


def _factors(width: int, rank: int, noise: float, identity: float) -> tuple[Tensor, Tensor]:
    """Two matrices A, B, rank x width: A^T B is the nearest of that rank to noise N(0, 1 / width) + identity I."""
    wanted = noise * torch.randn(width, width) / math.sqrt(width) + identity * torch.eye(width)
    left, strength, right = torch.linalg.svd(wanted)
    root = strength[:rank, None].sqrt()
    return root * left[:, :rank].T, root * right[:rank]


def _tokens(model: VisionTransformer, cls: float, position: float) -> None:
    """Draw tokens and positions from normal distributions of the standard deviations given."""
    for name, parameter in model.named_parameters():
        if name == "cls_token":
            nn.init.normal_(parameter, std=cls)
        elif name == "reg_token":
            nn.init.normal_(parameter, std=1e-6)
        elif name.startswith("pos_embed"):
            nn.init.normal_(parameter, std=position)
        elif name.endswith("attn.relative"):
            nn.init.normal_(parameter, std=0.02)
        elif name == "attn_pool.latent":
            nn.init.xavier_uniform_(parameter[0])  # big_vision's MAPHead


def _lecun_normal(weight: Tensor) -> None:
    """Flax's default: truncated normal (at 2 sigma) of variance 1 / fan-in."""
    std = math.sqrt(1 / weight[0].numel()) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
