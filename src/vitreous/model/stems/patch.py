"""The paper's stem, either as a strided convolution or as a matrix product with flattened patches.

Both compute the same function and have the same state dict; which one is faster depends on the hardware.

Shapes: B batch, C channels, (h, w) patches down and across, P_h x P_w pixels of a patch, N = h w patches, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.part import Shape
from vitreous.model.stems.base import PatchEmbed, Stem

__all__ = ["KernelStem", "LinearPatchEmbed", "LinearStem", "PatchStem", "StridedPatchEmbed", "flatten_patches"]


@dataclass(frozen=True)
class KernelStem(Stem):
    """A stem of one kernel, which projects each patch.

    Args:
        bias: Whether the projection has a bias. CLIP's has none.
    """

    has_patch_kernel = True
    bias: bool = True


@dataclass(frozen=True)
class PatchStem(KernelStem):
    """`patch`: a convolution whose kernel and stride are the patch size (equation 1)."""

    kind = "patch"

    def build(self, shape: Shape) -> PatchEmbed:
        return StridedPatchEmbed(self, shape)


@dataclass(frozen=True)
class LinearStem(KernelStem):
    """`linear`: flattens each patch and multiplies it by a matrix; same function and weights as `patch`."""

    kind = "linear"

    def build(self, shape: Shape) -> PatchEmbed:
        return LinearPatchEmbed(self, shape)


class StridedPatchEmbed(PatchEmbed):
    """The matrix E of equation 1 as a convolution whose kernel and stride are the patch size.

    Like the paper's code, it adds a bias unless told otherwise, which equation 1 omits.
    """

    def __init__(self, stem: KernelStem, shape: Shape) -> None:
        super().__init__(stem, shape)
        self.proj = nn.Conv2d(self.channels, shape.width, self.patch, self.patch, bias=stem.bias)


class LinearPatchEmbed(StridedPatchEmbed):
    """The matrix E of equation 1 as a matrix: the flattened kernel of the convolution."""

    def project(self, images: Tensor) -> Tensor:
        return F.linear(flatten_patches(images, self.patch), self.proj.weight.flatten(1), self.proj.bias)  # (B, N, D)


def flatten_patches(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Cut images (B, C, H, W) into flattened patches in raster order, (B, N, C P_h P_w)."""
    ph, pw = patch
    x = images.unflatten(3, (-1, pw)).unflatten(2, (-1, ph))  # (B, C, h, P_h, w, P_w)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, C P_h P_w)
