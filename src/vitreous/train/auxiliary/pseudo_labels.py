"""Learning from images without a label by the model's own confident predictions (FixMatch, arXiv 2001.07685).

The evaluated model, which is the moving average of the weights if there is one, predicts a class for each unlabelled
image. If its probability reaches a threshold, it becomes the label of the same image as augmented for training.
FixMatch's weak view is flipped and shifted; here it is the image as in evaluation. The strong view is the recipe's
usual augmentation, but that mixup and CutMix only mix pairs of images that both have a pseudo-label.

Shapes: B labelled images, U unlabelled ones, n of them with a pseudo-label, N = B + n, C channels, H x W pixels,
K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import MaskedLoss, Passes, map_parts, num_parts
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.rng import model_seed
from vitreous.errors import ConfigError
from vitreous.train.auxiliary.task import AuxTask, Terms, TrainingModule, add_terms, no_unlabelled_images
from vitreous.train.config import RunConfig
from vitreous.train.finetune.trainable import evaluating
from vitreous.train.multilabel.losses import TargetLoss

__all__ = ["PseudoLabelTask", "confident_targets", "predict"]


class PseudoLabelTask(AuxTask):
    """What a training step needs for pseudo-labels. It has no parameters.

    Args:
        config: The run, whose `aux.method` is `fixmatch`.
        per_step: Labelled and unlabelled images of a step.
        loss: Not used: the loss is the cross-entropy.
        several: Whether an image may have several labels.

    Raises:
        ConfigError: If there are no unlabelled images, or images have several labels.
    """

    names = ("classification", "pseudo", "confident")

    def __init__(
        self, config: RunConfig, per_step: tuple[int, int], loss: TargetLoss = F.cross_entropy, *, several: bool = False
    ) -> None:
        super().__init__(config, per_step)
        if several:
            raise ConfigError(
                "aux fixmatch gives an image one label, but here images have several: use aux mae or self-training"
            )
        if not per_step[1]:
            raise no_unlabelled_images(config)

    def add_gradients(self, module: TrainingModule, batch: Mapping[str, Any], progress: float, terms: Terms) -> Tensor:
        """Add the gradients of the labelled images and, after ``begin``, of the unlabelled ones, in one pass."""
        images, targets = module.augment.augment_batch(batch, progress)  # (B, C, H, W) and (B, K)
        others = batch.get("unlabelled")
        if others is not None and len(others["images"]) and progress >= self.options.begin:
            strong_views, pseudo_targets = self._pseudo_labelled(module, others, progress, terms)
            images = torch.cat((images, strong_views))  # (N, C, H, W)
            targets = torch.cat((targets, pseudo_targets))  # (N, K)
        torch.manual_seed(model_seed(module.augment.seed, batch))
        loss_of = self.loss_of(targets, len(batch["labels"]), module.accumulate, module.class_weights, terms)
        return module.backpropagate_with(self, loss_of, images, targets)

    def _pseudo_labelled(
        self, module: TrainingModule, batch: Mapping[str, Any], progress: float, terms: Terms
    ) -> tuple[Tensor, Tensor]:
        """Return the augmented images that get a pseudo-label, (n, C, H, W), with their targets, (n, K)."""
        probabilities = predict(module.eval_model, module.augment.without_augmentation(batch, progress))  # (U, K)
        labels = confident_targets(probabilities, self.options.threshold)  # (U, K)
        has_label = labels.any(1)  # U
        add_terms(terms, slice(0), len(labels), confident=has_label.float().mean())
        # All are augmented: the pairs that are mixed depend neither on the model nor on the micro-batches.
        images, targets = module.augment.augment_batch({**batch, "labels": labels}, progress)
        return images[has_label], targets[has_label]

    def loss_of(
        self,
        targets: Tensor,
        num_labelled: int,
        micro_batches: int,
        weight: Tensor | None,
        terms: Terms | None = None,
    ) -> MaskedLoss:
        """Return the loss of a training batch, whose mean over the ``micro_batches`` of a step is that of the step.

        Args:
            targets: Distributions of the labels, and behind them the pseudo-labels, (N, K).
            num_labelled: B.
            micro_batches: Their number per step.
            weight: Of each class, (K,).
            terms: Receives the terms of the loss.
        """
        count = len(targets)
        factors = targets.new_full((count,), self.options.pseudo_weight * micro_batches * count / self.per_step[1])
        factors[:num_labelled] = count / num_labelled

        def loss_of(passes: Passes, part: slice) -> Tensor:
            logits = passes("logits").float()
            losses = F.cross_entropy(logits, targets[part], weight, reduction="none")  # N
            if terms is not None:
                border = max(0, num_labelled - (part.start or 0))
                for name, own in (("classification", losses[:border]), ("pseudo", losses[border:])):
                    if len(own):
                        add_terms(terms, part, len(own), **{name: own.mean()})
            return (losses * factors[part]).mean()

        return loss_of

    def step_losses(
        self, model: FastVisionTransformer, images: Tensor, targets: Tensor, progress: float
    ) -> Iterator[tuple[float, Callable[[], Tensor]]]:
        """Yield the loss of labelled images and, after ``begin``, that of unlabelled ones with their prediction."""
        loss: Callable[[], Tensor] = lambda: F.cross_entropy(model(images).float(), targets)  # noqa: E731
        yield 1.0, loss
        if progress >= self.options.begin:

            def with_prediction() -> Tensor:
                predict(model, images)
                return loss()

            yield self.per_step[1] / self.per_step[0], with_prediction

    def describe(self) -> str:
        """Say which predictions are learnt, and from when on."""
        own, (labelled, others) = self.options, self.per_step
        after = f" after {own.begin:.0%} of the run" if own.begin else ""
        return (
            f"pseudo-labels of at least {own.threshold:.0%}{after}, of {labelled:,} labelled and {others:,} unlabelled "
            f"images per step, weight {own.pseudo_weight:g}"
        )


def confident_targets(probabilities: Tensor, threshold: float) -> Tensor:
    """Return the target of each image, (U, K): 1 for the likeliest class if that reaches the threshold, else zeros."""
    highest, classes = probabilities.max(1)
    return F.one_hot(classes, probabilities.shape[1]).float() * (highest >= threshold)[:, None]


def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Return the probabilities (U, K) of normalised images (U, C, H, W) in evaluation mode, without gradients."""
    with evaluating(model), torch.no_grad():
        parts = num_parts(model, images)
        logits = torch.cat(map_parts(cast(Any, model), images, parts)) if parts > 1 else model(images)
        return logits.float().softmax(1)
