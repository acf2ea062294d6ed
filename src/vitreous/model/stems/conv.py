"""The convolutional stem: 3x3 convolutions with batch norm and GELU, each of which halves the image."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from vitreous.model.part import Shape, pair
from vitreous.model.stems.base import PatchEmbed, Stem

__all__ = ["ConvPatchEmbed", "ConvStem"]


@dataclass(frozen=True)
class ConvStem(Stem):
    """`conv`: convolutions that halve the image and double the channels, until one cell is left per patch.

    Overlapping convolutions tell the model that neighbouring pixels belong together, which helps on small datasets.

    Args:
        downsample: How a layer halves the image. `max-pool`: by max-pooling after the convolution; a 3x3 convolution
            then makes the tokens (as in CCT, arXiv 2104.05704). `stride`: by the stride of the convolution; a 1x1
            convolution then makes the tokens (as in arXiv 2106.14881).
        width: Channels of the first convolution. None chooses them so that the last convolution has the model's width,
            but at least 8.
    """

    kind = "conv"
    downsample: Literal["max-pool", "stride"] = "max-pool"
    width: int | None = None

    def problems(self, shape: Shape) -> Iterator[str]:
        ph, pw = pair(shape.patch_size)
        if ph != pw or ph & (ph - 1) or ph < 2:
            yield f"stem conv halves the image per layer: patch_size is {shape.patch_size}, use 2, 4, 8, 16 or 32"
        if self.width is not None and self.width < 1:
            yield f"stem.width is {self.width}, it must be at least 1, or null to follow the model's width"

    def channels(self, shape: Shape) -> list[int]:
        """Return the number of channels of the image, and after each convolution."""
        layers = range(pair(shape.patch_size)[0].bit_length() - 1)
        if self.width is None:
            return [shape.in_channels, *(max(8, shape.width >> i) for i in reversed(layers))]
        return [shape.in_channels, *(self.width << i for i in layers)]

    def build(self, shape: Shape) -> PatchEmbed:
        return ConvPatchEmbed(self, shape)

    def activations(self, shape: Shape, height: int, width: int) -> int:
        first = 5 * self.channels(shape)[1] * height * width // (1 if self.downsample == "max-pool" else 4)
        return first + height * width * shape.in_channels


class ConvPatchEmbed(PatchEmbed):
    """Convolutions, then the projection of their last feature map to the width."""

    def __init__(self, stem: ConvStem, shape: Shape) -> None:
        super().__init__(stem, shape)
        channels, pools = stem.channels(shape), stem.downsample == "max-pool"
        layer, side = (_conv_pool_norm_gelu, 3) if pools else (_conv_norm_gelu, 1)
        self.backbone = nn.Sequential(*(layer(a, b) for a, b in itertools.pairwise(channels)))
        self.proj = nn.Conv2d(channels[-1], shape.width, side, padding=side // 2)

    def project(self, images: Tensor) -> Tensor:
        return super().project(self.backbone(images))


def _conv_norm_gelu(channels: int, width: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.GELU())


def _conv_pool_norm_gelu(channels: int, width: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    # Pooling comes first because it leaves only a quarter of the cells for the norm.
    return nn.Sequential(conv, nn.MaxPool2d(2), nn.BatchNorm2d(width), nn.GELU())
