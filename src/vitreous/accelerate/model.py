"""A plain model made fast: the same state dict and the same answers, by subclasses of its modules.

What is faster: bfloat16 on a CPU by the kernels of :mod:`vitreous.accelerate.kernels`; a last block that computes no
more than the class token where nothing else is read; position tables kept for image sizes met before; tokens merged in
evaluation (:mod:`vitreous.accelerate.merging`); blocks recomputed in the backward pass to save memory.

Shapes: B batch, H heads, N patches, P prefix tokens ([CLS] and registers), T = P + N tokens, D width, d head channels.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.accelerate.kernels import LayerNorm, Linear, attend, in_bfloat16_on_cpu, linear, project_heads
from vitreous.errors import ConfigError
from vitreous.model.attention import Attention
from vitreous.model.block import Block, LayerScale
from vitreous.model.config import ViTConfig
from vitreous.model.pools import AttentionPoolModule
from vitreous.model.record import Record
from vitreous.model.sizes import config_of
from vitreous.model.stems.base import PatchEmbed
from vitreous.model.stems.conv import ConvPatchEmbed
from vitreous.model.stems.patch import LinearPatchEmbed, StridedPatchEmbed, flattened
from vitreous.model.stems.resnet import ResNetPatchEmbed
from vitreous.model.vit import Output, VisionTransformer

__all__ = ["FastBlock", "FastVisionTransformer", "accelerate", "build", "create"]

_KEPT_TABLES = 8  # per model: a server that meets every image size must not keep them all

_Made = TypeVar("_Made")


def create(name: str, **overrides: Any) -> FastVisionTransformer:
    """Build a fast model of a named size with fresh weights, for example ``create("B/16", num_classes=10)``.

    Args:
        name: A size such as ``"B/16"``, see :func:`vitreous.model.sizes.config_of`.
        **overrides: Any other field of :class:`~vitreous.model.config.ViTConfig`.

    Raises:
        UsageError: If there is no such size, or no such field.
        ConfigError: If the configuration contradicts itself.
    """
    return build(config_of(name, **overrides))


def build(config: ViTConfig) -> FastVisionTransformer:
    """Build a fast model with fresh weights."""
    return accelerate(VisionTransformer(config))


def accelerate(model: VisionTransformer) -> FastVisionTransformer:
    """Make a plain model fast, in place; its parameters and their names stay.

    Modules of other classes, such as a user's own block, stay as they are.
    """
    if type(model) is not VisionTransformer:
        return cast(FastVisionTransformer, model)
    for module in (*model.blocks.modules(), *model.pool.modules()):
        if type(module) is nn.Linear:
            module.__class__ = Linear
    for module in model.modules():
        module.__class__ = _FAST.get(type(module), type(module))
    fast = cast(FastVisionTransformer, model)
    fast.merging, fast._tables = None, {}
    return fast


class FastVisionTransformer(VisionTransformer):
    """The fast model. Build it by :func:`build`, :func:`create` or :func:`accelerate`.

    Attributes:
        merging: Runs the blocks on merged tokens in evaluation, as :func:`vitreous.accelerate.merging.merge_tokens`
            sets it; else None.
    """

    merging: Callable[[nn.ModuleList, Tensor, int | None], Tensor] | None
    _tables: dict[Hashable, tuple[Any, tuple[Tensor, ...]]]

    @property
    def draws_in_forward(self) -> bool:
        """Whether training draws dropout or patch dropout, whose order threads would change."""
        dropout = any(module.p for module in self.modules() if isinstance(module, nn.Dropout))
        return dropout or self.config.attention.dropout > 0 or self.patch_dropout > 0

    def forward(self, images: Tensor, output: Output = "logits", record: Mapping[int, Record] | None = None) -> Tensor:
        """As :meth:`VisionTransformer.forward`."""
        x_p, grid = self.patch_embed(images)
        return self.from_patches(x_p, grid, output, record=record)

    def from_patches(
        self,
        x_p: Tensor,
        grid: tuple[int, int],
        output: Output = "logits",
        keep: Sequence[Tensor | None] | None = None,
        record: Mapping[int, Record] | None = None,
    ) -> Tensor:
        """Continue from projected patches.

        Args:
            x_p: B x N x D, as ``patch_embed`` returns them.
            grid: Patches down and across, (h, w), as it returns them too.
            output: As in :meth:`forward`.
            keep: For each block the factors of stochastic depth, 2 x B x 1 x 1, or None; drawn where not given.
            record: As in :meth:`forward`; all tokens of a recorded last block are computed.

        Raises:
            ConfigError: If values are recorded of a model that merges tokens.
        """
        # A head that reads the class token alone needs nothing else of the last block.
        queries = 1 if self.config.pool.kind == "cls" and output != "tokens" and not record else None
        z = self._encode(x_p, grid, queries, keep, record or {})
        if output == "tokens":
            return z
        features = cast(Tensor, self.pre_logits(self.fc_norm(self.pool(z))))
        return features if output == "features" else cast(Tensor, self.head(features))

    def _encode(
        self,
        x_p: Tensor,
        grid: tuple[int, int],
        queries: int | None,
        keep: Sequence[Tensor | None] | None,
        record: Mapping[int, Record],
    ) -> Tensor:
        """Return the tokens after the encoder: all of them, or the first ``queries``."""
        z, kept = self._embed(x_p, grid)
        if self.merging and not self.training:
            if record:
                raise ConfigError(
                    "a model that merges tokens has no intermediate values of single patches: "
                    "load it without merge_tokens, or call merge_tokens(model, 0)"
                )
            return cast(Tensor, self.norm(self.merging(self.blocks, z, queries)))
        context = self._context(grid)
        if kept is not None:
            context = self.config.position.select(context, kept)
        recompute = self.config.block.checkpoint and self.training and torch.is_grad_enabled()
        for number, (block, factors) in enumerate(zip(self.blocks, keep or [None] * len(self.blocks), strict=True)):
            first = queries if block is self.blocks[-1] else None
            if recompute:
                z = checkpoint(block, z, context, None, first, factors, use_reentrant=False)
            else:
                z = block(z, context, record.get(number), first, factors)
        return cast(Tensor, self.norm(z))

    def _embed(self, x_p: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """Return the tokens of equation 1, B x (P + n) x D, and which patches stay under patch dropout, B x n."""
        # The residual stream has the precision of the weights; but under autocast on a CPU, where converting to
        # float32 and back costs as much time as a matrix product, that of the products.
        dtype = torch.bfloat16 if in_bfloat16_on_cpu(x_p) else self.patch_embed.proj.weight.dtype
        P, positions = self.config.prefix_tokens, self._embedding(grid)
        prefix = self.prefix(1)
        if positions is not None:
            prefix = prefix + positions[:, :P]
            x_p = x_p + positions[:, P:].to(dtype)
        kept = None
        if self.training and self.patch_dropout > 0:
            kept = self.draw_kept_patches(x_p)
            x_p = x_p.gather(1, kept[..., None].expand(-1, -1, x_p.shape[-1]))
        z = x_p.to(dtype)
        if P:
            z = torch.cat((prefix.to(dtype).expand(z.shape[0], -1, -1), z), 1)
        return self.pos_drop(z), kept

    def _embedding(self, grid: tuple[int, int]) -> Tensor | None:
        """Return E_pos for a grid, 1 x (P + N) x D, or None where the position embedding adds nothing."""
        c = self.config
        if not c.position.adds:
            return None
        sources = [getattr(self, name) for name in c.position.parameters(c)]
        if sources and grid == c.grid:
            return c.position.embedding(self, c, grid)
        weight = self.patch_embed.proj.weight
        return self._cached(("embedding", grid), lambda: c.position.embedding(self, c, grid).to(weight), sources)

    def _context(self, grid: tuple[int, int]) -> Any:
        """Return what attention needs of the position embedding for a grid."""
        position, weight = self.config.position, self.patch_embed.proj.weight
        if not position.acts_in_attention:
            return None
        return self._cached(("context", grid), lambda: position.context(self.config, grid, like=weight), [])

    def _cached(self, name: Hashable, make: Callable[[], _Made], sources: Sequence[Tensor]) -> _Made:
        """Return a table, made again only when the parameters it comes from have changed or need a gradient."""
        if torch.is_grad_enabled() and any(source.requires_grad for source in sources):
            return make()
        if sources and torch.compiler.is_compiling():
            return make()
        weight = self.patch_embed.proj.weight
        key = (name, weight.device, weight.dtype)
        table, seen = self._tables.get(key, (None, ()))
        # Compared by value: version counters miss writes through .data, and a freed address is soon used again.
        if key not in self._tables or not all(map(torch.equal, seen, sources)):
            with torch.inference_mode(False), torch.no_grad():  # a later training step may use it
                table = make()
                self._tables[key] = table, tuple(source.clone() for source in sources)
            for oldest in list(self._tables)[:-_KEPT_TABLES]:
                self._tables.pop(oldest, None)
        return cast(_Made, table)

    def __getstate__(self) -> dict[str, Any]:
        """Leave cached tables out of copies and pickles."""
        return cast("dict[str, Any]", super().__getstate__()) | {"_tables": {}}


class FastBlock(Block):
    """A block that can compute the first tokens alone, and be given its draws of stochastic depth."""

    def forward(
        self,
        z: Tensor,
        context: Any = None,
        record: Record | None = None,
        queries: int | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        """Map tokens B x T x D to B x T x D, or to the first ``queries`` tokens.

        Args:
            z: Tokens.
            context: Of the position embedding.
            record: Keeps what the block computes.
            queries: How many tokens of the result are needed, from the first; None is all.
            keep: Factors of both branches, 2 x B x 1 x 1; drawn where not given.
        """
        keep = self.draw(z) if keep is None else keep
        keep1, keep2 = (None, None) if keep is None else keep.unbind()
        before = z
        z = z[:, :queries] + _scaled(self.ls1(self.attn(self.norm1(z), context, record, queries)), keep1)  # equation 2
        z = z + _scaled(self.ls2(self.mlp(self.norm2(z))), keep2)  # equation 3
        if record is not None:
            record.before, record.after = before, z
        return z

    def draw(self, z: Tensor) -> Tensor | None:
        """Draw the factors of stochastic depth for tokens z, 2 x B x 1 x 1; None where nothing is dropped."""
        return self.drop_path(z) if self.training and self.drop_path.rate > 0 else None


def _scaled(branch: Tensor, factors: Tensor | None) -> Tensor:
    return branch if factors is None else branch * factors.to(branch.dtype)


class _FastAttention(Attention):
    """Attention by the fastest kernel of the device, for all queries or the first ones."""

    def forward(
        self, x: Tensor, context: Any = None, record: Record | None = None, queries: int | None = None
    ) -> Tensor:
        """Mix tokens B x T x D; return all of them, or the first ``queries``."""
        q, k, v = project_heads(x, self.qkv, 3, self.heads)  # B H T d
        q, k = self.position.rotate(self.q_norm(q), context), self.position.rotate(self.k_norm(k), context)
        bias = self.position.bias(self, q, context)
        if bias is not None:
            bias = bias[:, :, :queries]
        out = attend(q[:, :, :queries], k, v, bias, self.dropout if self.training else 0.0)  # B H T d
        if record is not None:
            record.keep(q, k, v, bias, out)
        return cast(Tensor, self.proj_drop(self.proj(out.transpose(1, 2).flatten(2))))  # B T D


class _FastLayerScale(LayerScale):
    """In bfloat16 on a CPU, a float32 factor would turn the residual stream to float32 from here on."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale B x T x D."""
        return x * (self.gamma.to(x.dtype) if in_bfloat16_on_cpu(x) else self.gamma)


class _FastAttentionPool(AttentionPoolModule):
    """Attention pooling by the fastest kernel of the device."""

    def forward(self, z: Tensor, record: Record | None = None) -> Tensor:
        """Return B x D for tokens B x T x D."""
        z = z[:, self.skip :]
        (q,) = project_heads(self.latent.expand(z.shape[0], -1, -1), self.q, 1, self.heads)  # B H 1 d
        k, v = project_heads(z, self.kv, 2, self.heads)  # B H T d
        out = attend(q, k, v)  # B H 1 d
        if record is not None:
            record.keep(q, k, v, None, out)
        y = self.proj(out.transpose(1, 2).flatten(2))  # B 1 D
        return cast(Tensor, (y + self.mlp(self.norm(y)))[:, 0])  # B D


class _FastLinearPatchEmbed(LinearPatchEmbed):
    """The patch projection as one matrix product."""

    def project(self, images: Tensor) -> Tensor:
        """Return tokens B x T x D."""
        images = images.to(torch.bfloat16) if in_bfloat16_on_cpu(images) else images
        return linear(flattened(images, self.patch), self.proj.weight.flatten(1), self.proj.bias)


class _FastStridedPatchEmbed(StridedPatchEmbed):
    """The strided convolution, or in bfloat16 on a CPU the same as one matrix product."""

    def project(self, images: Tensor) -> Tensor:
        """Return tokens B x T x D."""
        if in_bfloat16_on_cpu(images):
            return _FastLinearPatchEmbed.project(cast(_FastLinearPatchEmbed, self), images)
        return super().project(images)


class _ChannelsLast(PatchEmbed):
    """In bfloat16 on a CPU, faster convolutions, and tokens that are contiguous."""

    def project(self, images: Tensor) -> Tensor:
        """Return tokens B x T x D."""
        if in_bfloat16_on_cpu(images):
            images = images.contiguous(memory_format=torch.channels_last)
        return super().project(images)


class _FastConvPatchEmbed(_ChannelsLast, ConvPatchEmbed):
    """The convolutional stem."""


class _FastResNetPatchEmbed(_ChannelsLast, ResNetPatchEmbed):
    """The hybrid's stem."""


_FAST: dict[type[nn.Module], type[nn.Module]] = {
    VisionTransformer: FastVisionTransformer,
    Block: FastBlock,
    Attention: _FastAttention,
    AttentionPoolModule: _FastAttentionPool,
    LayerScale: _FastLayerScale,
    nn.LayerNorm: LayerNorm,
    LinearPatchEmbed: _FastLinearPatchEmbed,
    StridedPatchEmbed: _FastStridedPatchEmbed,
    ConvPatchEmbed: _FastConvPatchEmbed,
    ResNetPatchEmbed: _FastResNetPatchEmbed,
}
