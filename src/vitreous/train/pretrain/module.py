"""The Lightning module of pretraining: the steps of any run, with an objective in the place of a classifier.

Shapes: B batch, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vitreous.accelerate.batch_parts import add_gradients, num_parts, without_statistics
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import model_seed
from vitreous.train.config import OptimConfig
from vitreous.train.finetune.trainable import evaluating
from vitreous.train.loop.module import VitModule
from vitreous.train.pretrain.monitor import CollapseWatch, FeatureMonitor
from vitreous.train.pretrain.objectives.base import Objective

__all__ = ["PretrainModule"]


class PretrainModule(VitModule):
    """Trains an objective. A validation pass computes its loss and its terms, and measures the features.

    Args:
        objective: What is trained.
        optim: Optimiser and schedule.
        augment: Augmentation of the training images.
        pipeline: Normalises validation images.
        monitor: Measures the features after each epoch.
        watch: Raises if training collapses; None lets it.
        probe_every: Epochs between two probes of the features.
        measures_start: Whether to measure the features before the first step, as of a model to continue from.
        accumulate: Number of micro-batches per step.
        progress: As :class:`~vitreous.train.loop.module.VitModule`.
    """

    def __init__(
        self,
        objective: Objective,
        optim: OptimConfig,
        augment: BatchAugment,
        pipeline: EvalPipeline,
        *,
        monitor: FeatureMonitor,
        watch: CollapseWatch | None,
        probe_every: int,
        measures_start: bool = False,
        accumulate: int = 1,
        progress: Callable[[int], float] | None = None,
    ) -> None:
        super().__init__(objective, optim, augment, pipeline, accumulate=accumulate, progress=progress)
        self.monitor, self.watch, self.probe_every = monitor, watch, probe_every
        self.measures_start = measures_start
        self._columns: dict[str, float] = {}
        self._sums: dict[str, Tensor] = {}  # of the validation pass, weighted by images
        self._validated = 0

    def on_train_start(self) -> None:
        """Measure the features that training starts from, and estimate how long that takes after training."""
        super().on_train_start()
        backbone = self.objective.trained_backbone
        with evaluating(backbone):
            if self.measures_start and self.global_step == 0 and not self.start:
                self.start = self.monitor.measure(backbone, probes=True)
                self.extra_seconds = self.monitor.rank_seconds + self.monitor.probe_seconds
            else:
                self.extra_seconds = self.monitor.estimate_seconds(backbone)
                self.monitor.probe_seconds = self.extra_seconds if self.monitor.has_labels else 0.0

    @property
    def objective(self) -> Objective:
        """What is trained."""
        return cast(Objective, self.model)

    @property
    def score_columns(self) -> dict[str, float]:
        """The validation loss, its terms, and the measures of the features."""
        return self._columns

    def compute_gradients(self, batch: dict[str, Any], progress: float) -> Tensor:
        """Add the gradients of a micro-batch, and look for a collapse."""
        views = self.objective.views(batch, self.augment, progress)
        torch.manual_seed(model_seed(self.augment.seed, batch))  # masks, slices and dropout
        loss, embeddings, features = self._learn(views)
        if self.watch is not None:
            self.watch.see(self.global_step, embeddings, features, in_warmup=progress < self.optim.warmup)
        return loss

    def _learn(self, views: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the gradients of a micro-batch, by threads if they can share it.

        Returns its loss, its embeddings, and the backbone's features if those are others (:class:`Losses`).
        """
        backbone, scale = self.objective.trained_backbone, 1 / self.accumulate
        count = num_parts(backbone, views[0])
        if count > 1 and (split := self.objective.in_parts(views)) is not None:
            own: Any = {"scale": scale, "loss_of": split.loss_of, "extra": split.trained}
            with without_statistics(backbone.patch_embed):  # hidden patches may be in `shown`
                loss = add_gradients(backbone, split.shown, split.shown, count, **own)
            return loss, torch.cat([rows for _, rows in sorted(split.embeddings.items())]), None
        found = self.objective(views)
        self.manual_backward(found.loss * scale)
        return cast(Tensor, found.loss.detach()), found.embeddings, found.features

    def after_update(self, progress: float) -> None:
        """Let the objective follow, as a teacher does."""
        self.objective.after_update(progress)

    def on_validation_epoch_start(self) -> None:
        """Discard the sums of an interrupted validation pass."""
        self._sums, self._validated = {}, 0

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Compute the loss of a batch, with the same masks and crops in every epoch."""
        views = self.objective.views(batch, self.augment, 1.0)
        torch.manual_seed(model_seed(self.augment.seed, batch))
        found, count = self.objective(views), len(batch["images"])
        for name, value in {"loss": found.loss, **found.parts}.items():
            self._sums[name] = self._sums.get(name, torch.zeros((), device=value.device)) + value.float() * count
        self._validated += count

    def on_validation_epoch_end(self) -> None:
        """Compute the columns of metrics.csv, and log them."""
        losses = {f"val_{name}": float(total) / self._validated for name, total in self._sums.items()}
        epoch = self.current_epoch
        is_last = self.trainer.should_stop
        probes = epoch == 0 or is_last or (epoch + 1) % self.probe_every == 0
        measures = self.monitor.measure(self.objective.trained_backbone, probes=probes)
        self.extra_seconds = 0.0 if probes else self.monitor.probe_seconds
        self.mean_extra_seconds = self.monitor.rank_seconds + self.monitor.probe_seconds / self.probe_every
        self._columns = {**losses, **measures}
        self.log_dict(self._columns, batch_size=1)
