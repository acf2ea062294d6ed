"""The Lightning module: training steps and validation passes. You can also use it in your own Lightning script.

Optimisation is manual. Each step sets the learning rate, augments a batch, accumulates the gradients of its
micro-batches, clips them, and updates the weights only if the loss and the gradients are finite.

Shapes: B batch, C channels, H x W pixels, K classes, N images of a split.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from vitreous.accelerate.batch_parts import PartLoss, Passes, add_gradients, map_parts, num_parts
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import model_seed
from vitreous.errors import ConfigError
from vitreous.evaluate.scoring.any_labels import AnyScores, scores_of
from vitreous.machine.allocator import keep_freed_memory
from vitreous.train.config import OptimConfig
from vitreous.train.finetune.trainable import freeze_modules
from vitreous.train.loop.optim import build_optimizer, move_average, schedule, set_learning_rate
from vitreous.train.multilabel.losses import TargetLoss
from vitreous.train.resume.non_finite import FiniteWatch, Step

if TYPE_CHECKING:  # runs without a teacher or a second task do not import them
    from vitreous.train.auxiliary.task import AuxTask
    from vitreous.train.distil.distiller import Distiller

__all__ = ["VitModule"]


class VitModule(lightning.LightningModule):
    """Trains a classifier on the batches of :class:`~vitreous.data.batches.loaders.ImageLoaders`.

    A batch is the dict that :mod:`vitreous.data.batches.dataset` describes. Each epoch logs `train_loss`, `lr`, and
    every score of :meth:`~vitreous.evaluate.scoring.metrics.Scores.summary` with the prefix `val_`.

    On a CPU, some batches are split among threads (:mod:`vitreous.accelerate.batch_parts`). For these batches,
    Lightning calls no hooks around the backward pass, and forward hooks are called once per thread in evaluation.

    Args:
        model: Maps float images (B, C, H, W) to logits (B, K).
        optim: Optimiser and schedule.
        augment: Turns a training batch into augmented images and soft targets.
        pipeline: Normalises validation images.
        accumulate: Number of micro-batches per optimiser step, all of the same size. Must equal the `accumulate` of the
            data module.
        ema: Decay per step of a moving average of the weights. If given, the average is what gets validated and saved;
            None disables it. The decay rises as ``(1 + step) / (10 + step)`` up to this value, so that short runs
            forget their initial weights.
        class_weights: Weight of each class in the training loss, (K,), as in torch's ``CrossEntropyLoss(weight)``. The
            loss is averaged over images instead of weights, so that mixing and accumulation do not change how much an
            image counts. None weights all classes equally. Of several labels, the weight of each one's positives.
        loss: The mean loss of logits and targets, (B, K) each, with those weights.
        patches_last: Fraction of the run, at its end, that uses all patches of a model with patch dropout.
        progress: Maps the index of a step to the fraction of the run done before it; None derives it from the Trainer.
        distiller: The teacher's part in the loss. Without a teacher, the targets alone are learnt.
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
        loss: TargetLoss = F.cross_entropy,
        patches_last: float = 0.0,
        progress: Callable[[int], float] | None = None,
        distiller: Distiller | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.average = copy.deepcopy(model).requires_grad_(False).eval() if ema is not None else None
        self.distiller = distiller
        self.auxiliary: AuxTask | None = None  # a second task (auxiliary/module.py)
        self.optim = optim
        self.augment = augment
        self.pipeline = pipeline
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.loss = loss
        self.accumulate = accumulate
        self.ema = ema
        self.patches_last = patches_last
        self.progress = progress or self._trainer_progress
        self.scores: AnyScores | None = None  # of the last validation pass, like the logits and labels below
        self.logits = torch.empty(0, 0)  # float32 (N, K), on the CPU
        self.labels = torch.empty(0, dtype=torch.int64)  # (N,) or (N, K), on the CPU
        self.images_seen = self.steps_made = 0  # in the current epoch
        self.measures_start, self.start = False, dict[str, float]()  # measures before the first step, if it has any
        self.extra_seconds = 0.0  # what the last validation takes beyond its forward pass or beyond the one before it
        self.mean_extra_seconds = 0.0  # what a validation takes beyond its forward pass, on average over epochs
        self.is_consistent = True  # False while the optimiser updates the weights
        self._loss_sum: Tensor | float = 0.0
        self._sums_after_step: tuple[Tensor | float, int] = (0.0, 0)  # loss and images of the completed steps
        self._skip_batch = False
        self._micro_batches: list[tuple[dict[str, Any], Tensor]] = []  # batches of the current step with their losses
        self._buffer_names: list[str] = []  # state that a forward pass changes, such as batch norm's statistics
        self._buffers_before: dict[str, Tensor] = {}  # the values of these buffers before the current step
        self._evaluated_batches: list[tuple[Tensor, Tensor]] = []  # logits and labels

    @property
    def eval_model(self) -> nn.Module:
        """The model to validate and save: the moving average if there is one, otherwise the trained model."""
        return self.average if self.average is not None else self.model

    @property
    def extra(self) -> nn.Module | None:
        """What is trained beside the model and not saved with it."""
        return self.distiller

    @property
    def train_loss(self) -> float:
        """Mean training loss of the epoch so far in nats, on augmented images; NaN before the first step."""
        return float(self._loss_sum) / self.images_seen if self.images_seen else float("nan")

    @property
    def score_columns(self) -> dict[str, float]:
        """The scores of the last validation pass by their names in metrics.csv."""
        return {f"val_{name}": value for name, value in (self.scores.summary() if self.scores else {}).items()}

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last update. With muon, this is the rate of the AdamW part."""
        return float(cast(Any, self.optimizers()).optimizer.param_groups[-1]["lr"])

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of normalised images (B, C, H, W)."""
        return cast(Tensor, self.eval_model(images))

    def configure_optimizers(self) -> Optimizer:
        """Build the optimiser. :meth:`training_step` sets its learning rate from the schedule."""
        return build_optimizer(self.model, self.optim, self.extra)

    def on_train_start(self) -> None:
        """Start to watch for non-finite values. Lightning has moved the weights to their device by now."""
        if self.device.type == "cpu":
            keep_freed_memory()
        self._watch = FiniteWatch(self.model, auxiliary=self.auxiliary)
        parameters = {name for name, _ in self.model.named_parameters()}
        self._buffer_names = [name for name in self.model.state_dict() if name not in parameters]

    def on_train_epoch_start(self) -> None:
        """Reset the sums of the epoch, and set frozen modules to evaluation mode."""
        freeze_modules(self.model)
        self._loss_sum, self.images_seen, self.steps_made = 0.0, 0, 0
        self._sums_after_step = self._loss_sum, self.images_seen

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor | None:
        """Run one micro-batch and return its detached loss.

        The weights are updated after the last micro-batch of a step.
        """
        if self._skip_batch:
            self._skip_batch = False
            return None
        optimizer = cast(Any, self.optimizers())
        progress = self.progress(self.global_step)
        if not self._micro_batches:
            buffers = self.model.state_dict() if self._buffer_names else {}
            self._buffers_before = {name: buffers[name].clone() for name in self._buffer_names}
        if progress >= 1 - self.patches_last:
            self.model.patch_dropout = 0.0  # type: ignore[assignment]  # a plain attribute, not a tensor
        loss = self.compute_gradients(batch, progress)
        count = batch.get("whole", len(batch["images"]))  # one of several processes has a share of the images
        self._loss_sum = self._loss_sum + loss * count
        self.images_seen += count
        self._micro_batches.append((batch, loss))
        if (batch_idx + 1) % self.accumulate:
            return loss  # more micro-batches of this step follow

        set_learning_rate(optimizer.optimizer, schedule(self.optim, progress))
        batches, losses = zip(*self._micro_batches, strict=True)
        self._micro_batches = []
        step, lr, norm = self.global_step, self.learning_rate, self._clip_gradients()
        mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        # This raises an error if the loss or the gradient norm is not finite.
        self._watch.check(Step(batches, self.current_epoch, step, progress, lr, loss=mean, norm=norm))
        self.is_consistent = False
        optimizer.step()
        optimizer.zero_grad()
        self.after_update(progress)
        if self.average is not None and self.ema is not None:
            self._update_average(self.average, min(self.ema, (1 + step) / (10 + step)))
        self._buffers_before = {}
        self.steps_made += 1
        self._sums_after_step, self.is_consistent = (self._loss_sum, self.images_seen), True
        return loss

    def compute_gradients(self, batch: dict[str, Any], progress: float) -> Tensor:
        """Add the gradients of a micro-batch to those of its step, and return its mean loss, detached."""
        images, targets = self.augment.augment_batch(batch, progress)  # (B, C, H, W) and (B, K)
        torch.manual_seed(model_seed(self.augment.seed, batch))  # makes dropout a function of seed, epoch and step
        if self.distiller is not None:
            loss_of = self.distiller.loss_of(self.model, images, targets, batch, self.class_weights)
            return self.backpropagate_with(self.distiller, loss_of, images, targets)
        return self.backpropagate(images, targets, batch.get("whole", len(images)))

    def backpropagate(self, images: Tensor, targets: Tensor, count: int) -> Tensor:
        """Add the gradients of a micro-batch of `count` images, and return its mean loss."""
        parts, loss_of = num_parts(self.model, images), partial(self.loss, weight=self.class_weights)
        if parts > 1:
            model, scale = cast(FastVisionTransformer, self.model), 1 / self.accumulate
            of_part: PartLoss = lambda forward, at: loss_of(forward("logits").float(), targets[at])  # noqa: E731
            return add_gradients(model, images, targets, parts, scale=scale, loss_of=of_part)
        loss = loss_of(self.model(images).float(), targets)
        self.manual_backward(loss / self.accumulate)
        return loss.detach()

    def backpropagate_with(
        self, extra: nn.Module, loss_of: Any, images: Tensor, targets: Tensor, masked: Tensor | None = None
    ) -> Tensor:
        """Do as :meth:`backpropagate`, with the loss of an extra module that is trained too."""
        count, model = num_parts(self.model, images), cast(FastVisionTransformer, self.model)
        if count > 1:
            own: Any = {"scale": 1 / self.accumulate, "extra": tuple(extra.parameters()), "masked": masked}
            return add_gradients(model, images, targets, count, loss_of=loss_of, **own)
        whole = Passes.of(model, images, masked) if extra is self.auxiliary else partial(self.model, images)
        loss: Tensor = loss_of(whole, slice(None))
        self.manual_backward(loss / self.accumulate)
        return loss.detach()

    def after_update(self, progress: float) -> None:
        """Do what follows an update of the weights: nothing in classification."""

    def _clip_gradients(self) -> Tensor:
        """Clip the gradients if the configuration asks for it, and return their norm before clipping."""
        trained = (self.model,) if self.extra is None else (self.model, self.extra)
        parameters = [p for module in trained for p in module.parameters() if p.grad is not None]
        if self.optim.clip is None:
            return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        return torch.nn.utils.clip_grad_norm_(parameters, self.optim.clip)

    def _update_average(self, average: nn.Module, decay: float) -> None:
        move_average(average.state_dict(), self.model.state_dict(), decay)

    def _trainer_progress(self, step: int) -> float:
        """Return the fraction of the run that is done at the middle of a step.

        With the middle instead of the start or the end, no update has a learning rate of zero.
        """
        trainer = self.trainer
        per_epoch = trainer.num_training_batches // self.accumulate
        total = trainer.max_steps if trainer.max_steps > 0 else (trainer.max_epochs or -1) * per_epoch
        if not 0 < total < float("inf"):
            raise ConfigError("the schedule needs an end: give the Trainer max_epochs or max_steps, or pass progress")
        return (step + 0.5) / total

    def on_train_epoch_end(self) -> None:
        """Check the remaining steps for non-finite values, and log the training loss and learning rate."""
        self._watch.flush()
        self.log_dict({"train_loss": self.train_loss, "lr": self.learning_rate}, batch_size=1)

    def on_validation_start(self) -> None:
        """Check the steps so far: after one that was not finite, only the scores would fail, without a replay."""
        if self.trainer.state.fn == "fit":
            self.check_finite()

    def on_validation_epoch_start(self) -> None:
        """Discard logits that an interrupted pass has left."""
        self._evaluated_batches.clear()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Compute the logits of a batch."""
        self._evaluate_batch(self.eval_model, batch)

    def on_validation_epoch_end(self) -> None:
        """Compute and log the scores of the whole split."""
        self.log_dict({f"val_{name}": value for name, value in self._compute_scores().items()}, batch_size=1)

    on_test_epoch_start = on_validation_epoch_start

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Compute the logits of a batch in float32, the default precision of a saved model."""
        with torch.autocast(self.device.type, enabled=False):
            self._evaluate_batch(self.eval_model.forward, batch)  # calling a compiled model would compile it again

    def on_test_epoch_end(self) -> None:
        """Compute the scores of the whole split without logging them."""
        self._compute_scores()

    def _evaluate_batch(self, model: Callable[[Tensor], Tensor], batch: dict[str, Any]) -> None:
        images = self.pipeline.normalise(batch["images"])  # (B, C, H, W)
        count = num_parts(self.eval_model, images)
        logits = torch.cat(map_parts(self.eval_model, images, count)) if count > 1 else model(images)  # (B, K)
        self._evaluated_batches.append((logits.float().cpu(), batch["labels"].cpu()))

    def _compute_scores(self) -> dict[str, float]:
        self.logits, self.labels = self._collect_logits()  # (N, K) and (N,)
        self._evaluated_batches.clear()
        self.scores = scores_of(self.logits, self.labels)
        return self.scores.summary()

    def _collect_logits(self) -> tuple[Tensor, Tensor]:
        """Return the logits (N, K) and labels (N,) or (N, K) of the whole split, in its order."""
        logits, labels = zip(*self._evaluated_batches, strict=True)
        return torch.cat(logits), torch.cat(labels)

    # The methods below serve checkpoints (resume/).

    def epoch_sums(self) -> tuple[Tensor, int]:
        """Return the sum of losses (on the CPU) and the number of images, both over the epoch's completed steps."""
        loss_sum, images = self._sums_after_step
        return torch.as_tensor(loss_sum, dtype=torch.float32).detach().to("cpu", copy=True), images

    def continue_epoch(self, steps_made: int, loss_sum: Tensor, images_seen: int) -> None:
        """Resume within an epoch, in place of :meth:`on_train_epoch_start`, and skip the next batch.

        That batch is the last one of the last completed step. The data loader repeats it so that everything that
        follows a step happens again.

        Args:
            steps_made: Number of completed steps in the epoch, at least 1.
            loss_sum: Sum of losses after these steps, from :meth:`epoch_sums`.
            images_seen: Number of images in these steps, from :meth:`epoch_sums`.
        """
        freeze_modules(self.model)
        self.steps_made, self._skip_batch = steps_made, True
        self._loss_sum, self.images_seen = loss_sum.to(self.device), images_seen
        self._sums_after_step = self._loss_sum, self.images_seen

    def check_finite(self) -> None:
        """Raise a NonFiniteStepError if any step so far was not finite. Call this before saving."""
        self._watch.flush()

    @torch.no_grad()
    def discard_step(self) -> None:
        """Discard a step that failed before its update, and restore buffers that its forward passes changed."""
        buffers = self.model.state_dict()
        for name, before in self._buffers_before.items():
            buffers[name].copy_(before)
        self._buffers_before, self._micro_batches = {}, []
