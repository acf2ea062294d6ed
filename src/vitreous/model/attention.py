"""Multi-head self-attention (appendix A of arXiv 2010.11929), its position variants, and the choice of kernel.

Shapes: B batch, H heads, N tokens, D width, d = D / H channels of a head, P prefix tokens ([CLS] and registers).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.config import ViTConfig

__all__ = ["Attention", "Raster", "attend", "rotate"]

Raster = tuple[Tensor, int]


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Return softmax(q kᵀ / sqrt(d) + bias) v by the kernel that is fastest for the device and dtype (equations 6, 7).

    On a CPU in bfloat16 the fused kernel's backward pass is several times slower than the products written out
    (docs/benchmarks.md), so there, and only where a gradient is wanted, they are written out.

    Args:
        q: Queries, B x H x N x d.
        k: Keys, B x H x M x d.
        v: Values, B x H x M x d.
        bias: Added to the scaled scores, broadcastable to B x H x N x M.
        dropout: Share of attention weights set to zero, in [0, 1).

    Returns:
        B x H x N x d.
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled():
        scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)  # B H N M
        if bias is not None:
            scores = scores + bias
        return F.dropout(scores.softmax(-1).to(v.dtype), dropout) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)


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
        self.qkv = nn.Linear(width, 3 * width, bias=config.qkv_bias)
        norm = nn.LayerNorm if config.qk_norm else None
        self.q_norm = norm(self.head_dim, eps=config.norm_eps) if norm else nn.Identity()
        self.k_norm = norm(self.head_dim, eps=config.norm_eps) if norm else nn.Identity()
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(config.dropout)
        if config.position == "relative":
            rows, columns = config.grid
            self.relative = nn.Parameter(torch.zeros(2 * rows * columns - 1, self.head_dim))

    def forward(self, x: Tensor, rotary: Tensor | None = None, raster: Raster | None = None) -> Tensor:
        """Mix tokens.

        Args:
            x: Tokens, B x N x D.
            rotary: Cosines and sines per patch for rotary positions, 2 x (1 or B) x 1 x (N - P) x d.
            raster: For relative positions, the index of each patch in raster order, (1 or B) x (N - P), and the
                number of patches of the whole picture.

        Returns:
            B x N x D.
        """
        B, N, D = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)  # B H N d
        q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotate(q, rotary, self.prefix), rotate(k, rotary, self.prefix)
        bias = None if raster is None else self.relative_bias(q, raster)
        out = attend(q, k, v, bias, self.dropout if self.training else 0.0)  # B H N d
        return self.proj_drop(self.proj(out.transpose(1, 2).reshape(B, N, D)))  # B N D

    def relative_bias(self, q: Tensor, raster: Raster) -> Tensor:
        """Return the logits of the relative attention, B x H x N x N, zero wherever a prefix token takes part."""
        place, total = raster
        table: Tensor = self.relative
        if len(table) != 2 * total - 1:  # another resolution: offsets are stretched linearly
            table = F.interpolate(table.t()[None], size=2 * total - 1, mode="linear", align_corners=True)[0].t()
        offsets = place[:, :, None] - place[:, None, :] + total - 1  # (1 or B) n n
        logits = q[:, :, self.prefix :] @ table.t().to(q.dtype) / math.sqrt(self.head_dim)  # B H n 2T-1
        index = offsets[:, None].expand(len(q), self.heads, -1, -1)
        return F.pad(logits.gather(-1, index), (self.prefix, 0, self.prefix, 0))  # B H N N


def rotate(x: Tensor, rotary: Tensor, prefix: int) -> Tensor:
    """Rotate consecutive channel pairs of the patch tokens of x (B x H x N x d) by their angles; prefix tokens stay."""
    cos, sin = rotary.to(x.dtype)
    head, patches = x[:, :, :prefix], x[:, :, prefix:]
    even, odd = patches.unflatten(-1, (x.shape[-1] // 2, 2)).unbind(-1)
    turned = torch.stack((-odd, even), -1).flatten(-2)
    return torch.cat((head, patches * cos + turned * sin), 2)
