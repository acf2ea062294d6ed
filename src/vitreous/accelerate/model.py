"""Makes a plain model fast. Subclasses of its modules compute the same results with the same state dict.

- bfloat16 on a CPU uses the kernels of :mod:`vitreous.accelerate.kernels`.
- The last block computes only the class token if the head reads nothing else.
- Position tables are cached for image sizes that were seen before.
- Evaluation can merge similar tokens (:mod:`vitreous.accelerate.merging`).
- Training can recompute blocks in the backward pass to save memory.

Shapes: B batch, C channels, H x W pixels, (h, w) patches down and across, N = h w patches, n of them kept by patch
dropout, P prefix tokens ([CLS] and registers), T = P + N tokens, D width, d channels per head.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.accelerate.blocks import (
    FastAttention,
    FastAttentionPool,
    FastAxialAttention,
    FastBlock,
    FastLayerScale,
    FastNormAfterBlock,
    FastParallelBlock,
)
from vitreous.accelerate.kernels import LayerNorm, Linear, NoKeyBiasLinear, in_bfloat16_on_cpu
from vitreous.accelerate.stems import (
    FastConvPatchEmbed,
    FastLinearPatchEmbed,
    FastResNetPatchEmbed,
    FastStridedPatchEmbed,
)
from vitreous.errors import ConfigError
from vitreous.model.attention import Attention, AxialAttention, NoKeyBias
from vitreous.model.block import Block, LayerScale, NormAfterBlock, ParallelBlock
from vitreous.model.config import ViTConfig
from vitreous.model.output import Output, check_output
from vitreous.model.pools import AttentionPoolModule
from vitreous.model.record import Record
from vitreous.model.sizes import config_of
from vitreous.model.stems.conv import ConvPatchEmbed
from vitreous.model.stems.patch import LinearPatchEmbed, StridedPatchEmbed
from vitreous.model.stems.resnet import ResNetPatchEmbed
from vitreous.model.vit import VisionTransformer

__all__ = ["FastBlock", "FastVisionTransformer", "accelerate", "build", "create"]

_MAX_TABLES = 8  # per model, so that a server that sees many image sizes does not run out of memory

_Table = TypeVar("_Table")


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
    """Make a plain model fast in place. Its parameters and their names stay the same.

    A derived model, or one with a user's own block or attention, stays as it is: only the classes of this package take
    the arguments that the fast model passes. Other modules of a user's, such as a head, stay as they are.
    """
    own = type(model) is not VisionTransformer
    if own or any(type(block) not in _BLOCKS or type(block.attn) not in _FAST for block in model.blocks):
        return cast(FastVisionTransformer, model)
    for module in (*model.blocks.modules(), *model.pool.modules()):
        if type(module) is nn.Linear:
            module.__class__ = Linear
    for module in model.modules():
        module.__class__ = _FAST.get(type(module), type(module))
    fast = cast(FastVisionTransformer, model)
    fast.merging, fast._tables = None, {}
    c = model.config
    with torch.device("meta"):  # only the names are wanted, not the tables
        fast._sources = {
            "embedding": tuple(c.position.parameters(c)),
            "context": tuple(c.position.context_parameters(c)),
        }
    return fast


class FastVisionTransformer(VisionTransformer):
    """The fast model. Build it with :func:`build`, :func:`create` or :func:`accelerate`.

    Attributes:
        merging: Runs the blocks in evaluation and merges tokens between them. It is None unless
            :func:`vitreous.accelerate.merging.merge_tokens` has set it.
    """

    merging: Callable[[nn.ModuleList, Tensor, int | None], Tensor] | None
    _tables: dict[Hashable, tuple[Any, tuple[Tensor, ...]]]
    _sources: dict[str, tuple[str, ...]]  # names of the parameters that embedding and context are made of

    @property
    def draws_in_forward(self) -> bool:
        """Whether training draws random numbers for dropout, which threads would draw in another order."""
        dropout = any(module.p for module in self.modules() if isinstance(module, nn.Dropout))
        c = self.config
        return dropout or c.attention.dropout > 0 or self.patch_dropout > 0 or c.position.draws_in_training

    def forward(self, images: Tensor, output: Output = "logits", record: Mapping[int, Record] | None = None) -> Tensor:
        """Classify images, exactly as :meth:`VisionTransformer.forward` does."""
        check_output(output)
        x_p, grid = self.patch_embed(images)
        return self.from_patches(x_p, grid, output, record=record)

    def from_patches(
        self,
        x_p: Tensor,
        grid: tuple[int, int],
        output: Output = "logits",
        branch_factors: Sequence[Tensor | None] | None = None,
        record: Mapping[int, Record] | None = None,
    ) -> Tensor:
        """Run the rest of the forward pass on projected patches.

        Args:
            x_p: Projected patches from ``patch_embed``, (B, N, D).
            grid: The grid (h, w) from ``patch_embed``.
            output: As in :meth:`forward`.
            branch_factors: Factors of stochastic depth for each block, (2, B, 1, 1). None lets the block draw them.
            record: As in :meth:`forward`. All tokens of a recorded last block are computed.

        Raises:
            ConfigError: If values are to be recorded, but the model merges tokens.
        """
        # If the head reads only the class token, the last block need not compute the other tokens.
        queries = self.config.pool.tokens_read(self.config) if output != "tokens" and not record else None
        z = self._encode(x_p, grid, queries, branch_factors, record)
        if output == "tokens":
            return z
        features = self.read_out(z)
        return features if output == "features" else cast(Tensor, self.head(features))

    def read_out(self, z: Tensor) -> Tensor:
        """Return what the last layer reads, (B, ``config.features``), of tokens after the final norm, (B, P + N, D)."""
        return cast(Tensor, self.pre_logits(self.fc_norm(self.pool(z))))

    def encode_visible(
        self,
        x_p: Tensor,
        grid: tuple[int, int],
        kept: Tensor,
        branch_factors: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        """Return all tokens after the final norm, (B, P + n, D), computed from some of the patches alone.

        Args:
            x_p: Projected patches from ``patch_embed``, (B, N, D).
            grid: The grid (h, w) from ``patch_embed``.
            kept: Raster indices of the patches to keep, (B, n).
            branch_factors: As in :meth:`from_patches`.
        """
        return self._encode(x_p, grid, None, branch_factors, None, kept=kept)

    def _encode(
        self,
        x_p: Tensor,
        grid: tuple[int, int],
        queries: int | None,
        branch_factors: Sequence[Tensor | None] | None,
        record: Mapping[int, Record] | None,
        *,
        kept: Tensor | None = None,
    ) -> Tensor:
        """Return the tokens after the encoder, or only the first ``queries`` of them."""
        z, kept = self._embed(x_p, grid, kept)
        if self.merging and not self.training:
            if record is not None:  # also where no block is recorded: the tokens are merged
                raise ConfigError(
                    "a model that merges tokens has no intermediate values of single patches: "
                    "load it without merge_tokens, or call merge_tokens(model, 0)"
                )
            return cast(Tensor, self.norm(self.merging(self.blocks, z, queries)))
        context = self._context(grid)
        if kept is not None:
            context = self.config.position.select(context, kept)
        recompute = self.config.block.checkpoint and self.training and torch.is_grad_enabled()
        seen = self.config.attention.context(context, grid)
        all_factors = branch_factors or [None] * len(self.blocks)
        for index, (block, factors) in enumerate(zip(self.blocks, all_factors, strict=True)):
            first = queries if block is self.blocks[-1] else None
            z = self.config.position.before_block(z, index, context)
            if recompute:
                z = checkpoint(block, z, seen, None, first, factors, use_reentrant=False)
            else:
                z = block(z, seen, record.get(index) if record else None, first, factors)
        return cast(Tensor, self.norm(z))

    def _embed(self, x_p: Tensor, grid: tuple[int, int], kept: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the tokens of equation 1, (B, P + n, D), and the raster indices of the kept patches, (B, n).

        If they are not given, patch dropout draws them where it is active; otherwise they are None.
        """
        # The residual stream normally has the dtype of the weights. Under autocast on a CPU it has that of the matrix
        # products, because converting to float32 and back would take as long as a product itself.
        dtype = torch.bfloat16 if in_bfloat16_on_cpu(x_p) else self.patch_embed.proj.weight.dtype
        P, positions = self.config.prefix_tokens, self._embedding(grid)
        if positions is not None:
            x_p = x_p + positions[:, P:].to(dtype)
        if kept is None and self.training and self.patch_dropout > 0:
            kept = self.draw_kept_patches(x_p)
        if kept is not None:
            x_p = x_p.gather(1, kept[..., None].expand(-1, -1, x_p.shape[-1]))
        z = x_p.to(dtype)
        if P:
            prefix = torch.cat(self.prefix, 1)  # (1, P, D)
            if positions is not None:
                prefix = prefix + positions[:, :P]
            z = torch.cat((prefix.to(dtype).expand(z.shape[0], -1, -1), z), 1)
        return self.norm_pre(self.pos_drop(z)), kept

    def _embedding(self, grid: tuple[int, int]) -> Tensor | None:
        """Return E_pos for a grid, (1, P + N, D), or None if nothing is added to the tokens."""
        c, weight = self.config, self.patch_embed.proj.weight
        if not c.position.has_embedding:
            return None
        return self._for_grid("embedding", grid, lambda: c.position.embedding(self, c, grid).to(weight))

    def _context(self, grid: tuple[int, int]) -> Any:
        """Return what blocks need from the position embedding for a grid, or None if they need nothing."""
        c = self.config
        if not c.position.acts_in_blocks:
            return None
        if self.training and c.position.draws_in_training:
            return c.position.context(self, c, grid)
        return self._for_grid("context", grid, lambda: c.position.context(self, c, grid))

    def _for_grid(self, name: str, grid: tuple[int, int], make: Callable[[], _Table]) -> _Table:
        """Return a table of the position embedding, cached unless it is made of parameters at their own grid."""
        sources = [attrgetter(parameter)(self) for parameter in self._sources[name]]
        if sources and grid == self.config.grid:
            return make()
        return self._cached((name, *map(int, grid)), make, sources)  # a tracer's own integers have no hash

    def _cached(self, name: Hashable, make: Callable[[], _Table], sources: Sequence[Tensor]) -> _Table:
        """Return a cached table.

        The table is computed again only if the parameters it depends on, ``sources``, have changed or need a gradient.
        """
        if torch.is_grad_enabled() and any(source.requires_grad for source in sources):
            return make()
        if sources and torch.compiler.is_compiling():
            return make()
        weight = self.patch_embed.proj.weight
        key = (name, weight.device, weight.dtype)
        table, seen = self._tables.get(key, (None, ()))
        # Compare values: version counters miss writes through .data, and memory addresses are reused.
        if key not in self._tables or not all(map(torch.equal, seen, sources)):
            with torch.inference_mode(False), torch.no_grad():  # a later training step may use the table
                table = make()
                self._tables[key] = table, tuple(source.clone() for source in sources)
            for oldest in list(self._tables)[:-_MAX_TABLES]:
                self._tables.pop(oldest, None)
        return cast(_Table, table)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude cached tables from copies and pickles."""
        return cast("dict[str, Any]", super().__getstate__()) | {"_tables": {}}


_BLOCKS: dict[type[nn.Module], type[nn.Module]] = {
    Block: FastBlock,
    NormAfterBlock: FastNormAfterBlock,
    ParallelBlock: FastParallelBlock,
}
_FAST: dict[type[nn.Module], type[nn.Module]] = {
    VisionTransformer: FastVisionTransformer,
    **_BLOCKS,
    Attention: FastAttention,
    AxialAttention: FastAxialAttention,
    AttentionPoolModule: FastAttentionPool,
    LayerScale: FastLayerScale,
    NoKeyBias: NoKeyBiasLinear,
    nn.LayerNorm: LayerNorm,
    LinearPatchEmbed: FastLinearPatchEmbed,
    StridedPatchEmbed: FastStridedPatchEmbed,
    ConvPatchEmbed: FastConvPatchEmbed,
    ResNetPatchEmbed: FastResNetPatchEmbed,
}
