"""What every second task has: its part in a training step, and the terms of the loss over an epoch.

A task is one file with a subclass of :class:`AuxTask`, and one line in :data:`TASKS`.

Shapes: B labelled images, K classes.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from vitreous.accelerate.batch_parts import MaskedLoss
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.errors import ConfigError
from vitreous.train.config import RunConfig
from vitreous.train.multilabel.losses import TargetLoss

__all__ = ["TASKS", "AuxTask", "Terms", "TrainingModule", "add_terms", "build_task", "no_unlabelled_images"]

TASKS = {
    "mae": "vitreous.train.auxiliary.reconstruction:ReconstructionTask",
    "fixmatch": "vitreous.train.auxiliary.pseudo_labels:PseudoLabelTask",
}
"""Values of the option `aux.method`, besides `none` and `auto`, with their classes."""

Terms = dict[tuple[str, int], tuple[Tensor, int]]
"""Mean of a term of the loss in a part of a batch, detached, and the number of its images; by name and first image."""

_SUMS = "sums of the epoch"  # no name of a weight


class TrainingModule(Protocol):
    """What a task uses of the Lightning module, :class:`~vitreous.train.auxiliary.module.AuxModule`."""

    model: nn.Module
    augment: BatchAugment
    class_weights: Tensor | None
    accumulate: int

    @property
    def eval_model(self) -> nn.Module:
        """The model to validate and save."""

    def backpropagate_with(
        self, extra: nn.Module, loss_of: MaskedLoss, images: Tensor, targets: Tensor, masked: Tensor | None = None
    ) -> Tensor:
        """Add the gradients of a micro-batch to those of its step, and return its loss."""


class AuxTask(nn.Module):
    """A second task; its parameters are trained with the model and not saved with it.

    Args:
        config: The run.
        per_step: Labelled and unlabelled images of a step.
    """

    names: ClassVar[tuple[str, ...]]
    """Names of the terms."""
    sums: Tensor
    saved_sums: Tensor

    def __init__(self, config: RunConfig, per_step: tuple[int, int]) -> None:
        super().__init__()
        self.options, self.per_step = config.aux, per_step
        self.register_buffer("sums", torch.zeros(2, len(self.names)), persistent=False)  # of terms and of their images
        self.register_buffer("saved_sums", torch.zeros(2, len(self.names)), persistent=False)  # after whole steps

    def add_gradients(self, module: TrainingModule, batch: Mapping[str, Any], progress: float, terms: Terms) -> Tensor:
        """Add the gradients of a micro-batch to those of its step.

        Args:
            module: Augments the images and runs the model.
            batch: As the loader yields it (:mod:`vitreous.data.batches.dataset`).
            progress: Fraction of the run done before the step.
            terms: Receives the terms of the loss.

        Returns:
            The mean loss, detached.
        """
        raise NotImplementedError

    def step_losses(
        self, model: FastVisionTransformer, images: Tensor, targets: Tensor, progress: float
    ) -> Iterator[tuple[float, Callable[[], Tensor]]]:
        """Yield the losses of a step, as functions, each with its number of images for each labelled one.

        They are for counting operations, on ``images`` (B, C, H, W), normalised, with ``targets`` (B, K).
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Say in one line what is learnt."""
        raise NotImplementedError

    def begin_epoch(self) -> None:
        """Forget the terms of the epoch before."""
        self.sums.zero_()
        self.saved_sums.zero_()

    def record(self, terms: Terms) -> None:
        """Add the terms of a micro-batch to the sums of the epoch, in an order that threads do not change."""
        for (name, _), (mean, images) in sorted(terms.items(), key=lambda item: item[0]):
            column = self.names.index(name)
            self.sums[0, column] += mean * images
            self.sums[1, column] += images

    def end_step(self) -> None:
        """Note that a step is complete."""
        self.saved_sums.copy_(self.sums)

    def means(self) -> dict[str, float]:
        """Return the mean of each term over the images of the epoch so far."""
        total, images = self.sums.tolist()
        return {name: total[n] / images[n] for n, name in enumerate(self.names) if images[n]}

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of the terms that this run has."""
        return self.names

    @property
    def stored(self) -> nn.Module:
        """The module whose weights a checkpoint holds."""
        return self

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs: parameters, and the sums of the epoch after its last whole step."""
        own = {**self.stored.state_dict(), _SUMS: self.saved_sums}
        return {name: value.detach().to("cpu", copy=True) for name, value in own.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned; states of earlier versions have no sums."""
        self.stored.load_state_dict({name: value for name, value in state.items() if name != _SUMS})
        self.saved_sums.copy_(state.get(_SUMS, torch.zeros_like(self.saved_sums)))
        self.sums.copy_(self.saved_sums)


def no_unlabelled_images(config: RunConfig) -> ConfigError:
    """Return the error of a method that only learns from images without a label, where there are none."""
    method, given = config.aux.method, config.aux.unlabelled
    remedy = "name some with `--unlabelled`, or leave their labels empty in the manifest"
    if given is None:
        return ConfigError(f"aux {method} learns from images without a label, and there are none: {remedy}")
    return ConfigError(
        f"aux {method} learns from images without a label, and of {given} none is left: those of val or test, those "
        "that are also in DATA, and those that cannot be read are left out. Name others with `--unlabelled`"
    )


def build_task(config: RunConfig, per_step: tuple[int, int], loss: TargetLoss, *, several: bool) -> AuxTask:
    """Build the second task of a run.

    Args:
        config: The run, whose `aux.method` is in :data:`TASKS`.
        per_step: Labelled and unlabelled images of a step.
        loss: Of logits and targets.
        several: Whether an image may have several labels.

    Raises:
        ConfigError: If the task does not suit the model or the data.
    """
    task: AuxTask = pkgutil.resolve_name(TASKS[config.aux.method])(config, per_step, loss, several=several)
    return task


def add_terms(terms: Terms, part: slice, images: int, **means: Tensor) -> None:
    """Note the terms of a part of a batch."""
    for name, mean in means.items():
        terms[name, part.start or 0] = mean.detach().float(), images
