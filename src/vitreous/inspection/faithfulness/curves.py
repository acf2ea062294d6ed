"""Deletion and insertion curves of RISE (Petsiuk et al. 2018, arXiv 1806.07421, section 4.3).

Shapes: N images of C channels and H x W pixels, maps of h x w cells, P = h w cells, K classes, S steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.inspection.faithfulness.removal import Predict, Removal, check_maps, group_cells

__all__ = ["Curve", "cells_changed", "deletion", "deletion_steps", "insertion", "insertion_steps"]


@dataclass(frozen=True, eq=False)
class Curve:
    """The target's probability as cells are removed or inserted, the most salient first.

    Attributes:
        fractions: Share of cells removed or inserted after each step, (S + 1,) from 0 to 1.
        scores: The target's probability, (N, S + 1) float64.
    """

    fractions: Tensor
    scores: Tensor

    @property
    def auc(self) -> Tensor:
        """The area under each curve by the trapezoidal rule, (N,)."""
        return torch.trapezoid(self.scores, self.fractions, dim=1)


def deletion(
    predict: Predict,
    images: Tensor,
    maps: Tensor,
    targets: Tensor,
    *,
    steps: int = 10,
    background: Tensor | None = None,
    batch_size: int = 64,
) -> Curve:
    """Remove the cells of images step by step, the most salient first. A smaller area is better.

    Args:
        predict: Maps normalised images (B, C, H, W) to probabilities (B, K).
        images: Normalised images, (N, C, H, W).
        maps: One value per patch or pixel, (N, h, w); only the order of the values matters. Equal values keep their
            raster order.
        targets: The class that each map explains, (N,) integers.
        steps: S, from 2 to P; P removes one cell at a time. An image takes S + 1 forward passes.
        background: What replaces removed cells, see :class:`~vitreous.inspection.faithfulness.removal.Removal`.
        batch_size: Variants of images per forward pass.

    Raises:
        DataError: If shapes do not match or an option is out of range.
        NonFiniteError: If a map or a probability is NaN or infinite.
    """
    check_maps(images, maps, targets)
    removal = Removal(predict, images, targets, background=background, batch_size=batch_size)
    return _curve(removal, maps, deletion_steps(steps))


def insertion(
    predict: Predict,
    images: Tensor,
    maps: Tensor,
    targets: Tensor,
    *,
    steps: int = 10,
    background: Tensor | None = None,
    batch_size: int = 64,
) -> Curve:
    """Insert the cells of images into the background step by step, the most salient first. A larger area is better.

    Arguments and errors are those of :func:`deletion`. RISE inserts into
    :func:`~vitreous.inspection.faithfulness.removal.blurred` images, because cells on a plain background have edges
    that the image does not have.
    """
    check_maps(images, maps, targets)
    removal = Removal(predict, images, targets, background=background, batch_size=batch_size)
    return _curve(removal, maps, insertion_steps(steps))


def deletion_steps(steps: int) -> Tensor:
    """Return the groups that remain after each step of deletion, (S + 1, S) bool."""
    return torch.arange(steps)[None, :] >= torch.arange(steps + 1)[:, None]


def insertion_steps(steps: int) -> Tensor:
    """Return the groups that are present after each step of insertion, (S + 1, S) bool."""
    return ~deletion_steps(steps)


def cells_changed(cells: int, steps: int) -> Tensor:
    """Return the share of the cells in the first 0 to S groups, (S + 1,) float64."""
    sizes = torch.bincount(torch.arange(cells) * steps // cells, minlength=steps)  # as group_cells cuts the ranking
    return torch.cat([torch.zeros(1, dtype=torch.float64), sizes.cumsum(0) / cells])


def _curve(removal: Removal, maps: Tensor, kept: Tensor) -> Curve:
    """Score the variants (S + 1, S) of images by their maps (N, h, w)."""
    group_of = group_cells(maps, kept.shape[1])
    scores = removal.scores(group_of, (maps.shape[1], maps.shape[2]), kept)
    return Curve(cells_changed(group_of.shape[1], kept.shape[1]), scores)
