"""The Lightning module of a run with a second task, whose loss may have images without a label."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from vitreous.accelerate.batch_parts import without_statistics
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.rng import model_seed
from vitreous.train.auxiliary.reconstruction import ReconstructionTask, Terms
from vitreous.train.module import VitModule

__all__ = ["AuxModule"]


class AuxModule(VitModule):
    """Trains a classifier and a second task at once.

    Besides the columns of any classifier, metrics.csv has `train_classification`, the cross-entropy of the labelled
    images in nats, `train_reconstruction`, the squared error on the same images, and, if there are any,
    `train_unlabelled`, that on the images without a label. None of them is weighted.

    Args:
        auxiliary: The second task's part in the loss.
    """

    auxiliary: ReconstructionTask

    def __init__(self, *arguments: Any, auxiliary: ReconstructionTask, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.auxiliary = auxiliary

    @property
    def extra(self) -> nn.Module:
        """The second task."""
        return self.auxiliary

    @property
    def score_columns(self) -> dict[str, float]:
        """The scores of the last validation pass, and the terms of the training loss in the epoch so far."""
        return super().score_columns | {f"train_{name}": mean for name, mean in self.auxiliary.means().items()}

    def on_train_epoch_start(self) -> None:
        """Reset the sums of the epoch."""
        super().on_train_epoch_start()
        self.auxiliary.begin_epoch()

    def compute_gradients(self, batch: dict[str, Any], progress: float) -> Tensor:
        """Add the gradients of a micro-batch to those of its step, first of the labelled images, then of the others."""
        images, targets = self.augment.augment_batch(batch, progress)  # (B, C, H, W) and (B, K)
        torch.manual_seed(model_seed(self.augment.seed, batch))
        terms: Terms = {}
        loss_of, masked = self.auxiliary.loss_of(images, targets, self.class_weights, terms)
        loss = self._backward_with(self.auxiliary, loss_of, images, targets, masked)
        if (others := batch.get("unlabelled")) is not None and len(others["images"]):
            loss = loss + self._learn_unlabelled(others, progress, terms)
        self.auxiliary.record(terms)
        return loss

    def _learn_unlabelled(self, batch: dict[str, Any], progress: float, terms: Terms) -> Tensor:
        """Add the gradients of the reconstruction of images without a label, and return its share in the loss."""
        no_class = torch.zeros(len(batch["images"]), dtype=torch.int64, device=batch["images"].device)
        images, no_targets = self.augment.augment_batch(batch | {"labels": no_class}, progress)
        loss_of, shown = self.auxiliary.unlabelled_loss_of(images, self.accumulate, terms)
        stem = cast(FastVisionTransformer, self.model).patch_embed
        with without_statistics(stem):  # hidden patches may be in `shown`
            return self._backward_with(self.auxiliary, loss_of, shown, no_targets)

    def after_update(self, progress: float) -> None:
        """Keep the sums of the epoch, which a checkpoint holds after a whole step only."""
        self.auxiliary.end_step()
