"""SaCo, the salience-guided faithfulness coefficient of Wu et al. 2024 (arXiv 2404.01415, algorithm 1).

Shapes: N images of C channels and H x W pixels, maps of h x w cells, P = h w cells, K classes, G groups of cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.inspection.faithfulness.removal import Predict, Removal, check_maps, group_cells, is_constant

__all__ = ["coefficient", "one_group_removed", "saco"]

_SAME_DROP = 1e-6  # float32 probabilities of one image differ by about 1e-7 between batch sizes


def saco(
    predict: Predict,
    images: Tensor,
    maps: Tensor,
    targets: Tensor,
    *,
    groups: int = 10,
    background: Tensor | None = None,
    batch_size: int = 64,
) -> Tensor:
    """Score maps by whether more salient groups of cells matter more to the prediction.

    Each of the G groups is removed on its own, which takes G + 1 forward passes per image. Of two groups, the one with
    the higher salience should lower the target's probability at least as much; the pair then counts with the difference
    of the two saliences, and otherwise with its negative. SaCo is the sum over all pairs, divided by the sum of its
    absolute terms.

    Salience and drop are those of a group, divided by its number of cells. With groups of one size that changes
    nothing. If G does not divide P, sums would favour the larger groups in both, and random maps would score above 0.

    Drops that differ by less than 1e-6 are equal, and count in favour of the map as in the paper. A prediction that
    depends on nothing therefore gives 1 for every map: compare with random maps, as
    :func:`~vitreous.inspection.faithfulness.table.faithfulness_table` does.

    Args:
        predict: Maps normalised images (B, C, H, W) to probabilities (B, K).
        images: Normalised images, (N, C, H, W).
        maps: One value per patch or pixel, (N, h, w). A scale above 0 does not matter.
        targets: The class that each map explains, (N,) integers.
        groups: G, from 2 to P. The paper uses 10.
        background: What replaces removed cells, see :class:`~vitreous.inspection.faithfulness.removal.Removal`.
        batch_size: Variants of images per forward pass.

    Returns:
        (N,) float64 in [-1, 1]. 1: salience ranks all groups as the prediction does. NaN: the map is constant, or all
        groups have the same salience.

    Raises:
        DataError: If shapes do not match or an option is out of range.
        NonFiniteError: If a map or a probability is NaN or infinite.
    """
    check_maps(images, maps, targets)
    group_of = group_cells(maps, groups)
    removal = Removal(predict, images, targets, background=background, batch_size=batch_size)
    kept = torch.cat([torch.ones(1, groups, dtype=torch.bool), one_group_removed(groups)])  # (1 + G, G)
    scores = removal.scores(group_of, (maps.shape[1], maps.shape[2]), kept)  # (N, 1 + G)
    return coefficient(maps, group_of, scores[:, :1] - scores[:, 1:])


def one_group_removed(groups: int) -> Tensor:
    """Return the variants of SaCo, (G, G) bool: variant g keeps all groups but g."""
    return ~torch.eye(groups, dtype=torch.bool)


def coefficient(maps: Tensor, group_of: Tensor, drops: Tensor) -> Tensor:
    """Return SaCo (N,), NaN for a constant map.

    Args:
        maps: (N, h, w).
        group_of: The group of each cell, (N, P).
        drops: Of the prediction, when each group is removed, (N, G).
    """
    groups = drops.shape[1]
    flat = maps.detach().cpu().double().flatten(1)  # (N, P)
    sizes = torch.bincount(group_of[0], minlength=groups)  # (G,), the same in every image
    salience = flat.new_zeros(len(flat), groups).scatter_add_(1, group_of, flat) / sizes
    salience = salience.masked_fill(is_constant(maps).cpu()[:, None], torch.nan)
    first, second = torch.triu_indices(groups, groups, offset=1)  # all pairs of groups
    weight = salience[:, first] - salience[:, second]  # at least 0, as groups are in descending order
    per_cell = drops / sizes
    drop = per_cell[:, first] - per_cell[:, second]
    agrees = drop > -_SAME_DROP / sizes.min()
    return torch.where(agrees, weight, -weight).sum(1) / weight.sum(1)
