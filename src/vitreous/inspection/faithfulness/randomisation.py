"""Parameter randomisation (Adebayo et al. 2018, arXiv 1810.03292): a map of what the model learned must change with it.

Shapes: N images of C channels and H x W pixels, maps of h x w cells, P = h w cells, K classes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError, NonFiniteError
from vitreous.inspection.faithfulness.removal import is_constant
from vitreous.model.vit import VisionTransformer, ViTConfig

__all__ = ["Explain", "randomisation", "randomised", "rank_correlation"]

Explain = Callable[[VisionTransformer, Tensor, Tensor], Tensor]
"""Maps a model, images (N, C, H, W) and targets (N,) to maps (N, h, w)."""


def randomisation(
    explain: Explain,
    model: VisionTransformer,
    images: Tensor,
    targets: Tensor,
    *,
    last_blocks: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Correlate each map with the map of the same class after the last blocks are drawn again.

    Close to 1: the map hardly depends on what these blocks learned, so it cannot explain what they do.

    Args:
        explain: The map method. It is called once with ``model`` and once with the randomised copy.
        model: In evaluation mode.
        images: Normalised images, (N, C, H, W).
        targets: The classes to explain, (N,) integers.
        last_blocks: See :func:`randomised`.
        seed: Of the new weights.

    Returns:
        Spearman's rank correlation of each image, (N,) float64 in [-1, 1]; NaN if a map is constant.

    Raises:
        ConfigError: If ``last_blocks`` is out of range.
        DataError: If the maps do not have one shape (N, h, w).
        NonFiniteError: If a map has a value that is NaN or infinite.
    """
    other = randomised(model, last_blocks, seed=seed)
    return rank_correlation(explain(model, images, targets), explain(other, images, targets))


def randomised(model: VisionTransformer, last_blocks: int | None = None, *, seed: int = 0) -> VisionTransformer:
    """Return a copy of a model whose last blocks and everything after them are as at the start of training.

    The scheme of the model's configuration draws the weights, except that it sets no branch and no head to zero: the
    maps of a model whose logits depend on nothing are constant.

    Args:
        model: Plain or fast. Neither it nor torch's global generator changes.
        last_blocks: Number of blocks to draw again, from 0 (only what follows the blocks) to the depth. None is half of
            the depth, rounded up.
        seed: Of the new weights.

    Raises:
        ConfigError: If ``last_blocks`` is out of range.
    """
    c = model.config
    count = c.depth - c.depth // 2 if last_blocks is None else last_blocks
    if not 0 <= count <= c.depth:
        raise ConfigError(f"last_blocks is {count}, it must be from 0 to {c.depth}, the depth of the model")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs too
        fresh = VisionTransformer(_without_zeros(c)).state_dict()
    modules = [f"blocks.{number}" for number in range(c.depth - count, c.depth)]
    modules += ["norm", c.pool.module_name, "fc_norm", "pre_logits", "head"]
    prefixes = tuple(f"{name}." for name in modules)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in changed.state_dict().items():
            if name.startswith(prefixes):
                value.copy_(fresh[name])
    return changed


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Spearman's rank correlation of pairs of maps, (N, h, w) each, as (N,) float64 in [-1, 1].

    Equal values share the mean of their ranks. The correlation with a constant map is NaN.

    Raises:
        DataError: If the maps do not have the same shape (N, h, w).
        NonFiniteError: If a map has a value that is NaN or infinite.
    """
    if first.shape != second.shape or first.ndim != 3:
        raise DataError(
            f"maps have shapes {tuple(first.shape)} and {tuple(second.shape)}, both must have one shape (N, h, w)"
        )
    if not (first.isfinite().all() and second.isfinite().all()):
        raise NonFiniteError("maps contain values that are NaN or infinite: they have no ranks")
    a, b = (_centred_ranks(maps) for maps in (first, second))
    correlation = (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()
    undefined = is_constant(first).cpu() | is_constant(second).cpu()
    return correlation.clamp(-1, 1).masked_fill(undefined, torch.nan)


def _centred_ranks(maps: Tensor) -> Tensor:
    """Return the ranks of the values of each map minus their mean, (N, P) float64."""
    flat = maps.detach().cpu().double().flatten(1)  # (N, P)
    ordered = flat.sort(dim=1).values
    lower = torch.searchsorted(ordered, flat)  # how many values are smaller
    upper = torch.searchsorted(ordered, flat, right=True)  # how many are smaller or equal
    return (lower + upper).double() / 2 - flat.shape[1] / 2


def _without_zeros(config: ViTConfig) -> ViTConfig:
    """Return the configuration with a head and residual branches that do not start at zero."""
    head = dataclasses.replace(config.head, zero=False)
    return dataclasses.replace(config, head=head, block=dataclasses.replace(config.block, zero_residual=False))
