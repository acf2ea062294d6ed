"""How far attention reaches and how concentrated it is (figures 7, right, and 11, appendix D.7 of arXiv 2010.11929).

Shapes: n images, (h, w) patches down and across, N = h w patches, P prefix tokens ([CLS] and registers), T = P + N
tokens, L blocks, H heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.inspection.passes import BATCH_SIZE, Images, passes
from vitreous.inspection.principal_components import Floats
from vitreous.model.config import pair

__all__ = ["AttentionDistance", "attention_distance"]


@dataclass(frozen=True, eq=False)
class AttentionDistance:
    """Averages over all patches, as queries, of all images.

    Attributes:
        distance: Mean distance in pixels of the input between the centres of the query patch and of the patches that it
            attends to, weighted by attention, (L, H). Attention to prefix tokens is left out, and the other weights are
            scaled to sum to one.
        entropy: Entropy of the attention of a query patch to all T tokens, in nats, (L, H), in [0, log T].
        entropy_share: The same as a share of log T, (L, H), in [0, 1]: 1 if attention is uniform.
        prefix_share: Attention that query patches pay to prefix tokens, (L, H), in [0, 1].
        uniform: The distance that uniform attention has on this grid, in pixels, for comparison.
        images: Number of images.
    """

    distance: Floats
    entropy: Floats
    entropy_share: Floats
    prefix_share: Floats
    uniform: float
    images: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        arrays = {name: getattr(self, name).tolist() for name in _AVERAGES}
        return arrays | {"uniform": self.uniform, "images": self.images}


_AVERAGES = ("distance", "entropy", "entropy_share", "prefix_share")


def attention_distance(model: Any, images: Images, batch_size: int = BATCH_SIZE) -> AttentionDistance:
    """Measure how far attention reaches, and its entropy, for every head of every block.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (n, C, H, W), or batches of them.
        batch_size: Images per pass. The result does not depend on it. The weights of one block at a time are in memory.

    Raises:
        ConfigError: If the model is in training mode or merges tokens, or the images do not fit.
        DataError: If there are no images.
    """
    total: Tensor | None = None
    count = 0
    for values in passes(model, images, batch_size):
        distances = _distances(values.grid, pair(model.config.patch_size))
        P = values.prefix_tokens
        sums = torch.stack([_sums(layer.weights(), P, distances.to(values.tokens.device)) for layer in values.layers])
        total = sums if total is None else total + sums  # (L, 3, H)
        count += len(values.logits)
    assert total is not None  # `passes` raises without images
    distance, entropy, prefix = (total / (count * len(distances))).cpu().numpy().swapaxes(0, 1)  # (L, H) each
    largest = math.log(P + len(distances))
    share = entropy / largest if largest > 0 else entropy
    return AttentionDistance(distance, entropy, share, prefix, float(distances.mean()), count)


def _distances(grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Return the distances between the centres of all patches in pixels, (N, N) in float64."""
    (h, w), (ph, pw) = grid, patch
    y = (torch.arange(h, dtype=torch.float64) * ph)[:, None].expand(h, w).flatten()
    x = (torch.arange(w, dtype=torch.float64) * pw).repeat(h)
    return torch.hypot(y - y[:, None], x - x[:, None])


def _sums(weights: Tensor, prefix: int, distances: Tensor) -> Tensor:
    """Sum distance, entropy and prefix share over images and query patches: weights (B, H, T, T) to (3, H)."""
    rows = weights[:, :, prefix:].double()  # (B, H, N, T)
    patches = rows[..., prefix:]  # (B, H, N, N)
    # Weights below float32's range are zero. A row that attends to prefix tokens alone then has distance 0.
    on_patches = patches.sum(-1)
    reach = torch.einsum("bhqk,qk->bhq", patches, distances) / on_patches.clamp(min=torch.finfo(torch.float64).tiny)
    entropy = torch.special.entr(rows).sum(-1)
    return torch.stack([each.sum((0, 2)) for each in (reach, entropy, rows[..., :prefix].sum(-1))])
