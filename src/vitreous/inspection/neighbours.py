"""The most similar images, and the most similar patches, by the cosine of their features.

The gallery, such as the training images, passes through the model batch by batch. Only the best matches so far are
kept, so memory does not grow with the gallery.

Shapes: Q queries, n gallery images, B images of a batch, (h, w) patches down and across, N = h w patches, k neighbours,
F features, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.inspection.passes import BATCH_SIZE, Images, batches, passes
from vitreous.inspection.principal_components import Floats

__all__ = ["NearestImages", "NearestPatches", "nearest_images", "nearest_patches"]

_MAX_SIMILARITIES = 2**23  # in memory at once: 64 MiB in float64


@dataclass(frozen=True, eq=False)
class NearestImages:
    """The gallery images whose features are most similar to those of each query.

    Attributes:
        images: Numbers in the gallery, most similar first, (Q, k). Of equals the first in the gallery comes first.
        similarity: Cosine similarity, (Q, k), in [-1, 1].
    """

    images: npt.NDArray[np.int64]
    similarity: Floats

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"images": self.images.tolist(), "similarity": self.similarity.tolist()}


@dataclass(frozen=True, eq=False)
class NearestPatches:
    """The gallery patches whose tokens are most similar to each query patch, at most one of each image.

    Attributes:
        images: Numbers of the images in the gallery, most similar first, (Q, k).
        patches: Row and column of the patch in its image, (Q, k, 2).
        similarity: Cosine similarity, (Q, k), in [-1, 1].
    """

    images: npt.NDArray[np.int64]
    patches: npt.NDArray[np.int64]
    similarity: Floats

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name).tolist() for name in ("images", "patches", "similarity")}


def nearest_images(
    model: Any, queries: Images, gallery: Images, *, count: int = 5, batch_size: int = BATCH_SIZE
) -> NearestImages:
    """Find the nearest gallery images in the space of the features that the last layer reads.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        queries: Normalised images, (Q, C, H, W), or batches of them.
        gallery: The images to search, (n, C, H, W), or batches of them. They may have another size.
        count: Number of neighbours k, at least 1. If the gallery is smaller, all of it is returned.
        batch_size: Images per pass. The result does not depend on it.

    Raises:
        ConfigError: If count or batch_size is below 1, the model is in training mode, or the images do not fit.
        DataError: If there are no queries, or the gallery is empty.
    """
    _check(model, count)

    def directions(images: Images) -> Iterable[Tensor]:
        for batch in batches(model, images, batch_size):
            with torch.no_grad():
                yield _directions(model(batch, "features"))  # (B, F)

    wanted, best, first = torch.cat(list(directions(queries))), _Best(count), 0
    for found in directions(gallery):
        similarity = wanted @ found.T  # (Q, B)
        best.add(similarity, first + torch.arange(len(found)).expand(similarity.shape))
        first += len(found)
    return NearestImages(best.index.numpy(), best.similarity.clamp(-1, 1).numpy())


def nearest_patches(
    model: Any,
    image: Tensor,
    patches: Sequence[tuple[int, int]],
    gallery: Images,
    *,
    count: int = 5,
    batch_size: int = BATCH_SIZE,
) -> NearestPatches:
    """Find, for some patches of an image, the nearest patches of other images, after the final norm.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        image: The normalised image, (C, H, W) or (1, C, H, W).
        patches: Row and column of each query patch, from 0.
        gallery: The images to search, (n, C, H, W), or batches of them, all of one size.
        count: Number of neighbours k, at least 1, each from another image. A smaller gallery is returned entirely.
        batch_size: Images per pass. The result does not depend on it.

    Raises:
        ConfigError: If a patch does not exist, count or batch_size is below 1, the model is in training mode or merges
            tokens, or images do not fit.
        DataError: If the gallery is empty.
    """
    _check(model, count)
    (values,) = passes(model, image if image.ndim == 4 else image[None], 1)
    h, w = values.grid
    if not patches or not all(0 <= row < h and 0 <= column < w for row, column in patches):
        raise ConfigError(f"patches are {list(patches)}: use at least one (row, column) within {h} x {w} patches")
    index = torch.tensor([row * w + column for row, column in patches])
    wanted, best, first = _directions(values.tokens[0, values.prefix_tokens :])[index], _Best(count), 0
    for found in passes(model, gallery, batch_size, layers=[]):
        tokens = _directions(found.tokens[:, found.prefix_tokens :])  # (B, N, D)
        grid, N = found.grid, tokens.shape[1]
        for part in tokens.split(max(1, _MAX_SIMILARITIES // (len(wanted) * N))):
            similarity, place = torch.einsum("qd,bnd->qbn", wanted, part).max(2)  # (Q, B): the best of each image
            number = first + torch.arange(len(part))
            best.add(similarity, number * N + place)
            first += len(part)
    image_numbers, places = np.divmod(best.index.numpy(), N)
    where = np.stack(np.divmod(places, grid[1]), -1)
    return NearestPatches(image_numbers, where, best.similarity.clamp(-1, 1).numpy())


class _Best:
    """The k most similar of the candidates so far, per query."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.similarity = torch.empty(0, 0, dtype=torch.float64)
        self.index = torch.empty(0, 0, dtype=torch.int64)

    def add(self, similarity: Tensor, index: Tensor) -> None:
        """Consider candidates (Q, B), whose indices are larger than those of all before."""
        if len(self.similarity):
            similarity = torch.cat((self.similarity, similarity), 1)
            index = torch.cat((self.index, index), 1)
        # A stable sort keeps the order of equals, which topk does not promise.
        order = similarity.sort(dim=1, descending=True, stable=True).indices[:, : self.count]
        self.similarity, self.index = similarity.gather(1, order), index.gather(1, order)


def _directions(features: Tensor) -> Tensor:
    """Return features (..., F) scaled to norm 1, in float64 in main memory; zeros stay zeros."""
    return torch.nn.functional.normalize(features.detach().double().cpu(), dim=-1)


def _check(model: Any, count: int) -> None:
    if count < 1:
        raise ConfigError(f"count is {count} neighbours, it must be at least 1")
    if model.training:
        raise ConfigError("features of a model in training mode depend on dropout: call model.eval() first")
