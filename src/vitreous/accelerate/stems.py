"""The patch stems made fast: in bfloat16 on a CPU, matrix products and convolutions in the layout that suits them.

Shapes: B batch, C channels, H x W pixels, N patches, D width.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from vitreous.accelerate.kernels import in_bfloat16_on_cpu, linear
from vitreous.model.stems.base import PatchEmbed
from vitreous.model.stems.conv import ConvPatchEmbed
from vitreous.model.stems.patch import LinearPatchEmbed, StridedPatchEmbed, flatten_patches
from vitreous.model.stems.resnet import ResNetPatchEmbed

__all__ = ["FastConvPatchEmbed", "FastLinearPatchEmbed", "FastResNetPatchEmbed", "FastStridedPatchEmbed"]


class FastLinearPatchEmbed(LinearPatchEmbed):
    """The patch projection as one matrix product."""

    def project(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to patches (B, N, D)."""
        images = images.to(torch.bfloat16) if in_bfloat16_on_cpu(images) else images
        return linear(flatten_patches(images, self.patch), self.proj.weight.flatten(1), self.proj.bias)


class FastStridedPatchEmbed(StridedPatchEmbed):
    """The strided convolution. In bfloat16 on a CPU, one matrix product computes the same result faster."""

    def project(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to patches (B, N, D)."""
        if in_bfloat16_on_cpu(images):
            return FastLinearPatchEmbed.project(cast(FastLinearPatchEmbed, self), images)
        return super().project(images)


class _ChannelsLast(PatchEmbed):
    """A stem whose convolutions run channels-last in bfloat16 on a CPU: faster, and with contiguous tokens."""

    def project(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to patches (B, N, D)."""
        if in_bfloat16_on_cpu(images):
            images = images.contiguous(memory_format=torch.channels_last)
        return super().project(images)


class FastConvPatchEmbed(_ChannelsLast, ConvPatchEmbed):
    """The convolutional stem, channels-last in bfloat16 on a CPU."""


class FastResNetPatchEmbed(_ChannelsLast, ResNetPatchEmbed):
    """The stem of hybrids, channels-last in bfloat16 on a CPU."""
