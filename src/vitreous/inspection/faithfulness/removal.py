"""Removing parts of images: cells ranked by a map, cut into groups, and scores of images that lack some groups.

Shapes: N images of C channels and H x W pixels, maps of h x w cells, P = h w cells, K classes, G groups of cells,
V variants of an image, B variants in one forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from vitreous.errors import DataError, NonFiniteError

__all__ = ["Predict", "Removal", "blurred", "check_maps", "group_cells", "is_constant"]

Predict = Callable[[Tensor], Tensor]
"""Maps normalised images (B, C, H, W) to probabilities (B, K)."""


def blurred(images: Tensor, kernel: int = 11, sigma: float = 5.0) -> Tensor:
    """Return images (N, C, H, W) blurred by a Gaussian, a background that hides details but keeps colours.

    The defaults are those of RISE (arXiv 1806.07421) for images of 224 x 224 pixels.

    Args:
        images: Normalised images.
        kernel: Width of the kernel in pixels, odd, less than twice the shorter side of the images.
        sigma: Standard deviation in pixels, above 0.

    Raises:
        DataError: If the kernel or sigma is out of range.
    """
    shorter = min(images.shape[-2:])
    if kernel % 2 == 0 or not 0 < kernel < 2 * shorter:
        raise DataError(f"kernel is {kernel}, it must be odd and from 1 to {2 * shorter - 1} for these images")
    if sigma <= 0:
        raise DataError(f"sigma is {sigma}, it must be above 0")
    return gaussian_blur(images, [kernel, kernel], [sigma, sigma])


def check_maps(images: Tensor, maps: Tensor, targets: Tensor) -> None:
    """Check that maps (N, h, w) and targets (N,) belong to images (N, C, H, W).

    Raises:
        DataError: If there is no image, the shapes do not match, or the cells of a map are not of equal size in pixels.
        NonFiniteError: If a map has a value that is NaN or infinite.
    """
    if images.ndim != 4 or maps.ndim != 3 or targets.ndim != 1:
        raise DataError(
            f"images, maps and targets have shapes {tuple(images.shape)}, {tuple(maps.shape)} and "
            f"{tuple(targets.shape)}, they must be (N, C, H, W), (N, h, w) and (N,)"
        )
    if not len(images) == len(maps) == len(targets) or len(images) == 0:
        raise DataError(
            f"there are {len(images)} images, {len(maps)} maps and {len(targets)} targets: give one map and one target "
            "for each of at least one image"
        )
    (height, width), (h, w) = images.shape[2:], maps.shape[1:]
    if min(h, w) == 0 or height % h or width % w:
        raise DataError(
            f"maps of {h} x {w} do not divide images of {height} x {width} pixels into cells of equal size: give maps "
            "with one value per patch or per pixel"
        )
    if not maps.isfinite().all():
        raise NonFiniteError("maps contain values that are NaN or infinite: rank cells by finite values")


def is_constant(maps: Tensor) -> Tensor:
    """Return (N,) bool: which maps (N, h, w) have the same value everywhere, and so rank nothing."""
    flat = maps.flatten(1)
    return (flat == flat[:, :1]).all(1)


def group_cells(maps: Tensor, groups: int) -> Tensor:
    """Rank the cells of maps (N, h, w) by salience and cut the ranking into groups.

    Group 0 has the highest values. Group sizes differ by at most one cell. Cells of the same value keep their raster
    order.

    Returns:
        The group of each cell in raster order, (N, P) integers in [0, G), on the CPU.

    Raises:
        DataError: If ``groups`` is below 2 or above the number of cells.
    """
    flat = maps.detach().cpu().double().flatten(1)  # (N, P)
    P = flat.shape[1]
    if not 2 <= groups <= P:
        raise DataError(f"groups is {groups}, it must be from 2 to {P}, the number of cells of a map")
    ranking = flat.argsort(dim=1, descending=True, stable=True)  # (N, P) cells, the most salient first
    group_of_rank = torch.arange(P) * groups // P  # (P,)
    return torch.empty_like(ranking).scatter_(1, ranking, group_of_rank.expand_as(ranking))


@dataclass(frozen=True, eq=False)
class Removal:
    """Predicts images of which only some groups of cells are kept.

    Args:
        predict: Maps normalised images (B, C, H, W) to probabilities (B, K); B is at most ``batch_size``.
        images: Normalised images, (N, C, H, W).
        targets: The class that is scored, (N,) integers in [0, K).
        background: What replaces removed cells, in normalised values: one value per channel (C,), or images
            (N, C, H, W) such as :func:`blurred`. None is zero, the mean colour of the dataset.
        batch_size: Variants per forward pass, at least 1.

    Raises:
        DataError: If the background or the batch size does not fit.
    """

    predict: Predict
    images: Tensor
    targets: Tensor
    background: Tensor | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise DataError(f"batch_size is {self.batch_size}, it must be at least 1")
        shape, channels = self.images.shape, self.images.shape[1]
        if self.background is not None and self.background.shape not in ((channels,), shape):
            raise DataError(
                f"background has shape {tuple(self.background.shape)}, it must be ({channels},), one value per "
                f"channel, or that of the images, {tuple(shape)}"
            )

    @torch.no_grad()
    def scores(self, group_of: Tensor, grid: tuple[int, int], kept: Tensor) -> Tensor:
        """Predict variants of every image.

        Args:
            group_of: The group of each cell, (N, P), from :func:`group_cells`.
            grid: h and w of the maps.
            kept: Which groups each variant keeps, (V, G) bool.

        Returns:
            The target's probability in each variant, (N, V) float64 on the CPU.

        Raises:
            DataError: If predict does not return one row per image, or a target is none of its classes.
            NonFiniteError: If a probability is NaN or infinite.
        """
        images, behind, targets = self.images, self._behind(), self.targets.cpu()
        N, V = len(images), len(kept)
        cell = (images.shape[2] // grid[0], images.shape[3] // grid[1])  # pixels down and across
        found = []
        for numbers in torch.arange(N * V).split(self.batch_size):
            image, variant = numbers // V, numbers % V  # (B,)
            shown = kept[variant].gather(1, group_of[image]).unflatten(1, (1, *grid))  # (B, 1, h, w)
            shown = shown.repeat_interleave(cell[0], 2).repeat_interleave(cell[1], 3)  # (B, 1, H, W)
            rows = image.to(images.device)
            scores = self.predict(torch.where(shown.to(images.device), images[rows], behind[rows]))  # (B, K)
            found.append(_of_targets(scores, targets[image]))
        return torch.cat(found).unflatten(0, (N, V))

    def _behind(self) -> Tensor:
        """Return the background in the shape (N, C, H, W) of the images."""
        images = self.images
        values = images.new_zeros(images.shape[1]) if self.background is None else self.background.to(images)
        return values[None, :, None, None].expand_as(images) if values.ndim == 1 else values


def _of_targets(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the targets' entries of scores (B, K) as (B,) float64 on the CPU."""
    if scores.ndim != 2 or len(scores) != len(targets):
        raise DataError(
            f"predict returns {tuple(scores.shape)} for {len(targets)} images, it must be (images, classes)"
        )
    if not 0 <= int(targets.min()) <= int(targets.max()) < scores.shape[1]:
        low, high = int(targets.min()), int(targets.max())
        raise DataError(f"targets range from {low} to {high}, predict returns classes 0 to {scores.shape[1] - 1}")
    chosen = scores.detach().cpu().double().gather(1, targets.long()[:, None])[:, 0]
    if not chosen.isfinite().all():
        raise NonFiniteError(
            "predict returns probabilities that are NaN or infinite: check the model and its precision"
        )
    return chosen
