"""Which views of its images a run can show. Where they are few, the teacher's answers to them are computed once.

Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.data.augment.geometry import flip
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.batches.loaders import ImageLoaders
from vitreous.data.config import AugmentConfig

__all__ = ["Views", "choose_views"]


@dataclass(frozen=True)
class Views:
    """The views of each training image.

    Args:
        count: Number of views.
        are_flips: Whether they are the evaluation view and its mirror image, the latter alone if flips are certain;
            otherwise they are drawn by the seed, and shown one per epoch.
    """

    count: int
    are_flips: bool

    def shown(self, batch: Mapping[str, Any], augment: BatchAugment) -> Tensor:
        """Return which view of each image a training batch shows, int64 (B,)."""
        if self.are_flips and self.count == 2:
            return augment.mirrored(batch).long()
        view = 0 if self.are_flips else batch["epoch"] % self.count
        return torch.full((len(batch["images"]),), view, device=batch["images"].device)

    def images(self, loading: ImageLoaders, view: int, device: torch.device) -> Iterator[Tensor]:
        """Yield batches of one view of all training images, in order: normalised, (B, C, H, W)."""
        augment = loading.batch_augment
        for batch in loading.view_dataloader(view):
            moved = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
            if self.are_flips:
                images = moved["images"]
                mirrored = torch.full((len(images),), bool(view) or augment.config.flip == 1, device=device)
                yield augment.pipeline.normalise(flip(images, mirrored))
            else:  # at the end of the schedule, where images have their full size
                yield augment.augment_batch(moved, progress=1.0)[0]


def choose_views(augment: AugmentConfig, views: int | None) -> Views | None:
    """Return the views of a run with fixed ones, or with flips alone; None if every epoch draws new ones."""
    if views is not None:
        return Views(views, are_flips=False)
    moves = augment.pad_crop or augment.resized_crop < 1
    if augment.mixes or moves or augment.policy != "none" or augment.color_jitter or augment.erasing:
        return None
    return Views(2 if 0 < augment.flip < 1 else 1, are_flips=True)
