"""The Vision Transformer of arXiv 2010.11929, equations 1 to 4.

Shapes: B images, C channels, H x W pixels, N patches, P prefix tokens ([CLS] and registers), D width, K classes.
Parameters have the names of timm, which has the largest collection of published weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.model.config import ViTConfig
from vitreous.model.init import SCHEMES, Scheme
from vitreous.model.intermediates import Intermediates, intermediates
from vitreous.model.norm import build_norm
from vitreous.model.output import Output, check_output
from vitreous.model.record import Record

__all__ = ["ViTConfig", "VisionTransformer"]


class VisionTransformer(nn.Module):
    """Images in, logits out.

    Equation 1: z_0 = [x_class; x_p E] + E_pos. Equations 2 and 3: z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z', L times
    (:mod:`vitreous.model.block`). Equation 4: y = LN(z_L^0).

    Args:
        config: The dimensions of the model and its parts.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.cls_token = nn.Parameter(torch.zeros(1, 1, c.width)) if c.has_class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, c.registers, c.width)) if c.registers else None
        self.patch_embed = c.stem.build(c)
        self.patch_dropout = c.patch_dropout  # a training schedule can change it
        self.pos_drop = nn.Dropout(c.dropout)
        self.norm_pre = build_norm(c, used=c.input_norm)
        self.blocks = nn.ModuleList(c.build_block(index) for index in range(c.depth))
        for name, tensor in c.position.parameters(c).items():  # by default pos_embed: positions/learned.py
            owner, _, last = name.rpartition(".")
            self.get_submodule(owner).register_parameter(last, nn.Parameter(tensor))
        self.norm = build_norm(c, used=c.final_norm == "tokens")
        self.add_module(c.pool.module_name, c.pool.build(c, c.mlp))
        self.fc_norm = build_norm(c, used=c.final_norm == "pooled")
        self.pre_logits = c.head.build_pre_logits(c.pooled_width, c)
        self.head = nn.Linear(c.features, c.num_classes) if c.num_classes else nn.Identity()
        self._initialise()

    def forward(self, images: Tensor, output: Output = "logits", record: Mapping[int, Record] | None = None) -> Tensor:
        """Classify images.

        Args:
            images: Normalised images, (B, C, H, W). H and W must be multiples of the patch size.
            output: What to return. `logits`: (B, K). `features`: what the last layer reads, (B, ``config.features``).
                `tokens`: all tokens after the final norm, (B, P + N, D): [CLS], registers, patches in raster order.
            record: Keeps what the blocks of these indices compute; used by :meth:`intermediates`.

        Raises:
            ConfigError: If the images have the wrong channels, size or type, or the output is unknown.
        """
        check_output(output)
        c, weight = self.config, self.patch_embed.proj.weight
        x_p_E, grid = self.patch_embed(images)  # each patch times the matrix E: (B, N, D)
        x_class = [token.expand(images.shape[0], -1, -1) for token in self.prefix]  # (B, 1, D), and any registers
        E_pos = c.position.embedding(self, c, grid).to(weight)  # (1, P + N, D); by default self.pos_embed
        z = torch.cat([*x_class, x_p_E], 1) + E_pos  # equation 1: z_0 = [x_class; x_p E] + E_pos, (B, P + N, D)

        context = c.position.context(self, c, grid)  # for positions that act in every block; else None
        z, context = self.drop_patches(z, context)
        z = self.norm_pre(self.pos_drop(z))  # by default without a norm
        seen = c.attention.context(context, grid)  # what attention receives: by default context
        for index, block in enumerate(self.blocks):
            z = c.position.before_block(z, index, context)  # by default z
            z = block(z, seen, record.get(index) if record else None)  # equations 2 and 3: (B, P + N, D)
        z = self.norm(z)
        y = self.pool(z)  # equation 4: (B, D); some poolings are wider, (B, config.pooled_width)
        features = self.pre_logits(self.fc_norm(y))  # (B, config.features)
        return {"tokens": z, "features": features, "logits": self.head(features)}[output]

    def intermediates(
        self, images: Tensor, layers: Sequence[int] | None = None, attention: bool = False
    ) -> Intermediates:
        """Return the values inside one pass; see :func:`vitreous.model.intermediates.intermediates`."""
        return intermediates(self, images, layers, attention)

    @property
    def prefix(self) -> list[Tensor]:
        """The tokens before the patches, if the model has them: [CLS], (1, 1, D), and registers, (1, P - 1, D)."""
        return [token for token in (self.cls_token, self.reg_token) if token is not None]

    def drop_patches(self, z: Tensor, context: Any) -> tuple[Tensor, Any]:
        """In training, drop a fraction ``patch_dropout`` of each image's patches (arXiv 2208.07220).

        Args:
            z: Tokens, (B, P + N, D).
            context: What the blocks know about the positions of all patches.

        Returns:
            The remaining n patches after the prefix tokens, (B, P + n, D), and the context of these patches.
        """
        if not self.training or self.patch_dropout == 0:
            return z, context
        prefix, patches = z.split([self.config.prefix_tokens, z.shape[1] - self.config.prefix_tokens], 1)
        kept = self.draw_kept_patches(patches)
        patches = patches.gather(1, kept[..., None].expand(-1, -1, z.shape[-1]))
        return torch.cat((prefix, patches), 1), self.config.position.select(context, kept)

    def draw_kept_patches(self, patches: Tensor) -> Tensor:
        """Draw which of the patches (B, N, D) are kept; return their raster indices in ascending order, (B, n)."""
        count = max(1, round(patches.shape[1] * (1 - self.patch_dropout)))
        return torch.rand(patches.shape[:2], device=patches.device).argsort(1)[:, :count].sort(1).values

    @property
    def pool(self) -> nn.Module:
        """The pooling module."""
        return self.get_submodule(self.config.pool.module_name)

    def _initialise(self) -> None:
        """Draw all weights: layers and tokens by the scheme ``config.init``, then what blocks and head ask for.

        Not on the meta device, where weights have no values and PyTorch imports its compiler to say so.
        """
        if next(self.parameters()).is_meta:
            return
        c, scheme = self.config, SCHEMES[self.config.init]
        scheme.initialise(self)
        scheme.adjust(self, c.position, c.grid)
        c.block.initialise(self.blocks)
        c.head.initialise(self.head, scheme)

    def initialise_tokens(self, scheme: Scheme) -> None:
        """Draw the prefix tokens and the positions in place."""
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=scheme.class_token_std)
        if self.reg_token is not None:
            nn.init.normal_(self.reg_token, std=1e-6)
        self.config.position.initialise(self, scheme.position_std)
