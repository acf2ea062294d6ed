"""Masked patch prediction, the paper's own self-supervision (arXiv 2010.11929, section 4.6 and appendix B.1.2).

Half of the patch embeddings are corrupted: 80 % of these become a learned [mask] embedding, 10 % the embedding of
another patch of the image, and 10 % stay. For each of them, the model predicts the mean colour of the patch, with 3
bits per channel, from pixels before normalisation.

Shapes: B batch, C channels, H x W pixels, N patches, n of them corrupted, D width, K = 8^C colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.accelerate.kernels import Linear
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError
from vitreous.train.pretrain.objectives.base import Losses, Objective, Reconstruction, class_entropy, take_rows
from vitreous.train.pretrain.objectives.spread import find_line

__all__ = ["Corruption", "Mpp", "MppConfig", "corrupt", "draw_corruption", "mean_colours"]

_LEVELS = 8  # 3 bits per channel


@dataclass(frozen=True)
class MppConfig:
    """Masked patch prediction (:mod:`vitreous.train.pretrain.objectives.mpp`).

    Args:
        corrupted: Fraction of the patches that are corrupted and predicted, in (0, 1).
        masked: Fraction of these whose embedding becomes [mask], in [0, 1].
        replaced: Fraction of these whose embedding becomes that of another patch, in [0, 1]. The others stay.
    """

    corrupted: float = 0.5
    masked: float = 0.8
    replaced: float = 0.1

    def __post_init__(self) -> None:
        """Check ranges, and report all problems in one error."""
        problems = []
        if not 0 < self.corrupted < 1:
            problems.append(f"mpp.corrupted is {self.corrupted}, it is a fraction of the patches and must be in (0, 1)")
        if min(self.masked, self.replaced) < 0 or self.masked + self.replaced > 1:
            problems.append(
                f"mpp.masked is {self.masked} and mpp.replaced {self.replaced}, they are fractions of the corrupted "
                "patches and must be at least 0 and together at most 1"
            )
        if problems:
            raise ConfigError("; ".join(problems))


@dataclass(frozen=True, eq=False)
class Corruption:
    """What happens to the patches of a batch."""

    chosen: Tensor  # raster indices of the corrupted patches, ascending, (B, n)
    masked: Tensor  # whether each patch becomes [mask], (B, N)
    source: Tensor  # the patch whose embedding each patch has, (B, N); its own where it is not replaced


def draw_corruption(batch: int, patches: int, options: MppConfig, device: torch.device | None = None) -> Corruption:
    """Draw which patches are corrupted and how. Exactly ``round(corrupted * N)`` are, at least one."""
    count = max(1, round(patches * options.corrupted))
    chosen = torch.rand(batch, patches, device=device).argsort(1)[:, :count].sort(1).values
    is_chosen = torch.zeros(batch, patches, dtype=torch.bool, device=device).scatter(1, chosen, True)
    kind = torch.rand(batch, patches, device=device)
    own = torch.arange(patches, device=device)
    other = torch.randint(max(1, patches - 1), (batch, patches), device=device)
    other = (other + (other >= own)).clamp(max=patches - 1)  # uniform among the others
    replaced = is_chosen & (kind >= options.masked) & (kind < options.masked + options.replaced)
    return Corruption(chosen, is_chosen & (kind < options.masked), torch.where(replaced, other, own))


def corrupt(x_p: Tensor, mask_token: Tensor, drawn: Corruption) -> Tensor:
    """Return the patch embeddings (B, N, D) with the corrupted ones replaced."""
    moved = x_p.gather(1, drawn.source[..., None].expand_as(x_p))
    return torch.where(drawn.masked[..., None], mask_token.to(x_p.dtype), moved)


def mean_colours(pixels: Tensor, patch: tuple[int, int]) -> Tensor:
    """Return the class of each patch's mean colour, (B, N) in [0, 8^C).

    ``pixels`` are (B, C, H, W) in [0, 255]. Each channel's mean has one of 8 equal levels, and the first channel is the
    most significant digit.
    """
    means = F.avg_pool2d(pixels.float(), patch).flatten(2)  # (B, C, N), exact: sums of whole numbers
    levels = (means / (256 / _LEVELS)).floor().clamp(0, _LEVELS - 1).long()
    classes = levels[:, 0]
    for channel in range(1, levels.shape[1]):
        classes = classes * _LEVELS + levels[:, channel]
    return classes


class Mpp(Objective):
    """Corrupts patch embeddings, and predicts the mean colours of the corrupted patches."""

    reconstructs = True
    trains_pool = False

    def __init__(self, backbone: FastVisionTransformer, pipeline: EvalPipeline, options: MppConfig) -> None:
        super().__init__(backbone, pipeline, options)
        config = backbone.config
        if not config.stem.has_patch_kernel:
            raise ConfigError(
                f"mpp hides patches behind the stem, but the stem {config.stem.kind} lets visible patches show their "
                "neighbours: use --model.stem patch or linear; of a model of --from, whose stem stays, --method mae"
            )
        if config.patches < 2:
            raise ConfigError("mpp needs at least 2 patches, the image is one: use a smaller patch size")
        self.classes = _LEVELS**config.in_channels
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.predict = Linear(config.width, self.classes)
        nn.init.normal_(self.mask_token, std=0.02)
        nn.init.trunc_normal_(self.predict.weight, std=0.02)
        nn.init.zeros_(self.predict.bias)

    def forward(self, views: Sequence[Tensor]) -> Losses:
        """Corrupt random patches and return the cross-entropy; the embeddings are the mean of the patch tokens."""
        (images,) = views
        logits, tokens, drawn = self._predict(images)
        targets = mean_colours(self.to_pixels(images), self.backbone.patch_embed.patch).gather(1, drawn.chosen)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        return Losses(loss, tokens.detach().float().mean(1))

    def _predict(self, images: Tensor) -> tuple[Tensor, Tensor, Corruption]:
        """Return the logits of the corrupted patches (B, n, K), the patch tokens (B, N, D), and the corruption."""
        x_p, grid = self.backbone.patch_embed(images)
        drawn = draw_corruption(len(x_p), x_p.shape[1], self.options, x_p.device)
        z = self.backbone.from_patches(corrupt(x_p, self.mask_token, drawn), grid, "tokens")
        tokens = z[:, self.backbone.config.prefix_tokens :]
        chosen = take_rows(tokens, drawn.chosen)
        return self.predict(chosen), tokens, drawn

    def find_collapse(self, embeddings: Tensor) -> str | None:
        """Name a collapse of the features to one point or to a line."""
        return find_line(embeddings)

    def target_entropy(self, pixels: Tensor) -> tuple[float, str]:
        """Return the entropy of the mean colours."""
        colours = mean_colours(pixels, self.backbone.patch_embed.patch)
        return class_entropy(colours, self.classes), f"the {self.classes} mean colours"

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> Reconstruction:
        """Paint the corrupted patches in the most likely colours, each the middle of its level."""
        (ph, pw), (H, W) = self.backbone.patch_embed.patch, images.shape[2:]
        logits, _, drawn = self._predict(images)
        pixels, classes = self.to_pixels(images), logits.argmax(-1)  # (B, n)
        channels = [classes // _LEVELS**power % _LEVELS for power in reversed(range(images.shape[1]))]
        colours = (torch.stack(channels, -1) + 0.5) * (256 / _LEVELS)  # (B, n, C)
        hidden = torch.zeros(len(images), H // ph * (W // pw), dtype=torch.bool, device=images.device)
        hidden = hidden.scatter(1, drawn.chosen, True)
        painted = torch.zeros(*hidden.shape, images.shape[1], device=images.device)
        painted = painted.scatter(1, drawn.chosen[..., None].expand_as(colours), colours)

        def enlarged(values: Tensor) -> Tensor:
            grid = values.view(len(values), H // ph, W // pw, -1).permute(0, 3, 1, 2)
            return grid.repeat_interleave(ph, 2).repeat_interleave(pw, 3)

        is_hidden = enlarged(hidden[..., None])
        grey = 255 * pixels.new_tensor(self.pipeline.config.mean).view(-1, 1, 1)
        return Reconstruction(torch.where(is_hidden, grey, pixels), torch.where(is_hidden, enlarged(painted), pixels))
