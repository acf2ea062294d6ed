"""Masked reconstruction beside classification (SSAT, arXiv 2310.20704): one loss of two tasks for one encoder.

The visible patches of an image are encoded alone, and a decoder predicts the others. SSAT classifies the whole image in
a second pass. A cheaper way, the default, classifies the visible patches, as if the others were dropped, and ends with
a part of the run in which whole images are classified and nothing is reconstructed.

Where a stem lets patches show their neighbours, as convolutions do, the hidden patches have the mean colour before the
stem, so that no token knows of them. Images without a label are reconstructed alone.

Shapes: B batch, U unlabelled images, C channels, H x W pixels, (h, w) patches, N = h w patches, n of them visible,
K classes, V = values of a patch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import MaskedLoss, Passes, without_statistics
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.rng import model_seed
from vitreous.errors import ConfigError
from vitreous.model.config import pair
from vitreous.train.auxiliary.task import AuxTask, Terms, TrainingModule, add_terms
from vitreous.train.config import RunConfig
from vitreous.train.multilabel.losses import TargetLoss
from vitreous.train.pretrain.objectives.base import check_dropping, take_rows
from vitreous.train.pretrain.objectives.mae import (
    MaeDecoder,
    count_visible,
    draw_mask,
    hide_patches,
    mae_loss,
    patch_targets,
)

__all__ = ["ReconstructionTask", "check_model", "settle"]


def check_model(config: RunConfig) -> None:
    """Refuse a run whose model does not go with the task.

    Raises:
        ConfigError: If patches of the model cannot be left out, or the mask hides none of them.
    """
    check_dropping(config.model, "aux mae")
    sides = list(zip(pair(config.model.image_size), pair(config.model.patch_size), strict=True))
    shares = (*config.augment.small_first, 1.0)
    least = min(math.prod(round(side * share) // patch for side, patch in sides) for share in shares)
    if count_visible(least, config.aux.mask) == least:
        raise ConfigError(
            f"aux.mask is {config.aux.mask}, which hides none of {least} patches: use a larger one, or smaller patches"
        )


def settle(config: RunConfig) -> RunConfig:
    """Decide an `aux.method` of `auto`: mae on the labelled images, or none if mae is refused.

    A run that continues from another model has no second task: what it is worth there was not measured.
    """
    if config.tune.source is None:
        with contextlib.suppress(ConfigError):
            settled = replace(config, aux=replace(config.aux, method="mae", unlabelled_ratio=0.0))
            check_model(settled)
            return settled
    return replace(config, aux=replace(config.aux, method="none"))


class ReconstructionTask(AuxTask):
    """What a training step needs for the second task: the decoder, which is trained but not saved with the model.

    Args:
        config: The run, whose `aux.method` is `mae`.
        per_step: Labelled and unlabelled images of a step. All count alike in the reconstruction.
        loss: Of logits and targets.
        several: Whether an image may have several labels, which makes no difference here.

    Raises:
        ConfigError: As :func:`check_model`.
    """

    names = ("classification", "reconstruction", "unlabelled")

    def __init__(
        self,
        config: RunConfig,
        per_step: tuple[int, int] = (1, 0),
        loss: TargetLoss = F.cross_entropy,
        *,
        several: bool = False,
    ) -> None:
        super().__init__(config, per_step)
        check_model(config)
        self.loss, model = loss, config.model
        self.patch, self.keeps_apart = pair(model.patch_size), model.stem.has_patch_kernel
        self.decoder = MaeDecoder(model, self.options.mae)

    def add_gradients(self, module: TrainingModule, batch: Mapping[str, Any], progress: float, terms: Terms) -> Tensor:
        """Add those of the labelled images first, then those of the others."""
        images, targets = module.augment.augment_batch(batch, progress)  # (B, C, H, W) and (B, K)
        torch.manual_seed(model_seed(module.augment.seed, batch))
        if progress >= self.options.end:
            late = self.late_loss_of(targets, module.class_weights, terms)
            return module.backpropagate_with(self, late, images, targets)
        loss_of, shown, masked = self.loss_of(images, targets, module.class_weights, terms)
        loss = module.backpropagate_with(self, loss_of, shown, targets, masked)
        if (others := batch.get("unlabelled")) is not None and len(others["images"]):
            loss = loss + self._learn_unlabelled(module, others, progress, terms)
        return loss

    def _learn_unlabelled(
        self, module: TrainingModule, batch: Mapping[str, Any], progress: float, terms: Terms
    ) -> Tensor:
        """Add the gradients of the reconstruction of images without a label, and return its share in the loss."""
        no_class = torch.zeros(len(batch["images"]), dtype=torch.int64, device=batch["images"].device)
        images, no_targets = module.augment.augment_batch({**batch, "labels": no_class}, progress)
        loss_of, shown = self.unlabelled_loss_of(images, module.accumulate, terms)
        stem = cast(FastVisionTransformer, module.model).patch_embed
        with without_statistics(stem):  # hidden patches may be in `shown`
            return module.backpropagate_with(self, loss_of, shown, no_targets)

    def loss_of(
        self, images: Tensor, targets: Tensor, weight: Tensor | None, terms: Terms | None = None
    ) -> tuple[MaskedLoss, Tensor, Tensor | None]:
        """Draw a mask for a training batch, and return its loss, the images for the stem, and masked ones or None.

        Both are as :meth:`~vitreous.accelerate.batch_parts.Passes.of` takes them.

        Args:
            images: Augmented and normalised, (B, C, H, W).
            targets: Distributions of the labels, (B, K), or several labels between 0 and 1.
            weight: Of each class in the loss of the labels, (K,).
            terms: Receives the terms of the loss.
        """
        kept, hidden = draw_mask(images, self.patch, self.options.mask)  # (B, n) and (B, N - n)
        share, here = self.options.weight, self.per_step[0] / sum(self.per_step)
        sees_whole = self.options.classify == "whole"

        def loss_of(passes: Passes, part: slice) -> Tensor:
            z = passes.encode_visible(kept[part])
            logits = passes("logits") if sees_whole else passes.classify(z)
            loss = self.loss(logits.float(), targets[part], weight=weight)
            error = self._error(z, passes.grid, images[part], kept[part], hidden[part])
            if terms is not None:
                add_terms(terms, part, len(targets[part]), classification=loss, reconstruction=error)
            return (1 - share) * loss + share * here * error

        if self.keeps_apart:
            return loss_of, images, None
        masked = hide_patches(images, hidden, self.patch)
        return (loss_of, images, masked) if sees_whole else (loss_of, masked, None)

    def late_loss_of(self, targets: Tensor, weight: Tensor | None, terms: Terms | None = None) -> MaskedLoss:
        """Return the loss after ``end``, of classification alone, with the same factor as before."""

        def loss_of(passes: Passes, part: slice) -> Tensor:
            loss = self.loss(passes("logits").float(), targets[part], weight=weight)
            if terms is not None:
                add_terms(terms, part, len(targets[part]), classification=loss)
            return (1 - self.options.weight) * loss

        return loss_of

    def unlabelled_loss_of(self, images: Tensor, parts: int, terms: Terms | None = None) -> tuple[MaskedLoss, Tensor]:
        """Draw a mask for images without a label, and return their part in the loss and the images for the stem.

        The weight is such that the mean over the ``parts`` micro-batches of a step, with that of :meth:`loss_of`, has
        the mean error over all images of the step.

        Args:
            images: Augmented and normalised, (U, C, H, W).
            parts: Micro-batches per step.
            terms: Receives the term of the loss.
        """
        kept, hidden = draw_mask(images, self.patch, self.options.mask)  # (U, n) and (U, N - n)
        weight = self.options.weight * len(images) * parts / sum(self.per_step)

        def loss_of(passes: Passes, part: slice) -> Tensor:
            z = passes.encode_visible(kept[part])
            error = self._error(z, passes.grid, images[part], kept[part], hidden[part])
            if terms is not None:
                add_terms(terms, part, len(images[part]), unlabelled=error)
            return weight * error

        return loss_of, images if self.keeps_apart else hide_patches(images, hidden, self.patch)

    def _error(self, z: Tensor, grid: tuple[int, int], images: Tensor, kept: Tensor, hidden: Tensor) -> Tensor:
        """Return the mean squared error of the hidden patches, given the tokens of the others (B, P + n, D)."""
        prediction = self.decoder(z, grid, kept, hidden)  # (B, N - n, V)
        values = patch_targets(images, self.patch, self.options.normalise)  # (B, N, V)
        return mae_loss(prediction, take_rows(values, hidden))

    def step_losses(
        self, model: FastVisionTransformer, images: Tensor, targets: Tensor, progress: float
    ) -> Iterator[tuple[float, Callable[[], Tensor]]]:
        """Yield the loss of labelled images and, if there are any, that of unlabelled ones."""
        if progress >= self.options.end:
            late = self.late_loss_of(targets, None)
            yield 1.0, lambda: late(Passes.of(model, images), slice(None))
            return
        loss_of, seen, masked = self.loss_of(images, targets, None)
        yield 1.0, lambda: loss_of(Passes.of(model, seen, masked), slice(None))
        labelled, others = self.per_step
        if others:
            alone, shown = self.unlabelled_loss_of(images, 1)
            yield others / labelled, lambda: alone(Passes.of(model, shown), slice(None))

    @property
    def stored(self) -> nn.Module:
        """The decoder."""
        return self.decoder

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of the terms."""
        return self.names if self.per_step[1] else self.names[:2]

    def describe(self) -> str:
        """Say what is reconstructed, and by what."""
        own, count = self.options, sum(p.numel() for p in self.decoder.parameters())
        labelled, others = self.per_step
        of_both = f", of {labelled:,} labelled and {others:,} unlabelled images per step" if others else ""
        until = f" until {own.end:.0%} of the run" if own.end < 1 else ""
        return (
            f"reconstruction of {own.mask:.0%} of the patches{until}{of_both}, weight {own.weight:g}; decoder "
            f"{self.decoder.width}x{own.decoder_depth}, {count / 1e6:.2g} M parameters, not saved"
        )
