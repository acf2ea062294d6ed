"""What the head reads: one vector from all tokens. The class token and the mean need no code beyond vit.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitreous.model.config import ViTConfig
from vitreous.model.kernels import LayerNorm, Linear, attend, project_heads
from vitreous.model.mlp import Mlp

__all__ = ["AttentionPool", "SequencePool"]


class AttentionPool(nn.Module):
    """Multi-head attention pooling (MAP, arXiv 2106.04560): a learned query attends to all tokens, then an MLP.

    Parameter names are those of timm's AttentionPoolLatent.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = Linear(width, width)
        self.kv = Linear(width, 2 * width)
        self.proj = Linear(width, width)
        self.norm = LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return B x D for tokens B x N x D."""
        (q,) = project_heads(self.latent.expand(x.shape[0], -1, -1), self.q, 1, self.heads)  # B H 1 d
        k, v = project_heads(x, self.kv, 2, self.heads)  # B H N d
        x = self.proj(attend(q, k, v).transpose(1, 2).flatten(2))  # B 1 D
        return (x + self.mlp(self.norm(x)))[:, 0]  # B D


class SequencePool(nn.Module):
    """A learned weighted mean of all tokens (SeqPool, arXiv 2104.05704, section 3.2)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.score = Linear(config.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return B x D for tokens B x N x D."""
        weights = self.score(x).softmax(1)  # B N 1
        return (weights.to(x.dtype).transpose(1, 2) @ x)[:, 0]  # B D
