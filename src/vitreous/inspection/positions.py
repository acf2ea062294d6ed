"""What a model knows about positions (figures 7, centre, and 10 of arXiv 2010.11929).

An embedding that is added to the tokens is compared with itself. For positions that act in attention, which may have
an embedding too, the mean attention score is shown as a function of the offset between two patches.

Shapes: (h, w) patches down and across, N = h w patches, P prefix tokens ([CLS] and registers), B images, L blocks,
H heads, D width. An offset is (row, column) of the key minus that of the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.inspection.passes import BATCH_SIZE, Images, passes
from vitreous.inspection.principal_components import Floats

__all__ = ["OffsetScores", "PositionSimilarity", "position_scores", "position_similarity"]


@dataclass(frozen=True, eq=False)
class PositionSimilarity:
    """Cosine similarity of the position embedding of each patch with those of all patches.

    Attributes:
        similarity: (h, w, h, w), in [-1, 1]; ``similarity[i, j]`` is the map of the patch in row i and column j. An
            embedding of zeros has the similarity 0 with all.
    """

    similarity: Floats

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"similarity": self.similarity.tolist()}


@dataclass(frozen=True, eq=False)
class OffsetScores:
    """Mean attention scores between patches, before the softmax, by the offset from query to key.

    Attributes:
        product: Mean of q k / sqrt(d), after rotation, (L, H, 2h - 1, 2w - 1). Offset (0, 0) is in the centre.
        bias: Mean of what the position embedding adds to that score, likewise; None if it adds nothing.
    """

    product: Floats
    bias: Floats | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"product": self.product.tolist(), "bias": None if self.bias is None else self.bias.tolist()}


def position_similarity(model: Any, grid: tuple[int, int] | None = None) -> PositionSimilarity:
    """Compare the position embeddings of all patches by cosine similarity.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast.
        grid: Patches down and across, (h, w). None: those of the model's own image size. Learned embeddings are
            resampled for another grid.

    Raises:
        ConfigError: If the position adds no embedding to the tokens.
    """
    config = model.config
    if not config.position.has_embedding:
        remedy = (
            "use position_scores, which shows how attention depends on the offset"
            if config.position.acts_in_blocks
            else "the model does not know where a patch lies"
        )
        raise ConfigError(f"position {config.position.kind} has no embedding: {remedy}")
    h, w = grid or config.grid
    embedding = config.position.embedding(model, config, (h, w))[0, config.prefix_tokens :].detach()  # (N, D)
    directions = torch.nn.functional.normalize(embedding.double(), dim=1)
    return PositionSimilarity((directions @ directions.T).clamp(-1, 1).reshape(h, w, h, w).cpu().numpy())


def position_scores(model: Any, images: Images, batch_size: int = BATCH_SIZE) -> OffsetScores:
    """Average the attention scores of all pairs of patches with the same offset, over images.

    Scores include what the patches show, so the average needs enough images for contents to cancel out.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (B, C, H, W), or batches of them.
        batch_size: Images per pass. The result does not depend on it.

    Raises:
        ConfigError: If the position does not act in attention, or the model is in training mode.
        DataError: If there are no images.
    """
    position = model.config.position
    if not position.acts_in_attention:
        remedy = "use position_similarity" if position.has_embedding else "attention does not know the offset"
        raise ConfigError(f"position {position.kind} does not act in attention: {remedy}")
    product: Tensor | None = None
    bias: Tensor | None = None
    count = 0
    for values in passes(model, images, batch_size):
        P, grid, B = values.prefix_tokens, values.grid, len(values.logits)
        found, added = [], []
        for layer in values.layers:
            q, k = layer.queries[:, :, P:].double(), layer.keys[:, :, P:].double()  # (B, H, N, d)
            scores = torch.einsum("bhqd,bhkd->hqk", q, k) / math.sqrt(q.shape[-1])
            found.append(_by_offset(scores, grid))
            if layer.bias is not None:
                shape = (B, q.shape[1], P + q.shape[2], P + q.shape[2])
                added.append(_by_offset(layer.bias.expand(shape)[:, :, P:, P:].double().sum(0), grid))
        product = torch.stack(found) if product is None else product + torch.stack(found)
        if added:
            bias = torch.stack(added) if bias is None else bias + torch.stack(added)
        count += B
    assert product is not None  # `passes` raises without images
    return OffsetScores((product / count).cpu().numpy(), None if bias is None else (bias / count).cpu().numpy())


def _by_offset(scores: Tensor, grid: tuple[int, int]) -> Tensor:
    """Average scores (H, N, N), queries by keys, over pairs with the same offset: (H, 2h - 1, 2w - 1)."""
    h, w = grid
    row, column = np.divmod(np.arange(h * w), w)
    down, across = row - row[:, None] + h - 1, column - column[:, None] + w - 1  # (N, N), query by key
    index = torch.from_numpy((down * (2 * w - 1) + across).ravel()).to(scores.device)
    bins = (2 * h - 1) * (2 * w - 1)
    sums = scores.new_zeros(len(scores), bins).index_add_(1, index, scores.flatten(1))
    return (sums / torch.bincount(index, minlength=bins)).unflatten(1, (2 * h - 1, 2 * w - 1))
