"""Runs a model over many images, one batch after the other, for measures that need what is inside a pass.

Shapes: n images in all, B images of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.model.intermediates import Intermediates

__all__ = ["BATCH_SIZE", "Images", "batches", "passes"]

Images = Tensor | Iterable[Tensor]
"""Normalised images: one tensor (n, C, H, W), or an iterable of batches (B, C, H, W), such as a data loader's."""

BATCH_SIZE = 32
"""Images of one pass of an inspection."""


def batches(model: Any, images: Images, batch_size: int = BATCH_SIZE) -> Iterator[Tensor]:
    """Yield the images in batches (B, C, H, W), with the device and dtype of the model's weights.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast.
        images: A tensor is cut into batches; an iterable's batches stay as they are.
        batch_size: Largest B for a tensor, at least 1.

    Raises:
        ConfigError: If the batch size is below 1.
        DataError: If there are no images.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}, it must be at least 1")
    weight = model.patch_embed.proj.weight
    empty = True
    for batch in images.split(batch_size) if isinstance(images, Tensor) else images:
        if len(batch):
            empty = False
            yield batch.to(weight)
    if empty:
        raise DataError("there are no images to measure: pass at least one")


def passes(
    model: Any, images: Images, batch_size: int = BATCH_SIZE, layers: Sequence[int] | None = None
) -> Iterator[Intermediates]:
    """Yield the intermediate values of each batch, without gradients and without attention weights.

    Raises:
        ConfigError: If the model is in training mode or merges tokens, a layer does not exist, or an image does not
            fit.
        DataError: If there are no images, or the batches have images of different sizes.
    """
    grid: tuple[int, int] | None = None
    for batch in batches(model, images, batch_size):
        with torch.no_grad():
            values = model.intermediates(batch, layers)
        if grid not in (None, values.grid):
            raise DataError(f"images have {grid} and {values.grid} patches: all must have the same size in pixels")
        grid = values.grid
        yield values
