"""Several views of each image: random crops, each with its own augmentation; and the objectives that compare them.

Shapes: B batch, V views, V_g global ones, F features of the backbone, D outputs of the projector.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.augment.resized_crop import CROP_COLUMNS, crop_boxes
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import uniforms
from vitreous.errors import ConfigError
from vitreous.model.config import pair
from vitreous.train.pretrain.objectives.base import Objective

__all__ = ["MultiView", "ViewsConfig", "make_projector", "make_views"]

_SEED_STEP = 1_000_003  # between the seeds of two views


@dataclass(frozen=True)
class ViewsConfig:
    """The crops of an image whose representations are to agree, in visreg, lejepa and dino.

    Args:
        count: Number of large crops, at least 2. Their smallest area is `augment.resized_crop`.
        local: Number of further, small crops.
        local_size: Side of the small crops in pixels, a multiple of the patch. None: half the image, rounded to
            patches.
        local_area: Smallest and largest area of a small crop, as fractions of the image.
    """

    count: int = 2
    local: int = 0
    local_size: int | None = None
    local_area: tuple[float, float] = (0.05, 0.4)

    def __post_init__(self) -> None:
        """Check ranges, and report all problems in one error."""
        object.__setattr__(self, "local_area", tuple(self.local_area))
        problems = []
        if not 2 <= self.count <= 16:
            problems.append(f"views.count is {self.count}, it must be from 2 to 16")
        if not 0 <= self.local <= 32:
            problems.append(f"views.local is {self.local}, it must be from 0 to 32")
        if self.local_size is not None and self.local_size < 1:
            problems.append(f"views.local_size is {self.local_size}, it must be at least 1")
        if not 0 < self.local_area[0] <= self.local_area[1] <= 1:
            problems.append(f"views.local_area is {self.local_area}, it must be two rising fractions of the image")
        if problems:
            raise ConfigError("; ".join(problems))


def make_views(
    batch: Mapping[str, Any], augment: BatchAugment, views: ViewsConfig, local_size: tuple[int, int], progress: float
) -> list[Tensor]:
    """Return the views of a training batch, the large ones first, each (B, C, h, w).

    Each view has its own seed, so that a step's views depend on (seed, epoch, step) alone. Images of an evaluation
    batch, which have no ``aspect``, count as squares.
    """
    images, config = batch["images"], augment.config
    aspect = batch["aspect"].cpu().numpy() if "aspect" in batch else np.ones(len(images), np.float32)
    epoch, step, offset = (int(batch[name]) for name in ("epoch", "step", "offset"))
    found = []
    for view in range(views.count + views.local):
        is_local, seed = view >= views.count, augment.seed + _SEED_STEP * (view + 1)
        size = local_size if is_local else augment.pipeline.size
        low, high = views.local_area if is_local else (config.resized_crop, 1.0)
        draws = uniforms(seed, epoch, step, stream="crop", columns=CROP_COLUMNS, count=len(images), offset=offset)
        boxes = crop_boxes(draws, aspect, low, config.resized_crop_ratio, high)
        own = BatchAugment(config, replace(augment.pipeline, size=size), augment.num_classes, seed)
        on_device = torch.from_numpy(boxes).to(images.device)
        cut, _ = own(images, batch["labels"], epoch=epoch, step=step, progress=progress, offset=offset, boxes=on_device)
        found.append(cut)
    return found


class MultiView(Objective):
    """An objective on several views of each image, projected to an embedding each.

    Args:
        backbone: The model to pretrain.
        pipeline: Its evaluation pipeline.
        options: The options of the method.
        views: The crops.
    """

    compares_images = True

    def __init__(
        self, backbone: FastVisionTransformer, pipeline: EvalPipeline, options: Any, views: ViewsConfig
    ) -> None:
        super().__init__(backbone, pipeline, options)
        self.view_options, patch = views, pair(backbone.config.patch_size)
        half = tuple(max(p, side // 2 // p * p) for side, p in zip(pipeline.size, patch, strict=True))
        self.local_size = (half[0], half[1]) if views.local_size is None else (views.local_size, views.local_size)
        self.check_scale(1.0)

    def check_scale(self, scale: float) -> None:
        """Refuse small crops that patches do not fill."""
        patch, small = pair(self.backbone.config.patch_size), [round(side * scale) for side in self.local_size]
        if not self.view_options.local or all(
            side >= p and side % p == 0 for side, p in zip(small, patch, strict=True)
        ):
            return
        sides = f"{small[0]} x {small[1]}"
        made = (
            f"views.local_size is {sides}" if scale == 1 else f"augment.small_first {scale:g} makes small crops {sides}"
        )
        raise ConfigError(f"{made}, it must be a multiple of the patch, {patch[0]} x {patch[1]}")

    def views(self, batch: Mapping[str, Any], augment: BatchAugment, progress: float) -> Sequence[Tensor]:
        """Return the crops, the large ones first."""
        return make_views(batch, augment, self.view_options, self.local_size, progress)

    def features_of(self, model: FastVisionTransformer, views: Sequence[Tensor]) -> Tensor:
        """Return the features of views, (V, B, F); views of one size are computed together."""
        parts = []
        for _, alike in itertools.groupby(views, key=lambda view: view.shape):
            together = list(alike)
            features = model(torch.cat(together), "features")
            parts.append(features.view(len(together), -1, features.shape[-1]))
        return torch.cat(parts)


def make_projector(features: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return the projector of visreg and lejepa: two hidden layers with batch norm, and a linear layer."""
    layers: list[nn.Module] = []
    for width in (features, hidden):
        layers += [nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs))
