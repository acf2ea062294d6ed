"""What every patch stem is: a module from images to tokens, and the configuration that builds it.

Shapes: B batch, C channels, H x W pixels, (h, w) patches down and across, N = h w patches, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from vitreous.errors import ConfigError
from vitreous.model.part import Part, Shape, pair

__all__ = ["PatchEmbed", "Stem"]


@dataclass(frozen=True)
class Stem(Part):
    """A kind of stem.

    Args:
        activation: Applied to the patch tokens. The paper has none; the public notebook tutorials use `relu`.
    """

    has_patch_kernel: ClassVar[bool] = False
    """Whether one kernel projects patches of pixels, so that it can be resized to another patch size."""

    activation: Literal["none", "relu"] = "none"

    def build(self, shape: Shape) -> PatchEmbed:
        """Return the module."""
        raise NotImplementedError

    def numbers(self, shape: Shape, height: int, width: int) -> int:
        """Count the numbers that the largest layer holds for an image, in addition to its pixels and tokens."""
        return 0


class PatchEmbed(nn.Module):
    """Cuts an image into patches and projects each to the width: x_p E of equation 1.

    A subclass sets ``proj``, whose result is B x D x h x w, and may override :meth:`project`.
    """

    proj: nn.Conv2d

    def __init__(self, stem: Stem, shape: Shape) -> None:
        super().__init__()
        self.patch, self.channels = pair(shape.patch_size), shape.in_channels
        self.activation = nn.ReLU() if stem.activation == "relu" else nn.Identity()

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return tokens B x N x D and the grid (h, w) for images B x C x H x W.

        Raises:
            ConfigError: If the channels differ from the model's, patches do not tile the images, or the images are
                not floating-point.
        """
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise ConfigError(f"images have shape {tuple(images.shape)}, expected (B, {self.channels}, H, W)")
        if not images.is_floating_point():
            raise ConfigError(f"images are {images.dtype}, expected normalised floats")
        (H, W), (ph, pw) = images.shape[2:], self.patch
        if H % ph or W % pw or not (H and W):
            raise ConfigError(f"images are {H} x {W} pixels, both sides must be multiples of the patch, {ph} x {pw}")
        return self.activation(self.project(images)), (H // ph, W // pw)

    def project(self, images: Tensor) -> Tensor:
        """Return tokens B x N x D for images B x C x H x W."""
        return self.proj(images).flatten(2).transpose(1, 2)
