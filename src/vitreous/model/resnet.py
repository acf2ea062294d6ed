"""The stem of the paper's hybrids (section 3.1): a BiT ResNetV2 without pre-activation, in front of the patches.

Weight-standardised convolutions (arXiv 1903.10520) and group norm of 32 groups, padded as TensorFlow's SAME. Parameter
names are timm's. Shapes: B batch, C channels, H x W pixels or cells.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.config import ViTConfig

__all__ = ["Bottleneck", "ResNetStem", "StdConv2d"]

_GROUPS = 32
_EXPANSION = 4
_NORM_EPS = {"google": 1e-6, "timm": 1e-5}  # of the group norms: flax's default, timm's default


class StdConv2d(nn.Conv2d):
    """A convolution without bias whose kernel is standardised per output channel, padded as SAME.

    google-research/vision_transformer (models_resnet.py) divides by ``std + 1e-5``, timm (StdConv2dSame) by
    ``sqrt(var + 1e-8)``.

    Args:
        channels: Of the input.
        width: Channels of the output.
        kernel: Side of the kernel.
        stride: Step of the kernel.
        flavour: `google` or `timm`.
    """

    def __init__(self, channels: int, width: int, kernel: int, stride: int, flavour: str) -> None:
        super().__init__(channels, width, kernel, stride, bias=False)
        self.flavour = flavour

    def forward(self, x: Tensor) -> Tensor:
        """Map B x C x H x W to B x width x ceil(H / stride) x ceil(W / stride)."""
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        scale = variance.sqrt() + 1e-5 if self.flavour == "google" else (variance + 1e-8).sqrt()
        kernel, stride = self.kernel_size[0], self.stride[0]
        return F.conv2d(_pad_same(x, kernel, stride), (self.weight - mean) / scale, None, stride)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions, each with group norm, beside a shortcut; the norm after the last starts at zero."""

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
        """Map B x C x H x W to B x 4 width x H/stride x W/stride."""
        shortcut = self.downsample(x) if hasattr(self, "downsample") else x
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + shortcut)


class ResNetStem(nn.Module):
    """A 7x7 convolution and a pool that quarter the picture, then stages of bottlenecks that halve it, but the first.

    Attributes:
        channels: Of the feature map.
        reduction: Pixels per cell of the feature map.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width, flavour = config.resnet_width, config.resnet_norm
        self.stem = _conv_norm(config.in_channels, width, 7, 2, flavour)
        self.stages = nn.ModuleList()
        self.channels, self.reduction = width, 4
        for i, length in enumerate(config.resnet_layers):
            stride = 1 if i == 0 else 2
            blocks = []
            for j in range(length):
                blocks.append(Bottleneck(self.channels, width << i, stride if j == 0 else 1, flavour))
                self.channels = (width << i) * _EXPANSION
            self.stages.append(_Stage(blocks))
            self.reduction *= stride

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map, B x channels x H/reduction x W/reduction, for images B x C x H x W."""
        x = F.relu(self.stem(images))
        x = F.max_pool2d(_pad_same(x, 3, 2, float("-inf")), 3, 2)
        for stage in self.stages:
            x = stage(x)
        return x


class _Stage(nn.Module):
    """Bottlenecks, one after the other; of its own so that parameters are named as timm's."""

    def __init__(self, blocks: list[Bottleneck]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x)
        return y


def _conv_norm(channels: int, width: int, kernel: int, stride: int, flavour: str) -> nn.Sequential:
    layers = nn.Sequential()
    layers.add_module("conv", StdConv2d(channels, width, kernel, stride, flavour))
    layers.add_module("norm", _norm(width, flavour))
    return layers


def _norm(width: int, flavour: str) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, width, eps=_NORM_EPS[flavour])


def _pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad as TensorFlow's SAME: ceil(size / stride) windows fit, the odd cell goes to the right and bottom."""
    height, width = (max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in x.shape[2:])
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2), value=value)
