"""The Lightning module of a run with a second task, whose loss may have images without a label."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitreous.train.auxiliary.task import AuxTask, Terms
from vitreous.train.loop.module import VitModule

__all__ = ["AuxModule"]


class AuxModule(VitModule):
    """Trains a classifier and a second task at once.

    Besides the columns of any classifier, metrics.csv has the terms of the loss, with class weights but not weighted
    among each other:

    - `train_classification`: the cross-entropy of the labelled images in nats;
    - of `mae` `train_reconstruction`, the squared error on the same images, and, if there are any, `train_unlabelled`,
      that on the images without a label;
    - of `fixmatch` `train_pseudo`, the cross-entropy of the unlabelled images with a pseudo-label, and
      `train_confident`, their share.

    Args:
        auxiliary: The second task's part in the loss.
    """

    auxiliary: AuxTask

    def __init__(self, *arguments: Any, auxiliary: AuxTask, **options: Any) -> None:
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
        """Add the gradients of a micro-batch to those of its step, of labelled images and of the others."""
        terms: Terms = {}
        loss = self.auxiliary.add_gradients(self, batch, progress, terms)
        self.auxiliary.record(terms)
        return loss

    def after_update(self, progress: float) -> None:
        """Keep the sums of the epoch, which a checkpoint holds after a whole step only."""
        self.auxiliary.end_step()
