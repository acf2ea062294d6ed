"""Blocks, attention and their parts made fast: only the queries that are needed, and the fastest kernel for the device.

Shapes: B batch, N patches, P prefix tokens, T = P + N tokens, D width, d channels per head.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from vitreous.accelerate.kernels import attend, in_bfloat16_on_cpu, project_heads
from vitreous.model.attention import Attention, AxialAttention
from vitreous.model.block import Block, LayerScale, NormAfterBlock, ParallelBlock
from vitreous.model.pools import AttentionPoolModule
from vitreous.model.record import Record

__all__ = [
    "FastAttention",
    "FastAttentionPool",
    "FastAxialAttention",
    "FastBlock",
    "FastLayerScale",
    "FastNormAfterBlock",
    "FastParallelBlock",
]


class FastBlock(Block):
    """A block that can compute only the first tokens, and that accepts factors of stochastic depth."""

    def forward(
        self,
        z: Tensor,
        context: Any = None,
        record: Record | None = None,
        queries: int | None = None,
        branch_factors: Tensor | None = None,
    ) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D), or only to the first ``queries`` tokens.

        Args:
            z: Tokens, (B, T, D).
            context: What attention needs from the position embedding.
            record: Keeps what the block computes.
            queries: Number of leading tokens to compute; None computes all.
            branch_factors: Factors of stochastic depth for the two branches, (2, B, 1, 1). None draws them.
        """
        before = z
        branch_factors = self.draw(z) if branch_factors is None else branch_factors
        attn_factors, mlp_factors = (None, None) if branch_factors is None else branch_factors.unbind()
        z = z[:, :queries] + _scaled(self.mix(z, context, record, queries), attn_factors)  # equation 2
        z = z + _scaled(self.transform(z), mlp_factors)  # equation 3
        if record is not None:
            record.before, record.after = before, z
        return z

    def draw(self, z: Tensor) -> Tensor | None:
        """Draw the factors of stochastic depth for tokens z, (2, B, 1, 1), or return None if nothing is dropped."""
        return self.drop_path(z) if self.training and self.drop_path.rate > 0 else None


class FastNormAfterBlock(FastBlock, NormAfterBlock):
    """The same with norms behind the branches."""


class FastParallelBlock(FastBlock, ParallelBlock):
    """The same with one branch, the sum of attention and MLP."""

    def forward(
        self,
        z: Tensor,
        context: Any = None,
        record: Record | None = None,
        queries: int | None = None,
        branch_factors: Tensor | None = None,
    ) -> Tensor:
        """Map tokens (B, T, D) as :meth:`FastBlock.forward` does. The first of both factors is that of the branch."""
        before = z
        branch_factors = self.draw(z) if branch_factors is None else branch_factors
        branch = self.branch(z, context, record, queries)
        z = z[:, :queries] + _scaled(branch, None if branch_factors is None else branch_factors[0])
        if record is not None:
            record.before, record.after = before, z
        return z


def _scaled(branch: Tensor, factors: Tensor | None) -> Tensor:
    return branch if factors is None else branch * factors.to(branch.dtype)


class FastAttention(Attention):
    """Attention with the fastest kernel for the device, for all queries or only the first."""

    def forward(
        self, x: Tensor, context: Any = None, record: Record | None = None, queries: int | None = None
    ) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D), or only to the first ``queries`` tokens."""
        q, k, v = project_heads(x, self.qkv, 3, self.heads)  # (B, heads, T, d)
        rotate = self.position.rotate
        q, k = rotate(self, self.q_norm(q), context), rotate(self, self.k_norm(k), context)
        bias = self.position.bias(self, q, context)
        if bias is not None:
            bias = bias[:, :, :queries]
        if record is not None and record.explicit:
            out = record.attend(q, k, v, bias)  # (B, heads, T, d)
        else:
            out = attend(q[:, :, :queries], k, v, bias, self.dropout if self.training else 0.0)  # (B, heads, T, d)
        if record is not None:
            record.keep(q, k, v, bias, out)
        return cast(Tensor, self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2)))))  # (B, T, D)


class FastAxialAttention(AxialAttention):
    """Axial attention with the fastest kernel for the device."""

    def forward(
        self, x: Tensor, context: Any = None, record: Record | None = None, queries: int | None = None
    ) -> Tensor:
        """Map tokens (B, N, D) to (B, N, D). All are computed: no pooling reads the first alone without [CLS]."""
        q, k, v = project_heads(x, self.qkv, 3, self.heads)  # (B, heads, N, d)
        q, k = self.q_norm(q), self.k_norm(k)
        q_lines, k_lines, v_lines = (self.lines(each, context) for each in (q, k, v))
        out = attend(q_lines, k_lines, v_lines, None, self.dropout if self.training else 0.0)
        out = self.raster(out, context)  # (B, heads, N, d)
        if record is not None:
            record.keep(q, k, v, self.outside(context, q), out)
        return cast(Tensor, self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2)))))  # (B, N, D)


class FastLayerScale(LayerScale):
    """LayerScale that keeps bfloat16 on a CPU, where a float32 factor would promote the residual stream."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply tokens (B, T, D) by the factors (D,)."""
        return x * (self.gamma.to(x.dtype) if in_bfloat16_on_cpu(x) else self.gamma)


class FastAttentionPool(AttentionPoolModule):
    """Attention pooling with the fastest kernel for the device."""

    def forward(self, z: Tensor, record: Record | None = None) -> Tensor:
        """Map tokens (B, T, D) to (B, D)."""
        z = z[:, self.skip :]
        (q,) = project_heads(self.latent.expand(z.shape[0], -1, -1), self.q, 1, self.heads)  # (B, heads, 1, d)
        k, v = project_heads(z, self.kv, 2, self.heads)  # (B, heads, T, d)
        out = attend(q, k, v)  # (B, heads, 1, d)
        if record is not None:
            record.keep(q, k, v, None, out)
        y = self.proj(out.transpose(1, 2).flatten(2))  # (B, 1, D)
        return cast(Tensor, (y + self.mlp(self.norm(y)))[:, 0])  # (B, D)
