"""Pooling: how all tokens become the one vector that the head reads (equation 4).

To add a kind, write a subclass of :class:`Pool` here or in a new file, and list it in ``POOLS``.

Shapes: B batch, H heads, T tokens (prefix and patches), D width, d channels per head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.init import Scheme
from vitreous.model.mlp import MlpConfig
from vitreous.model.norm import build_norm
from vitreous.model.part import Part, Shape
from vitreous.model.record import Record

__all__ = [
    "POOLS",
    "AttentionPool",
    "AttentionPoolModule",
    "ClassToken",
    "ClassTokenMean",
    "Mean",
    "Pool",
    "PrefixTokens",
    "SequencePool",
]


@dataclass(frozen=True)
class Pool(Part):
    """A kind of pooling."""

    reads_class_token: ClassVar[bool] = False
    attends: ClassVar[bool] = False
    """Whether weights of its own mix the tokens; its module's ``forward`` then takes a :class:`Record`."""
    module_name: ClassVar[str] = "token_pool"
    """Name of the pooling module in the state dict."""

    def output_width(self, shape: Shape) -> int:
        """Return the length of the pooled vector."""
        return shape.width

    def tokens_read(self, shape: Shape) -> int | None:
        """Return how many tokens, from the first, pooling reads; None for all."""
        return None

    def build(self, shape: Shape, mlp: MlpConfig) -> nn.Module:
        """Return the pooling module. It maps tokens (B, T, D) to (B, ``output_width``)."""
        raise NotImplementedError

    def activations(self, shape: Shape, tokens: int) -> int:
        """Return how many numbers per image pooling holds in memory besides the tokens."""
        return 0


@dataclass(frozen=True)
class ClassToken(Pool):
    """`cls`: the class token (equation 4)."""

    kind = "cls"
    reads_class_token = True

    def tokens_read(self, shape: Shape) -> int:
        return 1

    def build(self, shape: Shape, mlp: MlpConfig) -> nn.Module:
        return _ClassTokenModule()


@dataclass(frozen=True)
class PrefixTokens(Pool):
    """`prefix`: the class token and all registers, concatenated.

    With one register, a linear head on them is the mean of two heads, one on the class token and one on the register,
    as DeiT has for its distillation token (arXiv 2012.12877).
    """

    kind = "prefix"
    reads_class_token = True

    def output_width(self, shape: Shape) -> int:
        return shape.width * (1 + shape.registers)

    def tokens_read(self, shape: Shape) -> int:
        return 1 + shape.registers

    def build(self, shape: Shape, mlp: MlpConfig) -> nn.Module:
        return _PrefixModule(1 + shape.registers)


@dataclass(frozen=True)
class Mean(Pool):
    """`mean`: the mean of the patch tokens (appendix D.3).

    Args:
        prefix: Whether pooling includes [CLS] and registers.
    """

    kind = "mean"
    prefix: bool = False

    def build(self, shape: Shape, mlp: MlpConfig) -> nn.Module:
        return _MeanModule(0 if self.prefix else shape.prefix_tokens)


@dataclass(frozen=True)
class ClassTokenMean(Pool):
    """`cls-mean`: the class token concatenated with the mean of the patches (as in DINOv2, arXiv 2304.07193).

    Args:
        prefix: Whether the mean includes [CLS] and registers.
    """

    kind = "cls-mean"
    reads_class_token = True
    prefix: bool = False

    def output_width(self, shape: Shape) -> int:
        return 2 * shape.width

    def build(self, shape: Shape, mlp: MlpConfig) -> nn.Module:
        return _ClassTokenMeanModule(0 if self.prefix else shape.prefix_tokens)


@dataclass(frozen=True)
class AttentionPool(Pool):
    """`map`: a learned query attends to all tokens, and an MLP follows (MAP head, arXiv 2106.04560).

    Args:
        prefix: Whether pooling includes [CLS] and registers.
        heads: Number of heads, which must divide the width. None uses that of the blocks.
        mlp_dim: Size of the hidden layer of the MLP. None uses that of the blocks.
    """

    kind = "map"
    attends = True
    module_name = "attn_pool"  # the name in timm
    prefix: bool = True
    heads: int | None = None
    mlp_dim: int | None = None

    def problems(self, shape: Shape) -> Iterator[str]:
        if self.heads is not None and (self.heads < 1 or shape.width % self.heads):
            yield f"pool.heads is {self.heads}, which must divide the width, {shape.width}"
        if self.mlp_dim is not None and self.mlp_dim < 1:
            yield f"pool.mlp_dim is {self.mlp_dim}, it must be at least 1"

    def build(self, shape: Shape, mlp: MlpConfig) -> nn.Module:
        own = shape.with_sizes(heads=self.heads or shape.heads, mlp_dim=self.mlp_dim or shape.mlp_dim)
        return AttentionPoolModule(own, MlpConfig(mlp.activation), 0 if self.prefix else shape.prefix_tokens)

    def activations(self, shape: Shape, tokens: int) -> int:
        return 15 * tokens * shape.width  # keys and values of all tokens, scaled for one query


@dataclass(frozen=True)
class SequencePool(Pool):
    """`seq`: a mean of the tokens with learned weights (SeqPool, arXiv 2104.05704, section 3.2).

    Args:
        prefix: Whether pooling includes [CLS] and registers.
    """

    kind = "seq"
    attends = True
    module_name = "seq_pool"
    prefix: bool = True

    def build(self, shape: Shape, mlp: MlpConfig) -> nn.Module:
        return _SequencePoolModule(shape, 0 if self.prefix else shape.prefix_tokens)


POOLS: tuple[type[Pool], ...] = (ClassToken, Mean, ClassTokenMean, PrefixTokens, AttentionPool, SequencePool)
"""The kinds of pooling."""


class _ClassTokenModule(nn.Module):
    """The class token, z_L^0 of equation 4."""

    def forward(self, z: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, D)."""
        return z[:, 0]


class _PrefixModule(nn.Module):
    """The first tokens, concatenated."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, z: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, ``count`` D)."""
        return z[:, : self.count].flatten(1)


class _MeanModule(nn.Module):
    """The mean of all tokens except the first ``skip``."""

    def __init__(self, skip: int) -> None:
        super().__init__()
        self.skip = skip

    def forward(self, z: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, D)."""
        return z[:, self.skip :].mean(1)


class _ClassTokenMeanModule(_MeanModule):
    """The class token, concatenated with the mean."""

    def forward(self, z: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, 2D)."""
        return torch.cat((z[:, 0], super().forward(z)), -1)


class AttentionPoolModule(nn.Module):
    """Attention pooling with one learned query. Parameters have the names of timm's AttentionPoolLatent."""

    def __init__(self, shape: Shape, mlp: MlpConfig, skip: int) -> None:
        super().__init__()
        D = shape.width
        self.heads, self.skip = shape.heads, skip
        self.latent = nn.Parameter(torch.zeros(1, 1, D))
        self.q = nn.Linear(D, D)
        self.kv = nn.Linear(D, 2 * D)
        self.proj = nn.Linear(D, D)
        self.norm = build_norm(shape)
        self.mlp = mlp.build(shape)

    def forward(self, z: Tensor, record: Record | None = None) -> Tensor:
        """Map tokens (B, T, D) to (B, D)."""
        z = z[:, self.skip :]
        q = self.q(self.latent.expand(z.shape[0], -1, -1)).unflatten(-1, (self.heads, -1))  # (B, 1, H, d)
        k, v = self.kv(z).unflatten(-1, (2, self.heads, -1)).unbind(2)  # (B, T, H, d) each
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, 1 or T, d)
        out = F.scaled_dot_product_attention(q, k, v)  # (B, H, 1, d)
        if record is not None:
            record.keep(q, k, v, None, out)
        y = self.proj(out.transpose(1, 2).flatten(2))  # (B, 1, D)
        return (y + self.mlp(self.norm(y)))[:, 0]  # (B, D)

    def initialise(self, scheme: Scheme) -> None:
        """Initialise the projections in place."""
        scheme.attention_pool(self.q, self.kv, self.proj)

    def initialise_tokens(self, scheme: Scheme) -> None:
        """Initialise the learned query in place."""
        scheme.latent(self.latent)


class _SequencePoolModule(nn.Module):
    """A weighted mean: each token gets a learned score, and a softmax over the tokens turns scores into weights."""

    def __init__(self, shape: Shape, skip: int) -> None:
        super().__init__()
        self.skip = skip
        self.score = nn.Linear(shape.width, 1)

    def forward(self, z: Tensor, record: Record | None = None) -> Tensor:
        """Map tokens (B, T, D) to (B, D)."""
        z = z[:, self.skip :]
        scores = self.score(z)  # (B, T, 1)
        mixed = (scores.softmax(1).to(z.dtype).transpose(1, 2) @ z)[:, None]  # (B, 1, 1, D)
        if record is not None:  # the same as attention with one head, a query of 1, and the scores as keys
            record.keep(scores.new_ones(z.shape[0], 1, 1, 1), scores[:, None], z[:, None], None, mixed)
        return mixed[:, 0, 0]  # (B, D)
