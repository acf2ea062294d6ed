"""Multi-head self-attention (appendix A of arXiv 2010.11929) and its position variants.

Shapes: B batch, H heads, N tokens, D width, d = D / H channels of a head, P prefix tokens ([CLS] and registers).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.config import ViTConfig
from vitreous.model.kernels import LayerNorm, Linear, attend, project_heads

__all__ = ["Attention", "Raster", "rotate"]

Raster = tuple[Tensor, int]


class Attention(nn.Module):
    """Multi-head self-attention with fused qkv projection, optional QK-norm, rotary or relative positions.

    The relative variant follows appendix D.4: an extra attention whose keys are embeddings of the raster offset
    between two patches; its logits are added to the main ones. Offsets between patches and prefix tokens have none.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads, self.head_dim, self.prefix = config.heads, config.head_dim, config.prefix_tokens
        self.dropout = config.attention_dropout
        self.qkv = Linear(width, 3 * width, bias=config.qkv_bias)
        norm = LayerNorm if config.qk_norm else None
        self.q_norm = norm(self.head_dim, eps=config.norm_eps) if norm else nn.Identity()
        self.k_norm = norm(self.head_dim, eps=config.norm_eps) if norm else nn.Identity()
        self.proj = Linear(width, width)
        self.proj_drop = nn.Dropout(config.dropout if config.proj_dropout is None else config.proj_dropout)
        if config.position == "relative":
            rows, columns = config.grid
            self.relative = nn.Parameter(torch.zeros(2 * rows * columns - 1, self.head_dim))

    def forward(
        self, x: Tensor, rotary: Tensor | None = None, raster: Raster | None = None, wanted: int | None = None
    ) -> Tensor:
        """Mix tokens.

        Args:
            x: Tokens, B x N x D.
            rotary: Cosines and sines per patch for rotary positions, 2 x (1 or B) x 1 x (N - P) x d.
            raster: For relative positions, the index of each patch in raster order, (1 or B) x (N - P), and the
                number of patches of the whole picture.
            wanted: How many tokens of the result are needed, the first ones; None is all.

        Returns:
            B x N x D, N being `wanted` where it is given.
        """
        q, k, v = project_heads(x, self.qkv, 3, self.heads)  # B H N d
        q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotate(q, rotary, self.prefix), rotate(k, rotary, self.prefix)
        bias = None if raster is None else self.relative_bias(q, raster)[:, :, :wanted]
        out = attend(q[:, :, :wanted], k, v, bias, self.dropout if self.training else 0.0)  # B H N d
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))  # B N D

    def relative_bias(self, q: Tensor, raster: Raster) -> Tensor:
        """Return the logits of the relative attention, B x H x N x N, zero wherever a prefix token takes part."""
        place, total = raster
        table: Tensor = self.relative
        if len(table) != 2 * total - 1:  # another resolution: offsets are stretched linearly
            table = F.interpolate(table.t()[None], size=2 * total - 1, mode="linear", align_corners=True)[0].t()
        offsets = place[:, :, None] - place[:, None, :] + total - 1  # (1 or B) n n
        logits = q[:, :, self.prefix :] @ table.t().to(q.dtype) / math.sqrt(self.head_dim)  # B H n 2T-1
        index = offsets[:, None].expand(q.shape[0], self.heads, -1, -1)
        return F.pad(logits.gather(-1, index), (self.prefix, 0, self.prefix, 0))  # B H N N


def rotate(x: Tensor, rotary: Tensor, prefix: int) -> Tensor:
    """Rotate consecutive channel pairs of the patch tokens of x (B x H x N x d) by their angles; prefix tokens stay."""
    cos, sin = rotary.to(x.dtype)
    head, patches = x[:, :, :prefix], x[:, :, prefix:]
    even, odd = patches.unflatten(-1, (x.shape[-1] // 2, 2)).unbind(-1)
    turned = torch.stack((-odd, even), -1).flatten(-2)
    return torch.cat((head, patches * cos + turned * sin), 2)
