"""How many directions embeddings use, and whether they are still different for different images.

Shapes: n or B images, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["effective_rank", "find_constant", "find_line", "find_low_rank", "rankme", "relative_spread"]

_CONSTANT = 1e-3  # spread relative to the size of the embeddings; new models have 0.02 and more
_FEW_DIRECTIONS = 1.5  # effective rank of projections, which a regulariser spreads
_ONE_DIRECTION = 1.1  # effective rank of features; new models have 1.6 and more, also on grey digits
_FEWEST_IMAGES = 16  # whose directions say something


def relative_spread(embeddings: Tensor) -> float:
    """Return the root mean square distance from the mean embedding, over the root mean square of all embeddings."""
    size = embeddings.square().sum(1).mean().sqrt()
    spread = (embeddings - embeddings.mean(0)).square().sum(1).mean().sqrt()
    return float(spread / size.clamp(min=1e-12))


def effective_rank(embeddings: Tensor) -> float:
    """Return exp of the entropy of the covariance's eigenvalues, scaled to sum 1 (Roy and Vetterli 2007).

    It is 1 if all embeddings (n, D) lie on a line, at most D, and 0 if they are all equal.
    """
    embeddings = embeddings.cpu().double()  # Apple's GPUs have no float64
    centred = embeddings - embeddings.mean(0)
    return _exp_entropy(torch.linalg.svdvals(centred).square())


def rankme(embeddings: Tensor) -> float:
    """Return RankMe (arXiv 2210.02885): exp of the entropy of the singular values of (n, D), not centred."""
    return _exp_entropy(torch.linalg.svdvals(embeddings.cpu().double()))


def find_constant(embeddings: Tensor) -> str | None:
    """Name a collapse to one point: the embeddings hardly differ between images."""
    spread = relative_spread(embeddings)
    if spread >= _CONSTANT:
        return None
    return f"complete collapse: all images have the same representation, to within {spread:.1g} of its size"


def find_low_rank(embeddings: Tensor) -> str | None:
    """Name a collapse of projections to one point or to a line."""
    return _find_collapse(embeddings, _FEW_DIRECTIONS, "representations")


def find_line(features: Tensor) -> str | None:
    """Name a collapse of a backbone's features to one point or to a line."""
    return _find_collapse(features, _ONE_DIRECTION if len(features) >= _FEWEST_IMAGES else 0.0, "features")


def _find_collapse(embeddings: Tensor, least: float, name: str) -> str | None:
    """Name a collapse to one point, or to an effective rank below the least."""
    if (found := find_constant(embeddings)) is not None or (rank := effective_rank(embeddings)) >= least:
        return found
    return f"dimensional collapse: the {name} use {rank:.2f} of {embeddings.shape[1]} dimensions"


def _exp_entropy(values: Tensor) -> float:
    total = values.sum()
    if total <= 1e-24:
        return 0.0
    shares = values / total
    return float(torch.exp(torch.special.entr(shares).sum()))
