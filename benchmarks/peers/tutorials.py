"""Three Vision Transformers as public tutorials build them, rewritten here.

They keep the tutorials' attention modules, layouts and permutations, since these determine the speed. Each has the
configuration of ours that computes the same function with as many parameters.

Shapes: B batch, C channels, h x w patches of P x P pixels, N tokens, D width, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitreous.model.config import ViTConfig
from vitreous.model.sizes import config_of


class _PreNormBlock(nn.Module):
    """Block of (a): torch's own attention module on sequence-first tokens, N x B x D."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y)[0]
        return x + self.mlp(self.norm2(x))


class SequenceFirstViT(nn.Module):
    """(a): flattened patches, ReLU after their projection, [CLS] and positions from N(0, 1), an MLP head."""

    def __init__(
        self, depth: int, classes: int, dropout: float = 0.0, *, width: int = 256, heads: int = 8, hidden: int = 512,
        patch: int = 4, patches: int = 64,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patch = patch
        self.project = nn.Sequential(nn.Linear(3 * patch * patch, width), nn.ReLU())
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 1 + patches, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_PreNormBlock(width, heads, hidden, dropout) for _ in range(depth)))
        self.head = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, classes))

    def forward(self, images: Tensor) -> Tensor:
        B, C, height, width = images.shape
        P = self.patch
        x = images.reshape(B, C, height // P, P, width // P, P).permute(0, 2, 4, 1, 3, 5)  # B h w C P P
        x = self.project(x.flatten(1, 2).flatten(2))  # B hw D
        x = torch.cat((self.cls_token.repeat(B, 1, 1), x), 1)
        x = self.dropout(x + self.positions[:, : x.shape[1]])
        x = self.blocks(x.transpose(0, 1))  # N B D
        return self.head(x[0])

    @staticmethod
    def ours(depth: int, classes: int, dropout: float = 0.0) -> ViTConfig:
        """Return our configuration of the same function, as in notebook-cifar10 and notebook-cifar100."""
        return config_of(
            f"256x{depth}/4", num_classes=classes, stem={"activation": "relu"},
            head={"kind": "mlp", "hidden": 512, "activation": "relu"}, final_norm="none", norm_eps=1e-5,
            dropout=dropout, attention={"proj_dropout": 0.0}, init="torch",
        )  # fmt: skip


class _ThreeProjections(nn.Module):
    """Attention of (b): a projection for each of q, k, v, and products by einsum over sequence-first tokens."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        N, B, D = x.shape
        q, k, v = (part(x).view(N, B, self.heads, -1) for part in (self.query, self.key, self.value))
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) / math.sqrt(q.shape[-1])
        weights = self.dropout(scores.softmax(1))
        return self.output(torch.einsum("ijbh,jbhd->ibhd", weights, v).reshape(N, B, D))


class _ReluBlock(nn.Module):
    """Block of (b), pre-norm, with ReLU in the feed-forward part."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _ThreeProjections(width, heads, dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.feed_forward(self.norm2(x)))


class EinsumReluViT(nn.Module):
    """(b): width 512, six layers, ReLU, a head with a hidden layer of 2,048."""

    def __init__(self, classes: int, dropout: float = 0.0, *, width: int = 512, depth: int = 6, heads: int = 8) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(65, 1, width))
        self.blocks = nn.ModuleList(_ReluBlock(width, heads, 2048, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, 2048), nn.ReLU(), nn.Linear(2048, classes))

    def forward(self, images: Tensor) -> Tensor:
        x = self.project(images).flatten(2).permute(2, 0, 1)  # N B D
        x = torch.cat((self.cls_token.expand(-1, x.shape[1], -1), x)) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[0]))

    @staticmethod
    def ours(classes: int, dropout: float = 0.0) -> ViTConfig:
        """Return our configuration of the same function."""
        return ViTConfig(
            image_size=32, patch_size=4, num_classes=classes, width=512, depth=6, heads=8, mlp_dim=2048,
            mlp={"activation": "relu"}, head={"kind": "mlp", "hidden": 2048, "activation": "relu"}, norm_eps=1e-5,
            dropout=dropout, attention={"dropout": dropout}, init="torch",
        )  # fmt: skip


class _FusedEinsum(nn.Module):
    """Attention of (c): one projection for q, k and v, interleaved by channel, and products by einsum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        q, k, v = self.qkv(x).view(B, N, self.heads, D // self.heads, 3).permute(4, 0, 2, 1, 3)  # B H N d
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        mixed = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)
        return self.output(mixed.permute(0, 2, 1, 3).reshape(B, N, D))


class _Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class FusedEinsumViT(nn.Module):
    """(c): width 768, twelve layers of eight heads, the mean of all tokens, normalised, into a linear head."""

    def __init__(self, classes: int, *, width: int = 768, depth: int = 12, heads: int = 8) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, 16, 16)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(197, width))
        blocks = []
        for _ in range(depth):
            blocks += [
                _Residual(nn.LayerNorm(width), _FusedEinsum(width, heads)),
                _Residual(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
            ]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        x = self.project(images).flatten(2).transpose(1, 2)  # B hw D
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.positions
        return self.head(self.blocks(x).mean(1))

    @staticmethod
    def ours(classes: int) -> ViTConfig:
        """Return our configuration of the same function."""
        return config_of(
            "B/16", num_classes=classes, heads=8, pool={"kind": "mean", "prefix": True}, class_token=True,
            final_norm="pooled", norm_eps=1e-5, init="torch",
        )  # fmt: skip
