"""The Vision Transformer of arXiv 2010.11929, in the paper's order: equations 1 to 4.

Shapes: B batch, C channels, H x W pixels, (h, w) patches down and across, N tokens, D width, K classes.
Parameter names are timm's, so that the largest family of published weights fits unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.model.attention import Attention, Raster
from vitreous.model.config import ViTConfig
from vitreous.model.embeddings import PatchEmbed, resample, rotary_table, sincos_table
from vitreous.model.init import initialise
from vitreous.model.kernels import LayerNorm, in_bfloat16_on_cpu
from vitreous.model.mlp import ACTIVATIONS, Mlp
from vitreous.model.pooling import AttentionPool, SequencePool

__all__ = ["Block", "LayerScale", "PreLogits", "ViTConfig", "VisionTransformer"]


class LayerScale(nn.Module):
    """A learned factor per channel (arXiv 2103.17239)."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        """Scale B x N x D."""
        # A float32 factor would turn the residual stream from bfloat16 to float32 from here on.
        return x * (self.gamma.to(x.dtype) if in_bfloat16_on_cpu(x) else self.gamma)


class Block(nn.Module):
    """A pre-norm encoder block: z' = MSA(LN(z)) + z (equation 2), z = MLP(LN(z')) + z' (equation 3)."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        width, scale = config.width, config.layer_scale
        self.norm1 = LayerNorm(width, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.norm2 = LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.ls2 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.drop_path = drop_path

    def forward(
        self,
        z: Tensor,
        rotary: Tensor | None = None,
        raster: Raster | None = None,
        wanted: int | None = None,
        factors: Tensor | None = None,
    ) -> Tensor:
        """Map tokens B x N x D to B x N x D; see :class:`~vitreous.model.attention.Attention` for the rest.

        With ``wanted``, compute no more than the first so many tokens of the result. ``factors`` of the two branches,
        2 x B x 1 x 1, are drawn unless they are given.
        """
        factors = self.draw(z) if factors is None else factors
        attention, mlp = (None, None) if factors is None else factors.unbind()
        z = z[:, :wanted] + _scaled(self.ls1(self.attn(self.norm1(z), rotary, raster, wanted)), attention)  # equation 2
        return z + _scaled(self.ls2(self.mlp(self.norm2(z))), mlp)  # equation 3

    def draw(self, z: Tensor) -> Tensor | None:
        """Stochastic depth: drop a branch of a whole image with chance ``drop_path``, scale up what stays.

        Returns:
            Factors for tokens z, 2 x B x 1 x 1, in their dtype; None where nothing is dropped.
        """
        if not self.training or self.drop_path == 0:
            return None
        keep = 1 - self.drop_path
        return z.new_empty(2, len(z), 1, 1).bernoulli_(keep).div_(keep)


def _scaled(branch: Tensor, factors: Tensor | None) -> Tensor:
    return branch if factors is None else branch * factors.to(branch.dtype)


class PreLogits(nn.Module):
    """The hidden layer of the paper's MLP head (section 3.1); its output is the paper's "pre_logits"."""

    def __init__(self, width: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.fc = nn.Linear(width, hidden)
        self.act = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """Map B x D to B x hidden."""
        return self.act(self.fc(x))


class VisionTransformer(nn.Module):
    """Images in, logits out.

    Args:
        config: Everything that shapes the model.

    Raises:
        ConfigError: From ``forward``, if the images' channels or size do not fit; any size that patches tile does.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        c, width = config, config.width
        self.patch_embed = PatchEmbed(c)
        if c.has_class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        if c.registers:
            self.reg_token = nn.Parameter(torch.zeros(1, c.registers, width))
        self.positioned_prefix = {"none": 0, "cls": int(c.has_class_token), "all": c.prefix_tokens}[c.position_prefix]
        rows, columns = c.grid
        if c.position == "learned":
            self.pos_embed = nn.Parameter(torch.zeros(1, self.positioned_prefix + rows * columns, width))
        elif c.position == "learned-2d":
            self.pos_embed_row = nn.Parameter(torch.zeros(1, rows, width // 2))
            self.pos_embed_column = nn.Parameter(torch.zeros(1, columns, width // 2))
        self.pos_drop = nn.Dropout(c.dropout)
        self.patch_dropout = c.patch_dropout  # an attribute of its own, so that a schedule can change it
        self.blocks = nn.ModuleList(Block(c, c.drop_path * i / max(1, c.depth - 1)) for i in range(c.depth))
        self.norm = LayerNorm(width, eps=c.norm_eps) if c.final_norm == "tokens" else nn.Identity()
        if c.pool == "map":
            self.attn_pool = AttentionPool(c)
        elif c.pool == "seq":
            self.seq_pool = SequencePool(c)
        self.fc_norm = LayerNorm(width, eps=c.norm_eps) if c.final_norm == "pooled" else nn.Identity()
        self.pre_logits = PreLogits(c.pooled_width, c.features, c.head_activation) if c.head == "mlp" else nn.Identity()
        self.head = nn.Linear(c.features, c.num_classes) if c.num_classes else nn.Identity()
        # Set by vitreous.model.merging: runs the blocks on tokens, as _encode does.
        self.merging: Callable[[nn.ModuleList, Tensor, int | None], Tensor] | None = None
        # Position tables of resolutions met before, each with the parameters' values that it was made from.
        self._tables: dict[Any, tuple[Tensor, tuple[Tensor, ...]]] = {}
        initialise(self, c)

    @property
    def drops_within(self) -> bool:
        """Whether training draws what is dropped within a picture's tokens: dropout, and patches left out."""
        dropout = any(module.p for module in self.modules() if isinstance(module, nn.Dropout))
        return dropout or self.config.attention_dropout > 0 or self.patch_dropout > 0

    def forward(self, images: Tensor) -> Tensor:
        """Return logits B x K for images B x C x H x W, normalised as the evaluation pipeline does."""
        return self.head(self.pooled(images))

    def pooled(self, images: Tensor) -> Tensor:
        """Return the features that the last linear layer reads, B x ``config.features``, for images B x C x H x W."""
        return self.pooled_patches(*self.patch_embed(images))

    def pooled_patches(
        self, x: Tensor, grid: tuple[int, int], factors: Sequence[Tensor | None] | None = None
    ) -> Tensor:
        """Return what :meth:`pooled` does, B x ``config.features``, for patches that are projected already.

        Args:
            x: As ``patch_embed`` returns them, B x hw x D.
            grid: How they lie, (h, w), as it returns that too.
            factors: For each block what its :meth:`Block.draw` gave for these pictures, instead of a draw of its own.
        """
        # A head that reads the class token alone needs nothing else of the last block.
        wanted = 1 if self.config.pool == "cls" else None
        return self.forward_head(self._encode(x, grid, wanted, factors), pre_logits=True)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return all tokens after the encoder, B x N x D, [CLS] first, then registers, then patches in raster order."""
        return self._encode(*self.patch_embed(images))

    def _encode(
        self,
        x: Tensor,
        grid: tuple[int, int],
        wanted: int | None = None,
        factors: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        """Return the tokens after the encoder: all of them, or the first so many that are wanted."""
        z, kept = self._embed(x, grid)  # B N D
        if self.merging and not self.training:
            return self.norm(self.merging(self.blocks, z, wanted))
        rotary, raster = self._relations(grid, kept, z)
        for block, drawn in zip(self.blocks, factors or [None] * len(self.blocks), strict=True):
            read = wanted if block is self.blocks[-1] else None
            if self.config.checkpoint_blocks and self.training and torch.is_grad_enabled():
                z = checkpoint(block, z, rotary, raster, read, drawn, use_reentrant=False)
            else:
                z = block(z, rotary, raster, read, drawn)
        return self.norm(z)

    def forward_head(self, z: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool tokens B x N x D and classify (equation 4).

        With ``pre_logits`` return the features that the last linear layer reads, B x ``config.features``.
        """
        c = self.config
        read = z if c.pools_prefix else z[:, c.prefix_tokens :]
        if c.pool == "cls":
            y = z[:, 0]
        elif c.pool == "mean":
            y = read.mean(1)
        elif c.pool == "cls-mean":
            y = torch.cat((z[:, 0], read.mean(1)), -1)  # B 2D
        else:
            y = self.attn_pool(read) if c.pool == "map" else self.seq_pool(read)
        y = self.pre_logits(self.fc_norm(y))
        return y if pre_logits else self.head(y)

    def _embed(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """Equation 1: add positions, drop patches in training, put the prefix in front; also return what was kept."""
        # The residual stream has the precision of the weights; but under autocast on a CPU, where converting to
        # float32 and back costs as much time as a matrix product, that of the products.
        dtype = torch.bfloat16 if in_bfloat16_on_cpu(x) else self.patch_embed.proj.weight.dtype
        positions = self._positions(grid)
        prefix = [getattr(self, name) for name in ("cls_token", "reg_token") if hasattr(self, name)]
        front = torch.cat(prefix, 1) if prefix else x.new_zeros(1, 0, x.shape[-1])  # 1 P D
        if positions is not None:
            own = positions.shape[1] - x.shape[1]  # prefix tokens that have a position
            front = torch.cat((front[:, :own] + positions[:, :own], front[:, own:]), 1)
            x = x + positions[:, own:].to(dtype)
        kept = self._kept_patches(x)
        if kept is not None:
            x = x.gather(1, kept[..., None].expand(-1, -1, x.shape[-1]))
        front = front.to(dtype).expand(x.shape[0], -1, -1)
        return self.pos_drop(torch.cat((front, x.to(dtype)), 1) if prefix else x.to(dtype)), kept  # B N D

    def _kept_patches(self, x: Tensor) -> Tensor | None:
        """Draw which patches stay under patch dropout, B x n in raster order, or None for all."""
        if not self.training or self.patch_dropout == 0:
            return None
        count = max(1, round(x.shape[1] * (1 - self.patch_dropout)))
        return torch.rand(x.shape[:2], device=x.device).argsort(1)[:, :count].sort(1).values

    def _positions(self, grid: tuple[int, int]) -> Tensor | None:
        """Return what is added to the tokens for a grid: 1 x (own prefix + hw) x D, or None where nothing is."""
        c = self.config
        if c.position == "learned":
            if grid == c.grid:
                return self.pos_embed
            return self._cached(grid, self._resampled, self.pos_embed)
        if c.position == "learned-2d":
            if grid == c.grid:
                return self._rows_and_columns(grid)
            return self._cached(grid, self._rows_and_columns, self.pos_embed_row, self.pos_embed_column)
        if c.position == "sincos-2d":
            return self._cached(grid, lambda g: sincos_table(g, c.width))
        return None

    def _resampled(self, grid: tuple[int, int]) -> Tensor:
        """Learned 1-D positions for another grid (section 3.2); those of prefix tokens stay as they are."""
        own = self.positioned_prefix
        patches = resample(self.pos_embed[:, own:], self.config.grid, grid, self.config.resample)
        return torch.cat((self.pos_embed[:, :own], patches), 1)

    def _rows_and_columns(self, grid: tuple[int, int]) -> Tensor:
        """Appendix D.4's 2-D positions: a row half and a column half, side by side, 1 x hw x D."""
        (rows, columns), (h, w) = self.config.grid, grid
        row = resample(self.pos_embed_row, (rows, 1), (h, 1), self.config.resample)  # 1 h D/2
        column = resample(self.pos_embed_column, (1, columns), (1, w), self.config.resample)  # 1 w D/2
        halves = row[:, :, None].expand(-1, -1, w, -1), column[:, None].expand(-1, h, -1, -1)
        return torch.cat(halves, -1).flatten(1, 2)

    def _relations(self, grid: tuple[int, int], kept: Tensor | None, z: Tensor) -> tuple[Tensor | None, Raster | None]:
        """Return what attention itself needs to know of places: rotary tables, or raster indices."""
        patches = grid[0] * grid[1]
        if self.config.position == "rope-2d":
            table = self._cached(grid, lambda g: rotary_table(g, self.config.head_dim))
            return table if kept is None else table[:, 0, 0][:, kept][:, :, None], None
        if self.config.position == "relative":
            place = torch.arange(patches, device=z.device)[None] if kept is None else kept
            return None, (place, patches)
        return None, None

    def _cached(self, grid: tuple[int, int], make: Callable[[tuple[int, int]], Tensor], *sources: Tensor) -> Tensor:
        """Return the table of a grid; made again only when the parameters it comes from change or need a gradient."""
        wanted = torch.is_grad_enabled() and any(s.requires_grad for s in sources)
        if wanted or (sources and torch.compiler.is_compiling()):
            return make(grid)
        weight = self.patch_embed.proj.weight
        key = (grid, weight.device, weight.dtype)
        table, seen = self._tables.get(key, (None, ()))
        # Compared by value: version counters miss writes through .data, and a freed address is soon used again.
        if table is None or not all(map(torch.equal, seen, sources)):
            with torch.inference_mode(False), torch.no_grad():  # a later training step may use it
                table = make(grid).to(weight.dtype).to(weight.device)
                self._tables[key] = table, tuple(s.clone() for s in sources)
            for oldest in list(self._tables)[:-8]:  # a server that meets every resolution must not keep them all
                self._tables.pop(oldest, None)
        return table

    def __getstate__(self) -> dict[str, Any]:
        """Leave cached tables out of copies and pickles."""
        return super().__getstate__() | {"_tables": {}}
