"""What all patch stems have in common: a configuration, and the module that turns images into tokens.

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
        activation: Activation of the patch tokens. The paper has none; the public notebook tutorials use `relu`.
    """

    has_patch_kernel: ClassVar[bool] = False
    """Whether one kernel projects patches of pixels. Such a kernel can be resized to another patch size."""

    activation: Literal["none", "relu"] = "none"

    def build(self, shape: Shape) -> PatchEmbed:
        """Return the module that turns images into tokens."""
        raise NotImplementedError

    def activations(self, shape: Shape, height: int, width: int) -> int:
        """Return how many numbers per image the largest layer holds in memory besides pixels and tokens."""
        return 0


class PatchEmbed(nn.Module):
    """Cuts an image into patches and projects each patch to a token, x_p E in equation 1.

    A subclass sets ``proj``, which returns (B, D, h, w), and may override :meth:`project`.
    """

    proj: nn.Conv2d

    def __init__(self, stem: Stem, shape: Shape) -> None:
        super().__init__()
        self.patch, self.channels = pair(shape.patch_size), shape.in_channels
        self.activation = nn.ReLU() if stem.activation == "relu" else nn.Identity()

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Map images (B, C, H, W) to tokens (B, N, D); also return the grid (h, w).

        Raises:
            ConfigError: If the number of channels differs from the model's, patches do not tile the images, or the
                images are not floating-point.
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
        """Map images (B, C, H, W) to tokens (B, N, D)."""
        return self.proj(images).flatten(2).transpose(1, 2)  # (B, D, h, w) to (B, N, D)
