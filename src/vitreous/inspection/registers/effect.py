"""What a test-time register changes: the norms of tokens, and the accuracy on labelled images (arXiv 2506.08010).

Shapes: n images, C channels, H x W pixels, L blocks, T tokens, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.multilabel.metrics import mean_average_precision
from vitreous.inspection.norms import TokenNorms, token_norms
from vitreous.inspection.passes import BATCH_SIZE
from vitreous.inspection.registers.neurons import RegisterNeurons, register_neurons
from vitreous.inspection.registers.test_time import move_to_register
from vitreous.model.vit import VisionTransformer

__all__ = ["RegisterEffect", "register_effect"]


@dataclass(frozen=True, eq=False)
class RegisterEffect:
    """A model with and without a test-time register.

    Attributes:
        found: The register neurons that moved; none if the model has no outliers, or no neuron causes them.
        before: Norms of the model's tokens, (L, n, T).
        after: Norms with the register, which is the last prefix token, (L, n, T + 1); those of ``before`` if nothing
            moved.
        accuracy: Top-1 without and with the register, in [0, 1]; None without labelled images.
        scored_images: Number of labelled images.
        several: Whether an image may have several labels, so that `accuracy` has mAP.
    """

    found: RegisterNeurons
    before: TokenNorms
    after: TokenNorms
    accuracy: tuple[float, float] | None = None
    scored_images: int = 0
    several: bool = False

    @property
    def moved(self) -> bool:
        """Whether any neuron moved to a register."""
        return bool(self.found.neurons)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; norms as their largest patch and the register after each block."""
        measure = "mean_ap" if self.several else "accuracy"
        register = self.after.norms[:, :, self.after.prefix_tokens - 1].mean(1).tolist() if self.moved else None
        return {
            **self.found.to_dict(),
            "largest_patch_before": self.before.patches.max((1, 2)).tolist(),
            "largest_patch_after": self.after.patches.max((1, 2)).tolist(),
            "outliers_before": int(self.before.outliers().mask.sum()),
            "outliers_after": int(self.after.outliers().mask.sum()),
            "mean_register_after": register,
            f"{measure}_before": None if self.accuracy is None else self.accuracy[0],
            f"{measure}_after": None if self.accuracy is None else self.accuracy[1],
            "scored_images": self.scored_images,
        }


def register_effect(
    model: Any,
    images: Tensor,
    labelled: tuple[Tensor, Tensor] | None = None,
    *,
    max_neurons: int = 10,
    batch_size: int = BATCH_SIZE,
) -> tuple[RegisterEffect, VisionTransformer]:
    """Move the outlier tokens of a model to a test-time register, and measure what that changes.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised images to find the register neurons with and to measure norms on, (n, C, H, W).
        labelled: Normalised images and their classes, integers (n,), or several labels, (n, K) of 0 and 1, to score;
            they may be others. None scores nothing.
        max_neurons: As in :func:`~vitreous.inspection.registers.neurons.register_neurons`.
        batch_size: Images per pass.

    Returns:
        The effect, and the model with the register: the model itself if there is nothing to move.

    Raises:
        ConfigError: If a value is out of range, the model is in training mode or merges tokens, its MLP is of another
            class, or the images do not fit.
        DataError: If there are no images, or labels do not match them.
    """
    if labelled is not None and len(labelled[0]) != len(labelled[1]):
        raise DataError(f"{len(labelled[0])} images have {len(labelled[1])} labels: give one label per image")
    if labelled is not None and not model.config.num_classes:
        raise ConfigError("the model has no classes, so it has no accuracy: leave out the labelled images")
    found = register_neurons(model, images, max_neurons=max_neurons, batch_size=batch_size)
    before = token_norms(model, images, batch_size)
    changed = move_to_register(model, found.neurons) if found.neurons else model
    after = token_norms(changed, images, batch_size) if found.neurons else before
    if labelled is None or not len(labelled[0]):
        return RegisterEffect(found, before, after), changed
    first = _score(model, *labelled, batch_size)
    second = _score(changed, *labelled, batch_size) if found.neurons else first
    several = labelled[1].ndim == 2
    return RegisterEffect(found, before, after, (first, second), len(labelled[0]), several), changed


@torch.no_grad()
def _score(model: Any, images: Tensor, labels: Tensor, batch_size: int) -> float:
    """Return the top-1 accuracy, or the mAP of several labels, in [0, 1]."""
    weight = model.patch_embed.proj.weight
    logits = torch.cat([model(part.to(weight)).float().cpu() for part in images.split(batch_size)])
    if labels.ndim == 2:
        return mean_average_precision(logits.numpy(), labels.cpu().numpy())
    return float((logits.argmax(1) == labels.cpu()).double().mean())
