"""The encoder block: attention, then an MLP, each with a norm before it and a residual connection around it.

Shapes: B batch, T tokens (prefix and patches), D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.model.attention import Attention
from vitreous.model.mlp import Mlp
from vitreous.model.norm import build_norm
from vitreous.model.part import Part, Shape
from vitreous.model.record import Record

__all__ = [
    "BLOCKS",
    "Block",
    "BlockConfig",
    "LayerScale",
    "NormAfterBlock",
    "NormAfterConfig",
    "ParallelBlock",
    "ParallelConfig",
    "StochasticDepth",
]


@dataclass(frozen=True)
class BlockConfig(Part):
    """`pre-norm`: a norm before attention and before the MLP (section 3.1).

    Args:
        layer_scale: Initial value of LayerScale, a learned factor for each channel of a residual branch
            (arXiv 2103.17239). None disables it.
        drop_path: Stochastic depth: the probability of skipping a residual branch in training. It grows linearly from
            0 in the first block to this value in the last (arXiv 1603.09382). In [0, 1).
        zero_residual: Whether the last matrix of each residual branch starts at zero, so that every block starts as
            the identity.
        checkpoint: Whether to recompute activations in the backward pass instead of storing them. This saves memory
            and takes about a third more time.
    """

    kind = "pre-norm"
    layer_scale: float | None = None
    drop_path: float = 0.0
    zero_residual: bool = False
    checkpoint: bool = False

    def problems(self, shape: Shape) -> Iterator[str]:
        if not 0 <= self.drop_path < 1:
            yield f"block.drop_path is {self.drop_path}, it must be in [0, 1)"

    def build(self, shape: Shape, index: int, attn: Attention, mlp: Mlp) -> Block:
        """Return block number ``index``, counted from 0, made of the given attention and MLP."""
        return Block(self, shape, self.drop_path * index / max(1, shape.depth - 1), attn, mlp)

    def initialise(self, blocks: nn.Module) -> None:
        """Set the last matrix of each residual branch to zero if ``zero_residual`` is on."""
        for name, weight in blocks.named_parameters():
            if self.zero_residual and name.endswith(("attn.proj.weight", "mlp.fc2.weight")):
                nn.init.zeros_(weight)


@dataclass(frozen=True)
class NormAfterConfig(BlockConfig):
    """`norm-after`: a norm behind attention and behind the MLP, before each is added to the tokens (arXiv 2111.09883).

    Args:
        layer_scale: Value at which the gains of these norms start. None starts them at 1.
    """

    kind = "norm-after"

    def build(self, shape: Shape, index: int, attn: Attention, mlp: Mlp) -> Block:
        return NormAfterBlock(self, shape, self.drop_path * index / max(1, shape.depth - 1), attn, mlp)

    def initialise(self, blocks: nn.Module) -> None:
        super().initialise(blocks)
        for name, weight in blocks.named_parameters():
            if self.layer_scale is not None and name.endswith(("norm1.weight", "norm2.weight")):
                nn.init.constant_(weight, self.layer_scale)


@dataclass(frozen=True)
class ParallelConfig(BlockConfig):
    """`parallel`: attention and the MLP read the same tokens, behind one norm, and their sum is added (2302.05442)."""

    kind = "parallel"

    def build(self, shape: Shape, index: int, attn: Attention, mlp: Mlp) -> Block:
        return ParallelBlock(self, shape, self.drop_path * index / max(1, shape.depth - 1), attn, mlp)


BLOCKS = (BlockConfig, NormAfterConfig, ParallelConfig)
"""The kinds of block."""


class Block(nn.Module):
    """Equations 2 and 3: tokens exchange information in attention, then each passes through the MLP on its own."""

    def __init__(self, config: BlockConfig, shape: Shape, drop_path: float, attn: Attention, mlp: Mlp) -> None:
        super().__init__()
        D, scale = shape.width, config.layer_scale
        self.norm1 = build_norm(shape)
        self.attn = attn
        self.ls1 = nn.Identity() if scale is None else LayerScale(D, scale)
        self.norm2 = build_norm(shape)
        self.mlp = mlp
        self.ls2 = nn.Identity() if scale is None else LayerScale(D, scale)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, z: Tensor, context: Any = None, record: Record | None = None) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D).

        Attention receives ``context``, which its configuration made. ``record`` keeps what the block computes.
        """
        before = z
        attn_factors, mlp_factors = self.drop_path(z)
        z = z + attn_factors * self.mix(z, context, record)  # equation 2: z' = MSA(LN(z)) + z
        z = z + mlp_factors * self.transform(z)  # equation 3: z = MLP(LN(z')) + z'
        if record is not None:
            record.before, record.after = before, z
        return z

    def mix(self, z: Tensor, *arguments: Any) -> Tensor:
        """Return MSA(LN(z)) of tokens (B, T, D); the other arguments are those of attention."""
        return self.ls1(self.attn(self.norm1(z), *arguments))

    def transform(self, z: Tensor) -> Tensor:
        """Return MLP(LN(z)) of tokens (B, T, D)."""
        return self.ls2(self.mlp(self.norm2(z)))

    def mlp_input(self, z: Tensor, attended: Tensor) -> Tensor:
        """Return what the MLP reads, (B, T, D), given the tokens that the block reads and the output of attention."""
        return self.norm2(z + self.ls1(attended))


class NormAfterBlock(Block):
    """The norms stand behind the two branches: z' = LN(MSA(z)) + z, and z = LN(MLP(z')) + z'."""

    def __init__(self, config: BlockConfig, shape: Shape, drop_path: float, attn: Attention, mlp: Mlp) -> None:
        super().__init__(replace(config, layer_scale=None), shape, drop_path, attn, mlp)

    def mix(self, z: Tensor, *arguments: Any) -> Tensor:
        """Return LN(MSA(z)) of tokens (B, T, D); the other arguments are those of attention."""
        return self.norm1(self.attn(z, *arguments))

    def transform(self, z: Tensor) -> Tensor:
        """Return LN(MLP(z)) of tokens (B, T, D)."""
        return self.norm2(self.mlp(z))

    def mlp_input(self, z: Tensor, attended: Tensor) -> Tensor:
        """Return what the MLP reads, as :meth:`Block.mlp_input` does."""
        return z + self.norm1(attended)


class ParallelBlock(Block):
    """One branch: z + MSA(LN(z)) + MLP(LN(z))."""

    def __init__(self, config: BlockConfig, shape: Shape, drop_path: float, attn: Attention, mlp: Mlp) -> None:
        super().__init__(config, shape, drop_path, attn, mlp)
        self.norm2 = self.ls2 = nn.Identity()  # of a branch that does not exist

    def forward(self, z: Tensor, context: Any = None, record: Record | None = None) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D), as :meth:`Block.forward` does."""
        before = z
        factors, _ = self.drop_path(z)
        z = z + factors * self.branch(z, context, record)
        if record is not None:
            record.before, record.after = before, z
        return z

    def branch(self, z: Tensor, context: Any, record: Record | None, *queries: int | None) -> Tensor:
        """Return MSA(LN(z)) + MLP(LN(z)) of tokens (B, T, D), or of the first ``queries`` of them."""
        y = self.norm1(z)
        first = y[:, : queries[0]] if queries else y
        return self.ls1(self.attn(y, context, record, *queries) + self.mlp(first))

    def mlp_input(self, z: Tensor, attended: Tensor) -> Tensor:
        """Return what the MLP reads, as :meth:`Block.mlp_input` does."""
        return self.norm1(z)


class LayerScale(nn.Module):
    """Multiplies each channel by a learned factor. A small start keeps deep models close to the identity."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply tokens (B, T, D) by the factors (D,)."""
        return x * self.gamma


class StochasticDepth(nn.Module):
    """Draws which residual branches are skipped in training.

    Each image skips a branch with probability ``rate``. Branches that are kept are scaled up by 1 / (1 - rate), so that
    their expected value stays the same.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, z: Tensor) -> Tensor:
        """Return the factors of the two branches of a block for tokens z (B, T, D).

        The factors are (2, B, 1, 1), or (2, 1, 1, 1) if nothing can be dropped.
        """
        keep = 1 - self.rate if self.training else 1.0
        return z.new_empty(2, len(z), 1, 1).bernoulli_(keep).div_(keep) if keep < 1 else z.new_ones(2, 1, 1, 1)
