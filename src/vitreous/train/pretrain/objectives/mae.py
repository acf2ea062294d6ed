"""Masked autoencoder (arXiv 2111.06377): the encoder sees some of the patches, a small decoder predicts the others.

Where a stem lets patches show their neighbours, as convolutions do, the hidden patches have the mean colour before the
stem, so that no token knows of them. The paper has no such stem.

Shapes: B batch, C channels, H x W pixels, (h, w) patches, N = h w patches of P_h x P_w pixels, n of them visible,
P prefix tokens, D width of the encoder, E width of the decoder, V = C P_h P_w values of a patch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitreous.accelerate.batch_parts import Passes, own_statistics
from vitreous.accelerate.kernels import Linear
from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig, pair
from vitreous.model.positions import SinCos2d
from vitreous.model.positions.sincos_2d import sincos_table
from vitreous.model.stems.patch import flatten_patches
from vitreous.train.pretrain.objectives.base import (
    Losses,
    LossInParts,
    Objective,
    Reconstruction,
    check_dropping,
    entropy,
    take_rows,
)
from vitreous.train.pretrain.objectives.spread import find_line

__all__ = [
    "AuxMaeConfig",
    "Mae",
    "MaeConfig",
    "MaeDecoder",
    "count_visible",
    "draw_mask",
    "flatten_count",
    "hide_patches",
    "mae_loss",
    "patch_targets",
    "unflatten_patches",
]

_EPS = 1e-6  # of the published code, added to the variance of a patch
_FLAT = 0.5  # grey levels: a patch with a smaller standard deviation is flat


@dataclass(frozen=True)
class MaeConfig:
    """Masked autoencoder (:mod:`vitreous.train.pretrain.objectives.mae`).

    Args:
        mask: Fraction of the patches that are hidden, in (0, 1).
        decoder_width: Width of the decoder, a multiple of 4 and of its heads. None: about half that of the encoder.
        decoder_depth: Blocks of the decoder.
        decoder_heads: Attention heads of the decoder.
        normalise: Whether the targets are normalised patch by patch, which the paper found better than plain pixels.
    """

    group: ClassVar[str] = "mae"  # of the options, as errors name them
    mask: float = 0.75
    decoder_width: int | None = None
    decoder_depth: int = 2
    decoder_heads: int = 4
    normalise: bool = True

    def __post_init__(self) -> None:
        """Check ranges, and report all problems in one error."""
        problems = []
        if not 0 < self.mask < 1:
            problems.append(f"{self.group}.mask is {self.mask}, it is a fraction of the patches and must be in (0, 1)")
        problems += [
            f"{self.group}.{name} is {value}, it must be from 1 to {most}"
            for name, most in (("decoder_width", 4096), ("decoder_depth", 64), ("decoder_heads", 64))
            if (value := getattr(self, name)) is not None and not 1 <= value <= most
        ]
        if problems:
            raise ConfigError("; ".join(problems))


@dataclass(frozen=True)
class AuxMaeConfig(MaeConfig):
    """Masked autoencoder beside classification: the same, but that errors name the options of `aux`."""

    group: ClassVar[str] = "aux"


class Mae(Objective):
    """Masks patches, encodes the visible ones, and predicts the pixels of the masked ones."""

    reconstructs = True
    trains_pool = False

    def __init__(self, backbone: FastVisionTransformer, pipeline: EvalPipeline, options: MaeConfig) -> None:
        super().__init__(backbone, pipeline, options)
        check_dropping(backbone.config, "mae")
        self.check_scale(1.0)
        self.decoder = MaeDecoder(backbone.config, options)

    def check_scale(self, scale: float) -> None:
        """Refuse images in which the mask hides no patch."""
        config = self.backbone.config
        sides = zip(pair(config.image_size), pair(config.patch_size), strict=True)
        patches = math.prod(round(side * scale) // patch for side, patch in sides)
        if count_visible(patches, self.options.mask) == patches:
            at = "" if scale == 1 else f" of the images that augment.small_first makes {scale:g} times as large"
            raise ConfigError(f"mae.mask is {self.options.mask}, which hides none of {patches} patches{at}")

    def forward(self, views: Sequence[Tensor]) -> Losses:
        """Mask random patches and return the loss; the embeddings are the mean of the visible tokens."""
        (images,) = views
        kept, hidden = draw_mask(images, self.backbone.patch_embed.patch, self.options.mask)
        prediction, tokens = self.predict(images, kept, hidden)  # (B, N - n, V)
        return Losses(self._error(prediction, images, hidden), tokens.detach().float().mean(1))

    def in_parts(self, views: Sequence[Tensor]) -> LossInParts:
        """Mask random patches as :meth:`forward`, for threads that have a part of the batch each."""
        (images,) = views
        kept, hidden = draw_mask(images, self.backbone.patch_embed.patch, self.options.mask)
        embeddings: dict[int, Tensor] = {}

        def loss_of(passes: Passes, part: slice) -> Tensor:
            tokens = passes.encode_visible(kept[part])  # (B, P + n, D)
            embeddings[part.start] = tokens.detach().float().mean(1)
            prediction = self.decoder(tokens, passes.grid, kept[part], hidden[part])  # (B, N - n, V)
            return self._error(prediction, images[part], hidden[part])

        return LossInParts(loss_of, tuple(self.decoder.parameters()), embeddings, self._shown(images, hidden))

    def _error(self, prediction: Tensor, images: Tensor, hidden: Tensor) -> Tensor:
        """Return the mean squared error of predictions (B, N - n, V) of the hidden patches."""
        targets = patch_targets(images, self.backbone.patch_embed.patch, self.options.normalise)  # (B, N, V)
        return mae_loss(prediction, take_rows(targets, hidden))

    def predict(self, images: Tensor, kept: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted values of the hidden patches, (B, N - n, V), and the encoder's tokens."""
        stem, shown = self.backbone.patch_embed, self._shown(images, hidden)
        with own_statistics(stem):
            x_p, grid = stem(shown)
        tokens = self.backbone.encode_visible(x_p, grid, kept)  # (B, P + n, D)
        return self.decoder(tokens, grid, kept, hidden), tokens

    def _shown(self, images: Tensor, hidden: Tensor) -> Tensor:
        """Return what the stem gets: where it lets patches show their neighbours, images with the hidden ones grey."""
        stem = self.backbone.patch_embed
        if self.backbone.config.stem.has_patch_kernel:
            return images
        if stem.training and any(isinstance(module, nn.BatchNorm2d) for module in stem.modules()):
            with torch.no_grad():
                stem(images)  # moves batch norm's running statistics, which are those of whole images
        return hide_patches(images, hidden, stem.patch)

    def find_collapse(self, embeddings: Tensor) -> str | None:
        """Name a collapse of the features to one point or to a line."""
        return find_line(embeddings)

    def target_entropy(self, pixels: Tensor) -> tuple[float, str]:
        """Return the entropy of the patches that are not flat, whose normalised targets say nothing."""
        patches = flatten_patches(pixels.float(), self.backbone.patch_embed.patch).flatten(0, 1)  # (B N, V)
        varied = patches[patches.std(1) > _FLAT]
        if not len(varied):
            return 0.0, "all patches are flat"
        _, counts = torch.unique(varied, dim=0, return_counts=True)
        return entropy(counts), "the patches that are not flat"

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> Reconstruction:
        """Predict the hidden patches; with normalised targets, each has the true mean and deviation."""
        patch = self.backbone.patch_embed.patch
        kept, hidden = draw_mask(images, patch, self.options.mask)
        prediction = self.predict(images, kept, hidden)[0].float()
        values = flatten_patches(images, patch)  # (B, N, V)
        if self.options.normalise:
            mean, std = _statistics(take_rows(values, hidden))
            prediction = prediction * std + mean
        index = hidden[..., None].expand(-1, -1, values.shape[-1])
        completed = unflatten_patches(values.scatter(1, index, prediction), patch, images.shape)
        return Reconstruction(*map(self.to_pixels, (hide_patches(images, hidden, patch), completed)))


class MaeDecoder(nn.Module):
    """Projects the visible tokens, puts a mask token in the place of each hidden patch, and predicts their pixels.

    Positions are fixed sines and cosines, as in the paper; prefix tokens have none.
    """

    def __init__(self, config: ViTConfig, options: MaeConfig) -> None:
        super().__init__()
        group, heads = options.group, options.decoder_heads
        step = math.lcm(4, heads)
        width = options.decoder_width or max(round(config.width / 2 / step), 1) * step
        if width % step:
            raise ConfigError(
                f"{group}.decoder_width is {width}, it must be a multiple of 4 and of {group}.decoder_heads, {heads}"
            )
        shape = ViTConfig(
            image_size=config.image_size,
            patch_size=config.patch_size,
            num_classes=0,
            in_channels=config.in_channels,
            width=width,
            depth=options.decoder_depth,
            heads=options.decoder_heads,
            mlp_dim=4 * width,
            position=SinCos2d(),
        )
        blank = build(shape)
        self.width, self.prefix = width, config.prefix_tokens
        self.embed = Linear(config.width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks, self.norm = blank.blocks, blank.norm
        height, across = pair(config.patch_size)
        self.predict = Linear(width, config.in_channels * height * across)
        nn.init.normal_(self.mask_token, std=0.02)
        for layer in (self.embed, self.predict):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor, grid: tuple[int, int], kept: Tensor, hidden: Tensor) -> Tensor:
        """Map the encoder's tokens (B, P + n, D) to the values of the hidden patches, (B, N - n, V)."""
        x = self.embed(tokens)  # (B, P + n, E)
        B, N, P = len(x), grid[0] * grid[1], self.prefix
        positions = sincos_table(grid, self.width).to(x)  # (1, N, E)
        z = self.mask_token.to(x.dtype).expand(B, N, -1)
        z = z.scatter(1, kept[..., None].expand(-1, -1, self.width), x[:, P:]) + positions  # (B, N, E)
        z = torch.cat((x[:, :P], z), 1) if P else z
        for block in self.blocks:
            z = block(z)
        return self.predict(self.norm(take_rows(z[:, P:], hidden)))


def count_visible(patches: int, mask: float) -> int:
    """Return how many of an image's patches stay visible if a fraction ``mask`` is hidden."""
    return max(1, round(patches * (1 - mask)))


def draw_mask(images: Tensor, patch: tuple[int, int], mask: float) -> tuple[Tensor, Tensor]:
    """Draw which patches of images are visible, (B, n), and which hidden, (B, N - n): raster indices, ascending."""
    count = flatten_count(images, patch)
    visible = count_visible(count, mask)
    order = torch.rand(len(images), count, device=images.device).argsort(1)
    return order[:, :visible].sort(1).values, order[:, visible:].sort(1).values


def hide_patches(images: Tensor, hidden: Tensor, patch: tuple[int, int]) -> Tensor:
    """Return normalised images with the patches at raster indices (B, N - n) in the mean colour, which is 0."""
    values = flatten_patches(images, patch)
    index = hidden[..., None].expand(-1, -1, values.shape[-1])
    return unflatten_patches(values.scatter(1, index, 0.0), patch, images.shape)


def patch_targets(images: Tensor, patch: tuple[int, int], normalise: bool) -> Tensor:
    """Return what is predicted for every patch, float32 (B, N, V): its values, by default normalised."""
    values = flatten_patches(images.float(), patch)
    if not normalise:
        return values
    mean, std = _statistics(values)
    return (values - mean) / std


def mae_loss(prediction: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error over hidden patches, both (B, N - n, V)."""
    return (prediction.float() - targets).square().mean()


def _statistics(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each patch, (B, N, 1), as the published code computes them."""
    return values.mean(-1, keepdim=True), (values.var(-1, keepdim=True) + _EPS).sqrt()


def flatten_count(images: Tensor, patch: tuple[int, int]) -> int:
    """Return the number of patches of images (B, C, H, W)."""
    return (images.shape[2] // patch[0]) * (images.shape[3] // patch[1])


def unflatten_patches(values: Tensor, patch: tuple[int, int], shape: Sequence[int]) -> Tensor:
    """Undo :func:`~vitreous.model.stems.patch.flatten_patches` for images of a shape."""
    (B, C, H, W), (ph, pw) = shape, patch
    x = values.view(B, H // ph, W // pw, C, ph, pw)
    return x.permute(0, 3, 1, 4, 2, 5).reshape(B, C, H, W)
