"""SaCo, the salience-guided faithfulness coefficient of Wu et al. 2024 (arXiv 2404.01415, algorithm 1).

Shapes: N images of C channels and H x W pixels, maps of h x w cells, P = h w cells, K classes, G groups of cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.inspection.faithfulness.removal import Predict, Removal, check_maps, group_cells, is_constant

__all__ = ["coefficient", "one_group_removed", "saco", "salience_of_groups"]

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
    the higher sum of salience should lower the target's probability at least as much; the pair then counts with the
    difference of the two sums, and otherwise with its negative. SaCo is the sum over all pairs, divided by the sum of
    its absolute terms.

    Drops that differ by less than 1e-6 are equal, and count in favour of the map as in the paper. A prediction that
    depends on nothing therefore gives 1 for every map: compare with random maps, as
    :func:`~vitreous.inspection.faithfulness.table.faithfulness_table` does. If G does not divide P, the larger groups
    have larger sums as well as larger drops.

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
    return coefficient(salience_of_groups(maps, group_of, groups), scores[:, :1] - scores[:, 1:])


def one_group_removed(groups: int) -> Tensor:
    """Return the variants of SaCo, (G, G) bool: variant g keeps all groups but g."""
    return ~torch.eye(groups, dtype=torch.bool)


def salience_of_groups(maps: Tensor, group_of: Tensor, groups: int) -> Tensor:
    """Return the sum of salience s(G_i) of each group, (N, G) float64; NaN throughout for a constant map.

    Args:
        maps: (N, h, w).
        group_of: The group of each cell, (N, P).
        groups: G.
    """
    flat = maps.detach().cpu().double().flatten(1)  # (N, P)
    sums = flat.new_zeros(len(flat), groups).scatter_add_(1, group_of, flat)
    return sums.masked_fill(is_constant(maps).cpu()[:, None], torch.nan)


def coefficient(salience: Tensor, drops: Tensor) -> Tensor:
    """Return SaCo (N,) from the groups' sums of salience (N, G) and the drops of the prediction (N, G)."""
    first, second = torch.triu_indices(salience.shape[1], salience.shape[1], offset=1)  # all pairs of groups
    weight = salience[:, first] - salience[:, second]
    drop = drops[:, first] - drops[:, second]
    # Equal drops agree with either order. Sums are in descending order unless group sizes differ.
    agrees = (drop.abs() < _SAME_DROP) | ((drop > 0) == (weight > 0))
    return torch.where(agrees, weight.abs(), -weight.abs()).sum(1) / weight.abs().sum(1)
