"""The stem of the paper's hybrids (section 3.1): patches are taken from the feature map of a ResNet, not from pixels.

The ResNet is BiT's ResNetV2 without pre-activation: weight-standardised convolutions (arXiv 1903.10520), group norm
with 32 groups, and TensorFlow's SAME padding. Parameters have timm's names.

Shapes: B batch, C channels, H x W pixels or cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.part import Shape, pair
from vitreous.model.stems.base import PatchEmbed, Stem

__all__ = ["Bottleneck", "ResNet", "ResNetPatchEmbed", "ResNetStem", "StdConv2d"]

_GROUPS = 32
_EXPANSION = 4
_NORM_EPS = {"google": 1e-6, "timm": 1e-5}  # of the group norms: the defaults of flax and of timm


@dataclass(frozen=True)
class ResNetStem(Stem):
    """`resnet`: patches of a ResNet's feature map (section 3.1); ``patch_size`` still counts pixels of the image.

    Args:
        layers: Number of bottleneck blocks in each stage. The first layers reduce each side of the image to a quarter,
            and each stage except the first halves it again, so (3, 4, 9) makes one cell of 16 x 16 pixels.
        width: Channels of the first convolution, a multiple of 32.
        norm: Library whose epsilons the weight standardisation and the group norms use: `google` or `timm`.
    """

    kind = "resnet"
    layers: tuple[int, ...] = (3, 4, 9)
    width: int = 64
    norm: Literal["google", "timm"] = "google"

    @property
    def reduction(self) -> int:
        """Side of a cell of the feature map in pixels."""
        return 4 << max(0, len(self.layers) - 1)

    def problems(self, shape: Shape) -> Iterator[str]:
        ph, pw = pair(shape.patch_size)
        if ph % self.reduction or pw % self.reduction:
            yield (
                f"a resnet stem of {len(self.layers)} stages needs patch_size in multiples of {self.reduction}, it is "
                f"{ph, pw}"
            )
        if self.width % 32 or self.width < 32:
            yield f"stem.width is {self.width}, it must be a multiple of 32"
        if min(self.layers, default=1) < 1:
            yield f"stem.layers is {self.layers}, every stage needs at least 1"

    def build(self, shape: Shape) -> PatchEmbed:
        return ResNetPatchEmbed(self, shape)

    def activations(self, shape: Shape, height: int, width: int) -> int:
        return 3 * self.width * height * width // 4


class ResNetPatchEmbed(PatchEmbed):
    """A ResNet, followed by a projection of the patches of its feature map."""

    def __init__(self, stem: ResNetStem, shape: Shape) -> None:
        super().__init__(stem, shape)
        self.backbone = ResNet(shape.in_channels, stem)
        kernel = (self.patch[0] // stem.reduction, self.patch[1] // stem.reduction)
        self.proj = nn.Conv2d(self.backbone.channels, shape.width, kernel, kernel)

    def project(self, images: Tensor) -> Tensor:
        return super().project(self.backbone(images))


class ResNet(nn.Module):
    """A 7x7 convolution and a max-pool, then stages of bottleneck blocks.

    The convolution and the pool reduce each side of the image to a quarter; each stage except the first halves it.

    Attributes:
        channels: Number of channels of the feature map.
    """

    def __init__(self, channels: int, stem: ResNetStem) -> None:
        super().__init__()
        self.stem = _conv_norm(channels, stem.width, 7, 2, stem.norm)
        self.stages = nn.ModuleList()
        self.channels = stem.width
        for i, length in enumerate(stem.layers):
            blocks = []
            for j in range(length):
                stride = 2 if i and j == 0 else 1
                blocks.append(Bottleneck(self.channels, stem.width << i, stride, stem.norm))
                self.channels = (stem.width << i) * _EXPANSION
            self.stages.append(_Stage(blocks))

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the feature map (B, channels, H / reduction, W / reduction)."""
        x = F.relu(self.stem(images))
        x = F.max_pool2d(_pad_same(x, 3, 2, float("-inf")), 3, 2)
        for stage in self.stages:
            x = stage(x)
        return x


class _Stage(nn.Module):
    """A sequence of bottleneck blocks. This class exists so that parameters have timm's names."""

    def __init__(self, blocks: list[Bottleneck]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x)
        return y


class StdConv2d(nn.Conv2d):
    """A convolution without bias, with SAME padding, whose kernel is standardised for each output channel.

    google-research/vision_transformer (models_resnet.py) divides the kernel by ``std + 1e-5``, and timm (StdConv2dSame)
    by ``sqrt(var + 1e-8)``.

    Args:
        channels: Number of input channels.
        width: Number of output channels.
        kernel: Side of the square kernel.
        stride: Stride in both directions.
        flavour: `google` or `timm`.
    """

    def __init__(self, channels: int, width: int, kernel: int, stride: int, flavour: str) -> None:
        super().__init__(channels, width, kernel, stride, bias=False)
        self.flavour = flavour

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, width, ceil(H / stride), ceil(W / stride))."""
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        scale = variance.sqrt() + 1e-5 if self.flavour == "google" else (variance + 1e-8).sqrt()
        kernel, stride = self.kernel_size[0], self.stride[0]
        return F.conv2d(_pad_same(x, kernel, stride), (self.weight - mean) / scale, None, stride)


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1, each with group norm, and a shortcut around them.

    The weight of the last norm starts at zero, so that a new block passes only its shortcut on.
    """

    def __init__(self, channels: int, width: int, stride: int, flavour: str) -> None:
        super().__init__()
        out = width * _EXPANSION
        if channels != out or stride != 1:
            self.downsample = _conv_norm(channels, out, 1, stride, flavour)
        self.conv1 = StdConv2d(channels, width, 1, 1, flavour)
        self.norm1 = _norm(width, flavour)
        self.conv2 = StdConv2d(width, width, 3, stride, flavour)
        self.norm2 = _norm(width, flavour)
        self.conv3 = StdConv2d(width, out, 1, 1, flavour)
        self.norm3 = _norm(out, flavour)
        nn.init.zeros_(self.norm3.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, 4 width, H / stride, W / stride)."""
        shortcut = self.downsample(x) if hasattr(self, "downsample") else x
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + shortcut)


def _conv_norm(channels: int, width: int, kernel: int, stride: int, flavour: str) -> nn.Sequential:
    layers = nn.Sequential()
    layers.add_module("conv", StdConv2d(channels, width, kernel, stride, flavour))
    layers.add_module("norm", _norm(width, flavour))
    return layers


def _norm(width: int, flavour: str) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, width, eps=_NORM_EPS[flavour])


def _pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad like TensorFlow's SAME, so that ceil(size / stride) windows fit.

    If the padding is odd, the extra cell goes to the right or the bottom.
    """
    height, width = (max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in x.shape[2:])
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2), value=value)
