"""What all pretraining objectives have in common.

Shapes: B batch, C channels, H x W pixels, N patches, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitreous.accelerate.batch_parts import MaskedLoss
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig

__all__ = [
    "LossInParts",
    "Losses",
    "Objective",
    "Reconstruction",
    "check_dropping",
    "class_entropy",
    "entropy",
    "take_rows",
]


@dataclass(frozen=True, eq=False)
class Losses:
    """The loss of a batch, and what explains it."""

    loss: Tensor
    embeddings: Tensor  # (B, D) detached: what a collapse makes equal for all images
    features: Tensor | None = None  # (B, F) detached: those of the backbone, if the embeddings are others
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # terms of the loss, detached, if there are several


@dataclass(frozen=True, eq=False)
class LossInParts:
    """The loss of a batch that threads compute in parts (:func:`~vitreous.accelerate.batch_parts.add_gradients`)."""

    loss_of: MaskedLoss  # of a part, given the backbone's passes
    trained: tuple[nn.Parameter, ...]  # what is trained beside the backbone
    embeddings: dict[int, Tensor]  # as those of Losses, by the first image of each part: filled by `loss_of`
    shown: Tensor  # (B, C, H, W): what the stem gets, the view itself or one with hidden patches


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Images as the model sees them and as it completes them, in pixels from 0 to 255."""

    visible: Tensor  # (B, C, H, W), the hidden patches grey
    completed: Tensor  # (B, C, H, W), the hidden patches predicted


class Objective(nn.Module):
    """A backbone, the modules that only pretraining needs, and the loss that trains both.

    Every random number comes from torch's global generator, which a run seeds for each micro-batch.

    Args:
        backbone: The model to pretrain, without a head.
        pipeline: The evaluation pipeline, whose normalisation the images have.
        options: The options of the method, a dataclass.
    """

    reconstructs: ClassVar[bool] = False
    """Whether there is a :meth:`reconstruct`."""

    compares_images: ClassVar[bool] = False
    """Whether the loss has statistics of the images of a micro-batch, so that smaller ones change it."""

    trains_pool: ClassVar[bool] = True
    """Whether the loss reads pooled features, so that a pool with weights learns."""

    part_names: ClassVar[tuple[str, ...]] = ()
    """Names of the terms of the loss."""

    watched_in_warmup: ClassVar[bool] = True
    """Whether what :meth:`find_collapse` names is a collapse during warm-up too."""

    remedy: ClassVar[str] = "Lower --optim.lr, or lengthen --optim.warmup"
    """What to change after a collapse."""

    def __init__(self, backbone: FastVisionTransformer, pipeline: EvalPipeline, options: Any) -> None:
        super().__init__()
        self.backbone, self.pipeline, self.options = backbone, pipeline, options

    @property
    def trained_backbone(self) -> FastVisionTransformer:
        """The backbone to evaluate and save."""
        return self.backbone

    def check_scale(self, scale: float) -> None:
        """Refuse images of ``scale`` times the size if the method cannot use them."""

    def views(self, batch: Mapping[str, Any], augment: BatchAugment, progress: float) -> Sequence[Tensor]:
        """Return the normalised images that :meth:`forward` takes: by default one augmented view, (B, C, H, W)."""
        return (augment.augment_batch(batch, progress)[0],)

    def forward(self, views: Sequence[Tensor]) -> Losses:
        """Return the loss of a batch."""
        raise NotImplementedError

    def in_parts(self, views: Sequence[Tensor]) -> LossInParts | None:
        """Return the loss of a training batch for threads; None if it needs all images at once."""
        return None

    def after_update(self, progress: float) -> None:
        """Follow an update of the weights, when a fraction ``progress`` of the run is done."""

    def find_collapse(self, embeddings: Tensor) -> str | None:
        """Name the collapse that embeddings (B, D) of a training batch show, or return None."""
        return None

    def target_entropy(self, pixels: Tensor) -> tuple[float, str]:
        """Return the entropy in nats of what the loss asks for, on uint8 images (B, C, H, W), and what it is of.

        By default the other views of the same image are asked for, so it is the entropy of different images.
        """
        _, counts = torch.unique(pixels.flatten(1), dim=0, return_counts=True)
        return entropy(counts), "the images"

    def reconstruct(self, images: Tensor) -> Reconstruction:
        """Complete normalised images (B, C, H, W) of which patches are hidden."""
        raise NotImplementedError

    def to_pixels(self, images: Tensor) -> Tensor:
        """Return normalised images (B, C, H, W) as float pixels in [0, 255], uint8 pixels exactly as they were."""
        return (self.pipeline.denormalise(images) * 255).round().clamp(0, 255)


def check_dropping(config: ViTConfig, method: str) -> None:
    """Refuse a model whose encoder cannot run on visible patches alone."""
    if problems := list(config.attention.conflicts(config.position, 0.5)):
        raise ConfigError(f"{method} encodes visible patches alone, as patch_dropout does: {'; '.join(problems)}")


def entropy(counts: Tensor) -> float:
    """Return the entropy in nats of how often each of several things was counted."""
    shares = counts.double() / counts.sum()
    return float(-(shares * shares.log()).sum())


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows (B, k, V) of values (B, N, V) at indices (B, k)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def class_entropy(classes: Tensor, count: int) -> float:
    """Return the entropy in nats of class indices below ``count``."""
    counts = torch.bincount(classes.flatten(), minlength=count)
    return entropy(counts[counts > 0])
