"""Vision Transformers of other libraries with a given shape, built as their documentation says.

    pip install timm transformers vit-pytorch labml-nn 'labml<0.5'  # labml-nn 0.5.1 calls what labml 0.5 removed

Each function takes the configuration of a plain model ([CLS], learned positions, GELU, a linear head) and returns a
module from images to logits. Parts that a library cannot omit stay: vit-pytorch's two norms around the patch
projection, and labml-nn's head with a hidden layer (made as narrow as possible).
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the hub client is imported

import timm
import torchvision
import transformers
from torch import Tensor, nn
from vit_pytorch import ViT

from vitreous.model.config import ViTConfig, pair

PACKAGES = ("torch", "torchvision", "timm", "transformers", "vit-pytorch", "labml-nn")


def of_timm(config: ViTConfig, fused: bool = True) -> nn.Module:
    """timm's VisionTransformer, with or without its fused attention."""
    model = timm.models.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_dim / config.width,
    )
    for block in model.blocks:
        block.attn.fused_attn = fused
    return model


class _Logits(nn.Module):
    """A transformers model that returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def of_huggingface(config: ViTConfig, **options: Any) -> nn.Module:
    """transformers' ViTForImageClassification."""
    shape = transformers.ViTConfig(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_labels=config.num_classes,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        intermediate_size=config.mlp_dim,
        **options,
    )
    return _Logits(transformers.ViTForImageClassification(shape))


def of_torchvision(config: ViTConfig) -> nn.Module:
    """torchvision's VisionTransformer."""
    return torchvision.models.VisionTransformer(
        image_size=pair(config.image_size)[0],
        patch_size=pair(config.patch_size)[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_dim,
        num_classes=config.num_classes,
    )


def of_vit_pytorch(config: ViTConfig) -> nn.Module:
    """vit-pytorch's ViT."""
    return ViT(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        dim=config.width,
        depth=config.depth,
        heads=config.heads,
        dim_head=config.head_dim,
        mlp_dim=config.mlp_dim,
    )


def of_labml(config: ViTConfig, hidden: int = 1, activation: nn.Module | None = None, dropout: float = 0) -> nn.Module:
    """labml-nn's annotated ViT; `hidden` is the hidden layer of its head."""
    from labml_nn.transformers import MultiHeadAttention, TransformerLayer
    from labml_nn.transformers.feed_forward import FeedForward
    from labml_nn.transformers.vit import (
        ClassificationHead,
        LearnedPositionalEmbeddings,
        PatchEmbeddings,
        VisionTransformer,
    )

    width = config.width
    layer = TransformerLayer(
        d_model=width,
        self_attn=MultiHeadAttention(config.heads, width, dropout),
        feed_forward=FeedForward(width, config.mlp_dim, dropout, activation or nn.GELU()),
        dropout_prob=dropout,
    )
    return VisionTransformer(
        layer,
        config.depth,
        PatchEmbeddings(width, pair(config.patch_size)[0], config.in_channels),
        LearnedPositionalEmbeddings(width, config.tokens),
        ClassificationHead(width, hidden, config.num_classes),
    )
