"""The Lightning module: one optimiser step, one validation pass. Thin, and usable in any Lightning script.

Optimisation is manual, because a step here is: set the rate, augment the whole batch, accumulate its parts, clip, look
whether all is finite, only then update. What happens around the steps lives in callbacks.py and run.py.

Shapes: B batch, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from vitreous.accelerate.shares import add_gradients, of_each_share, shares
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import model_seed
from vitreous.errors import ConfigError
from vitreous.evaluate.metrics import Scores, evaluate
from vitreous.machine.allocator import keep_freed_memory
from vitreous.model.vit import VisionTransformer
from vitreous.train.config import OptimConfig
from vitreous.train.finetune.trainable import still
from vitreous.train.optim import build_optimizer, schedule, set_learning_rate
from vitreous.train.resume.non_finite import FiniteWatch

__all__ = ["VitModule"]


class VitModule(lightning.LightningModule):
    """Trains a classifier on the batches of :class:`~vitreous.data.batches.data_module.ImageDataModule`.

    A batch is the raw dict that :mod:`vitreous.data.batches.dataset` describes. Logged per epoch: `train_loss`, `lr`, and
    `val_` and each score of :meth:`~vitreous.evaluate.metrics.Scores.summary`.

    On a CPU some batches are taken in shares (:mod:`vitreous.accelerate.shares`): in training a Trainer's hooks before and
    after the backward pass, and forward hooks of the model itself, are not called for these; in evaluation the latter
    are, once for each share, in its thread.

    Before each step the global generator is seeded from (seed, epoch, step), for dropout and the like.

    Args:
        model: Maps float images (B, C, H, W) to logits (B, K).
        optim: Optimiser and schedule.
        augment: Makes the training images and soft targets of a batch.
        pipeline: Normalises validation images.
        accumulate: Batches, all of one size, that make one update, as the data module's `accumulate`.
        ema: Decay per step of an average of the weights, which is then what is validated; None is off. The decay
            rises as ``(1 + step) / (10 + step)`` until it gets there, so that short runs forget their first weights.
        class_weights: Weight of each class in the training loss, (K,): the term of class k in a target counts so many
            times, as in torch's ``CrossEntropyLoss(weight)``, but the mean is taken over images, not weights, so that
            neither mixing nor accumulation changes what an image counts. None: all count 1.
        patches_last: Share of the run, at its end, in which a model that drops patches keeps all of them.
        progress: Gives the share of the run that is done, in [0, 1], before a step; None counts the Trainer's steps.

    Attributes:
        scores: Of the last validation pass.
        logits: Its logits (N, K), float32 on the CPU, in the order of the split.
        labels: The true classes (N,) beside them.
        images_seen: Training images of the epoch so far.
        steps_made: Optimiser steps of the epoch so far.
        whole: Whether the weights are those after `steps_made` steps: false while an update is being made.
    """

    def __init__(
        self,
        model: nn.Module,
        optim: OptimConfig,
        augment: BatchAugment,
        pipeline: EvalPipeline,
        *,
        accumulate: int = 1,
        ema: float | None = None,
        class_weights: Tensor | None = None,
        patches_last: float = 0.0,
        progress: Callable[[int], float] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.average = copy.deepcopy(model).requires_grad_(False).eval() if ema is not None else None
        self.optim = optim
        self.augment = augment
        self.pipeline = pipeline
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.accumulate = accumulate
        self.ema = ema
        self.patches_last = patches_last
        self.progress = progress or self._share_of_steps
        self.scores: Scores | None = None
        self.logits, self.labels = torch.empty(0, 0), torch.empty(0, dtype=torch.int64)
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._loss_sum: Tensor | float = 0.0
        self.images_seen = self.steps_made = 0
        self.whole = True
        self._sums: tuple[Tensor | float, int] = (0.0, 0)
        self._repeats = False
        self._counting: list[str] = []  # names of what a forward pass changes: batch norm's statistics
        self._before: dict[str, Tensor] = {}  # these before the step that is being made
        self._step: list[tuple[dict[str, Any], Tensor]] = []  # batches of the step so far, and their losses

    @property
    def evaluated(self) -> nn.Module:
        """The model whose weights are validated and saved: the average where there is one."""
        return self.average if self.average is not None else self.model

    @property
    def train_loss(self) -> float:
        """Mean loss of the epoch so far, of augmented pictures and smoothed targets, in nats; NaN before a step."""
        return float(self._loss_sum) / self.images_seen if self.images_seen else float("nan")

    @property
    def learning_rate(self) -> float:
        """Of the latest update; with muon, of its AdamW part."""
        return float(cast(Any, self.optimizers()).optimizer.param_groups[-1]["lr"])

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of normalised images (B, C, H, W)."""
        return cast(Tensor, self.evaluated(images))

    def configure_optimizers(self) -> Optimizer:
        """Build the optimiser; the schedule is applied by the steps themselves."""
        return build_optimizer(self.model, self.optim)

    def on_train_start(self) -> None:
        """Start the watch, now that the weights are where they stay."""
        if self.device.type == "cpu":
            keep_freed_memory()
        self._watch = FiniteWatch(self.model)
        learned = {name for name, _ in self.model.named_parameters()}
        self._counting = [name for name in self.model.state_dict() if name not in learned]

    def on_train_epoch_start(self) -> None:
        """Start the epoch's mean loss, with frozen parts as in evaluation."""
        still(self.model)
        self._loss_sum, self.images_seen, self.steps_made = 0.0, 0, 0
        self._sums = self._loss_sum, self.images_seen

    def epoch_sums(self) -> tuple[Tensor, int]:
        """Sum of the losses of the epoch's images up to the last whole step, on the CPU, and the number of these."""
        loss_sum, images = self._sums
        return torch.as_tensor(loss_sum, dtype=torch.float32).detach().to("cpu", copy=True), images

    def continue_epoch(self, steps_made: int, loss_sum: Tensor, images_seen: int) -> None:
        """Go on within an epoch: instead of its start, and with the last batch of its last step, which is passed over.

        Args:
            steps_made: At least 1.
            loss_sum: As :meth:`epoch_sums` gave it.
            images_seen: Beside it.
        """
        still(self.model)
        self.steps_made, self._repeats = steps_made, True
        self._loss_sum, self.images_seen = loss_sum.to(self.device), images_seen
        self._sums = self._loss_sum, self.images_seen

    def look(self) -> None:
        """See that all steps so far were finite, before anything is kept of them."""
        self._watch.flush()

    @torch.no_grad()
    def take_back(self) -> None:
        """Forget a step that was broken off before its update, with what its forward passes counted."""
        stored = self.model.state_dict()
        for name, before in self._before.items():
            stored[name].copy_(before)
        self._before, self._step = {}, []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor | None:
        """Compute one part of a step, make the update after the last part, and return the detached loss of the part."""
        if self._repeats:
            self._repeats = False
            return None
        wrapped = cast(Any, self.optimizers())
        progress = self.progress(self.global_step)
        if not self._step:
            stored = self.model.state_dict() if self._counting else {}
            self._before = {name: stored[name].clone() for name in self._counting}
        if progress >= 1 - self.patches_last:
            self.model.patch_dropout = 0.0  # type: ignore[assignment]  # an attribute of VisionTransformer, no tensor
        images, targets = self.augment.of_batch(batch, progress)
        torch.manual_seed(model_seed(self.augment.seed, batch))
        loss = self._backward(images, targets)
        self._loss_sum = self._loss_sum + loss * len(images)
        self.images_seen += len(images)
        self._step.append((batch, loss))
        if (batch_idx + 1) % self.accumulate == 0:
            self._update(wrapped, progress)
        return loss

    def _backward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Add the gradient of one part of a step, and return its mean loss."""
        count = shares(self.model, images)
        if count > 1:
            scale = 1 / self.accumulate
            model = cast(VisionTransformer, self.model)
            return add_gradients(model, images, targets, count, weight=self.class_weights, scale=scale)
        loss = F.cross_entropy(self.model(images).float(), targets, weight=self.class_weights)
        self.manual_backward(loss / self.accumulate)
        return loss.detach()

    def _update(self, wrapped: Any, progress: float) -> None:
        """Make the step whose gradient is there, unless it is not finite."""
        set_learning_rate(wrapped.optimizer, schedule(self.optim, progress))
        batches, losses = zip(*self._step, strict=True)
        self._step = []
        step, rate, norm = self.global_step, self.learning_rate, self._clip()
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        self._watch.check(
            batches, epoch=self.current_epoch, step=step, progress=progress, lr=rate, loss=loss, norm=norm
        )
        self.whole = False
        wrapped.step()
        wrapped.zero_grad()
        if self.average is not None and self.ema is not None:
            self._update_average(self.average, min(self.ema, (1 + step) / (10 + step)))
        self._before = {}
        self.steps_made, self._sums, self.whole = self.steps_made + 1, (self._loss_sum, self.images_seen), True

    def on_train_epoch_end(self) -> None:
        """Look at the last steps and log the epoch's training loss and rate."""
        self._watch.flush()
        self.log_dict({"train_loss": self.train_loss, "lr": self.learning_rate}, batch_size=1)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Keep the logits of a batch."""
        self._keep(self.evaluated, batch)

    def on_validation_epoch_start(self) -> None:
        """Forget the logits of an earlier pass that was broken off."""
        self._parts.clear()

    def on_validation_epoch_end(self) -> None:
        """Score the split as a whole and log it."""
        self.log_dict({f"val_{name}": value for name, value in self._score().items()}, batch_size=1)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Keep the logits of a batch in float32, as whoever uses the saved model will compute them."""
        with torch.autocast(self.device.type, enabled=False):
            self._keep(self.evaluated.forward, batch)  # a compiled call would be compiled anew for it

    on_test_epoch_start = on_validation_epoch_start

    def on_test_epoch_end(self) -> None:
        """Score the split as a whole; the test split is no part of the logs."""
        self._score()

    def _keep(self, model: Callable[[Tensor], Tensor], batch: dict[str, Any]) -> None:
        images = self.pipeline.normalise(batch["images"])
        count = shares(self.evaluated, images)
        logits = torch.cat(of_each_share(self.evaluated, images, count)) if count > 1 else model(images)  # (B, K)
        self._parts.append((logits.float().cpu(), batch["labels"].cpu()))

    def _score(self) -> dict[str, float]:
        logits, labels = zip(*self._parts, strict=True)
        self._parts.clear()
        self.logits, self.labels = torch.cat(logits), torch.cat(labels)
        self.scores = evaluate(self.logits, self.labels)
        return self.scores.summary()

    def _clip(self) -> Tensor:
        """Limit the gradient norm where asked, and return what it was before."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if self.optim.clip is None:
            return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        return torch.nn.utils.clip_grad_norm_(parameters, self.optim.clip)

    @torch.no_grad()
    def _update_average(self, average: nn.Module, decay: float) -> None:
        """Move the averaged weights, and batch norm's statistics, towards the current ones."""
        averaged, current = average.state_dict(), self.model.state_dict()
        floats = [name for name, value in averaged.items() if value.is_floating_point()]
        torch._foreach_lerp_([averaged[n] for n in floats], [current[n] for n in floats], 1 - decay)
        for name in averaged.keys() - set(floats):
            averaged[name].copy_(current[name])

    def _share_of_steps(self, step: int) -> float:
        """The middle of a step as a share of all, so that neither the first nor the last update has rate zero."""
        trainer = self.trainer
        per_epoch = trainer.num_training_batches // self.accumulate
        total = trainer.max_steps if trainer.max_steps > 0 else (trainer.max_epochs or -1) * per_epoch
        if not 0 < total < float("inf"):
            raise ConfigError("the schedule needs an end: give the Trainer max_epochs or max_steps, or pass progress")
        return (step + 0.5) / total
