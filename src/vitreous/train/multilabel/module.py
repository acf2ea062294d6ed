"""The Lightning module of a run with several labels: the steps of any run, with another loss.

Shapes: B batch, C channels, H x W pixels, K labels.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from vitreous.accelerate.batch_parts import add_gradients, num_parts
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.train.module import VitModule
from vitreous.train.multilabel.config import LabelsConfig
from vitreous.train.multilabel.losses import label_loss

__all__ = ["LabelsModule"]


class LabelsModule(VitModule):
    """Trains a classifier of several labels; arguments as :class:`VitModule`, and the loss."""

    def __init__(self, *args: Any, labels: LabelsConfig, **options: Any) -> None:
        super().__init__(*args, **options)
        self.label_config = labels

    def _backward(self, images: Tensor, targets: Tensor, count: int) -> Tensor:
        """Add the gradients of a micro-batch of images (B, C, H, W) and targets (B, K), and return its mean loss."""
        parts = num_parts(self.model, images)
        if parts > 1:
            model, scale = cast(FastVisionTransformer, self.model), 1 / self.accumulate
            return add_gradients(
                model,
                images,
                targets,
                parts,
                scale=scale,
                loss_of=lambda forward, at: label_loss(self.label_config, forward("logits").float(), targets[at]),
            )
        loss = label_loss(self.label_config, self.model(images).float(), targets)
        self.manual_backward(loss / self.accumulate)
        return loss.detach()
