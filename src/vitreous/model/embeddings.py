"""From pixels to tokens with a place: patch stems, position tables, and their resampling to other resolutions.

Shapes: B batch, C channels, (h, w) patches down and across, N = h w patches, D width, d channels of a head.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig, pair
from vitreous.model.kernels import in_bfloat16_on_cpu, linear
from vitreous.model.resnet import ResNetStem

__all__ = ["PatchEmbed", "resample", "rotary_table", "sincos_table"]


class PatchEmbed(nn.Module):
    """Cut a picture into patches and project each to the width (equation 1): x_p E.

    ``stem="patch"`` is a strided convolution; ``stem="linear"`` flattens each patch and multiplies by the same weights,
    so both share one state dict. ``stem="conv"`` puts log2(P) 3x3 convolutions that halve the picture, each with batch
    norm and GELU and twice the channels of the one before, in front of a projection. ``stem="resnet"`` cuts the patches
    out of a ResNet's feature map (section 3.1).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch, self.channels = pair(config.patch_size), config.in_channels
        self.linear, self.flat = config.stem == "linear", config.stem in ("linear", "patch")
        self.activation = nn.ReLU() if config.patch_activation == "relu" else nn.Identity()
        self.backbone: nn.Module
        if config.stem == "conv":
            widths = _conv_widths(config)
            layer, side = (_conv_pool_norm_gelu, 3) if config.conv_stem == "max-pool" else (_conv_norm_gelu, 1)
            self.backbone = nn.Sequential(*(layer(a, b) for a, b in itertools.pairwise(widths)))
            self.proj = nn.Conv2d(widths[-1], config.width, side, padding=side // 2)
        elif config.stem == "resnet":
            self.backbone = resnet = ResNetStem(config)
            kernel = (self.patch[0] // resnet.reduction, self.patch[1] // resnet.reduction)
            self.proj = nn.Conv2d(resnet.channels, config.width, kernel, kernel)
        else:
            self.backbone = nn.Sequential()
            self.proj = nn.Conv2d(config.in_channels, config.width, self.patch, self.patch)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return tokens B x N x D and the grid (h, w) for images B x C x H x W.

        Raises:
            ConfigError: If the channels differ from the model's, patches do not tile the images, or they are no floats.
        """
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise ConfigError(f"images have shape {tuple(images.shape)}, expected (B, {self.channels}, H, W)")
        if not images.is_floating_point():
            raise ConfigError(f"images are {images.dtype}, expected floats, normalised as the evaluation pipeline does")
        (H, W), (ph, pw) = images.shape[2:], self.patch
        if H % ph or W % pw or not (H and W):
            raise ConfigError(f"images are {H} x {W} pixels, both sides must be multiples of the patch, {ph} x {pw}")
        grid = (H // ph, W // pw)
        if self.linear or (self.flat and in_bfloat16_on_cpu(images)):
            images = images.to(torch.bfloat16) if in_bfloat16_on_cpu(images) else images
            x = images.unflatten(3, (grid[1], pw)).unflatten(2, (grid[0], ph))  # B C h ph w pw
            x = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # B N C*ph*pw
            x = linear(x, self.proj.weight.flatten(1), self.proj.bias)  # B N D
        else:
            if in_bfloat16_on_cpu(images):  # faster convolutions, and tokens that lie in their order
                images = images.contiguous(memory_format=torch.channels_last)
            x = self.proj(self.backbone(images)).flatten(2).transpose(1, 2)  # B N D
        return self.activation(x), grid


def _conv_widths(config: ViTConfig) -> list[int]:
    """Channels of the picture and after each convolution."""
    layers = range(int(math.log2(pair(config.patch_size)[0])))
    if config.conv_width is None:
        return [config.in_channels] + [max(8, config.width >> i) for i in reversed(layers)]
    return [config.in_channels] + [config.conv_width << i for i in layers]


def _conv_norm_gelu(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.GELU()
    )


def _conv_pool_norm_gelu(channels: int, width: int) -> nn.Sequential:
    """Pooled before the norm, which then has a quarter to do."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(width), nn.GELU()
    )


def sincos_table(grid: tuple[int, int], width: int) -> Tensor:
    """Return fixed 2-D sine-cosine positions, 1 x N x D in float64 (arXiv 2205.01580; big_vision's sincos2d)."""
    rows, columns = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    omega = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / max(1, width // 4 - 1))
    y, x = (place.flatten()[:, None] * omega for place in (rows, columns))  # N D/4
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), 1)[None]


def rotary_table(grid: tuple[int, int], head_dim: int, base: float = 100.0) -> Tensor:
    """Return cosines and sines of axial 2-D rotary positions in float64, 2 x 1 x 1 x N x d (arXiv 2403.13298).

    The first half of the channel pairs turns with the column, the second with the row, each at d / 4 frequencies
    base^(-4 i / d).
    """
    rows, columns = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    omega = base ** -(torch.arange(head_dim // 4, dtype=torch.float64) * 4 / head_dim)
    angles = torch.cat([place.flatten()[:, None] * omega for place in (columns, rows)], 1)  # N d/2
    angles = angles.repeat_interleave(2, 1)  # N d
    return torch.stack((angles.cos(), angles.sin()))[:, None, None]


def resample(table: Tensor, old: tuple[int, int], new: tuple[int, int], method: str) -> Tensor:
    """Resize learned patch positions to another grid, as the named library does.

    Args:
        table: Patch positions in raster order, 1 x (h w) x D, without prefix tokens.
        old: The grid (h, w) that the table is laid out for.
        new: The grid wanted.
        method: `google`: bilinear between corner-aligned grids (scipy.ndimage.zoom of order 1 in the paper's code).
            `timm`: bicubic, antialiased. `huggingface`: bicubic. `torchvision`: bicubic, corners aligned.
            `dinov2`: bicubic with 0.1 added to the new size before the scale is taken, as its code does.

    Returns:
        1 x (h' w') x D, in the table's dtype.
    """
    if old == new:
        return table
    # In float32 at least: bfloat16 weights would round at every tap.
    picture = table.to(torch.promote_types(table.dtype, torch.float32)).unflatten(1, old).permute(0, 3, 1, 2)  # 1 D h w
    if method == "google":
        picture = F.interpolate(picture, new, mode="bilinear", align_corners=True)
    elif method == "timm":
        picture = F.interpolate(picture, new, mode="bicubic", antialias=True)
    elif method == "huggingface":
        picture = F.interpolate(picture, new, mode="bicubic")
    elif method == "torchvision":
        picture = F.interpolate(picture, new, mode="bicubic", align_corners=True)
    elif method == "dinov2":
        scale = tuple((n + 0.1) / o for n, o in zip(new, old, strict=True))
        picture = F.interpolate(picture, scale_factor=scale, mode="bicubic")
    else:
        raise ConfigError(f"resample '{method}' is unknown: google, timm, huggingface, torchvision or dinov2")
    return picture.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)
