"""The encoder block: attention and MLP, each after a norm and with a residual connection.

Shapes: B batch, T tokens (prefix and patches), D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.model.attention import Attention
from vitreous.model.mlp import Mlp
from vitreous.model.part import Part, Shape
from vitreous.model.record import Record

__all__ = ["BLOCKS", "Block", "BlockConfig", "LayerScale", "StochasticDepth"]


@dataclass(frozen=True)
class BlockConfig(Part):
    """`pre-norm`: a norm before attention and before the MLP (section 3.1).

    Args:
        layer_scale: Initial value of a learned factor per channel on each residual branch (arXiv 2103.17239). None:
            no such factor.
        drop_path: Stochastic depth: probability of dropping a residual branch, growing linearly from 0 in the first
            block to this value in the last (arXiv 1603.09382). In [0, 1).
        zero_residual: Start the last matrix of each branch at zero, so that a block begins as the identity.
        checkpoint: Recompute the block's activations in the backward pass: less memory, about a third more time.
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
        """Return the block of an index, counted from 0, around its attention and its MLP."""
        return Block(self, shape, self.drop_path * index / max(1, shape.depth - 1), attn, mlp)

    def start(self, blocks: nn.Module) -> None:
        """Set the last matrix of each branch to zero, if `zero_residual` is set."""
        for name, weight in blocks.named_parameters():
            if self.zero_residual and name.endswith(("attn.proj.weight", "mlp.fc2.weight")):
                nn.init.zeros_(weight)


BLOCKS = (BlockConfig,)


class Block(nn.Module):
    """Equations 2 and 3."""

    def __init__(self, config: BlockConfig, shape: Shape, drop_path: float, attn: Attention, mlp: Mlp) -> None:
        super().__init__()
        D, eps, scale = shape.width, shape.norm_eps, config.layer_scale
        self.norm1 = nn.LayerNorm(D, eps=eps)
        self.attn = attn
        self.ls1 = nn.Identity() if scale is None else LayerScale(D, scale)
        self.norm2 = nn.LayerNorm(D, eps=eps)
        self.mlp = mlp
        self.ls2 = nn.Identity() if scale is None else LayerScale(D, scale)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, z: Tensor, context: Any = None, record: Record | None = None) -> Tensor:
        """Map tokens B x T x D to B x T x D; ``context`` is passed to attention, ``record`` keeps what is computed."""
        keep1, keep2 = self.drop_path(z)
        before = z
        z = z + keep1 * self.ls1(self.attn(self.norm1(z), context, record))  # equation 2: z' = MSA(LN(z)) + z
        z = z + keep2 * self.ls2(self.mlp(self.norm2(z)))  # equation 3: z = MLP(LN(z')) + z'
        if record is not None:
            record.before, record.after = before, z
        return z


class LayerScale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        """Scale B x T x D."""
        return x * self.gamma


class StochasticDepth(nn.Module):
    """In training, drops a branch of an image with probability ``rate``, and scales up the ones it keeps."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, z: Tensor) -> Tensor:
        """Return the factors of both branches for tokens z: 2 x B x 1 x 1, or 2 x 1 x 1 x 1 if none is dropped."""
        keep = 1 - self.rate if self.training else 1.0
        return z.new_empty(2, len(z), 1, 1).bernoulli_(keep).div_(keep) if keep < 1 else z.new_ones(2, 1, 1, 1)
