"""Masked reconstruction beside classification (SSAT, arXiv 2310.20704): one loss of two passes through one encoder.

The whole image is classified; the visible patches of the same image are encoded alone, and a decoder predicts the
others. Where a stem lets patches show their neighbours, as convolutions do, the hidden patches have the mean colour
before the stem, so that no token knows of them. Images without a label are reconstructed alone.

Shapes: B batch, U unlabelled images, C channels, H x W pixels, (h, w) patches, N = h w patches, n of them visible,
K classes, V = values of a patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import MaskedLoss, Passes
from vitreous.errors import ConfigError
from vitreous.model.config import pair
from vitreous.train.config import RunConfig
from vitreous.train.multilabel.losses import TargetLoss
from vitreous.train.pretrain.base import check_dropping, take_rows
from vitreous.train.pretrain.mae import MaeDecoder, count_visible, draw_mask, hide_patches, mae_loss, patch_targets

__all__ = ["ReconstructionTask", "Terms"]

Terms = dict[tuple[str, int], tuple[Tensor, int]]
"""Mean of a term of the loss in a part of a batch, detached, and the number of its images; by name and first image."""

_NAMES = ("classification", "reconstruction", "unlabelled")
_SUMS = "sums of the epoch"  # no name of a weight


class ReconstructionTask(nn.Module):
    """What a training step needs for the second task: the decoder, which is trained but not saved with the model.

    Args:
        config: The run, whose `aux.method` is `mae`.
        per_step: Labelled and unlabelled images of a step. All count alike in the reconstruction.
        loss: Of logits and targets.

    Raises:
        ConfigError: If patches of the model cannot be left out, or the mask hides none of them.
    """

    sums: Tensor
    saved_sums: Tensor

    def __init__(
        self, config: RunConfig, per_step: tuple[int, int] = (1, 0), loss: TargetLoss = F.cross_entropy
    ) -> None:
        super().__init__()
        self.loss = loss
        self.options, model = config.aux, config.model
        check_dropping(model, "aux mae")
        self.patch, self.keeps_apart = pair(model.patch_size), model.stem.has_patch_kernel
        shares = (*config.augment.small_first, 1.0)
        sides = list(zip(pair(model.image_size), self.patch, strict=True))
        least = min(math.prod(round(side * share) // patch for side, patch in sides) for share in shares)
        if count_visible(least, self.options.mask) == least:
            raise ConfigError(
                f"aux.mask is {self.options.mask}, which hides none of {least} patches: use a larger one, or smaller "
                "patches"
            )
        self.decoder = MaeDecoder(model, self.options.mae)
        self.per_step = per_step
        self.register_buffer("sums", torch.zeros(2, len(_NAMES)), persistent=False)  # of terms, and of their images
        self.register_buffer("saved_sums", torch.zeros(2, len(_NAMES)), persistent=False)  # after the last whole step

    def loss_of(
        self, images: Tensor, targets: Tensor, weight: Tensor | None, terms: Terms | None = None
    ) -> tuple[MaskedLoss, Tensor | None]:
        """Draw a mask for a training batch, and return its loss and, if the stem needs them, the masked images.

        Args:
            images: Augmented and normalised, (B, C, H, W).
            targets: Distributions of the labels, (B, K), or several labels between 0 and 1.
            weight: Of each class in the loss of the labels, (K,).
            terms: Receives the terms of the loss.
        """
        kept, hidden = draw_mask(images, self.patch, self.options.mask)  # (B, n) and (B, N - n)
        share, here = self.options.weight, self.per_step[0] / sum(self.per_step)

        def loss_of(passes: Passes, part: slice) -> Tensor:
            loss = self.loss(passes("logits").float(), targets[part], weight=weight)
            error = self._error(passes, images[part], kept[part], hidden[part])
            if terms is not None:
                _note(terms, part, len(targets[part]), classification=loss, reconstruction=error)
            return (1 - share) * loss + share * here * error

        return loss_of, None if self.keeps_apart else hide_patches(images, hidden, self.patch)

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
            error = self._error(passes, images[part], kept[part], hidden[part])
            if terms is not None:
                _note(terms, part, len(images[part]), unlabelled=error)
            return weight * error

        return loss_of, images if self.keeps_apart else hide_patches(images, hidden, self.patch)

    def _error(self, passes: Passes, images: Tensor, kept: Tensor, hidden: Tensor) -> Tensor:
        """Return the mean squared error of the hidden patches of a part of a batch."""
        prediction = self.decoder(passes.encode_visible(kept), passes.grid, kept, hidden)  # (B, N - n, V)
        values = patch_targets(images, self.patch, self.options.normalise)  # (B, N, V)
        return mae_loss(prediction, take_rows(values, hidden))

    def begin_epoch(self) -> None:
        """Forget the terms of the epoch before."""
        self.sums.zero_()
        self.saved_sums.zero_()

    def record(self, terms: Terms) -> None:
        """Add the terms of a micro-batch to the sums of the epoch, in an order that threads do not change."""
        for (name, _), (mean, images) in sorted(terms.items(), key=lambda item: item[0]):
            column = _NAMES.index(name)
            self.sums[0, column] += mean * images
            self.sums[1, column] += images

    def end_step(self) -> None:
        """Note that a step is complete."""
        self.saved_sums.copy_(self.sums)

    def means(self) -> dict[str, float]:
        """Return the mean of each term over the images of the epoch so far."""
        total, images = self.sums.tolist()
        return {name: total[n] / images[n] for n, name in enumerate(_NAMES) if images[n]}

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of the terms."""
        return _NAMES if self.per_step[1] else _NAMES[:2]

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs: the decoder, and the sums of the epoch after its last whole step."""
        own = {**self.decoder.state_dict(), _SUMS: self.saved_sums}
        return {name: value.detach().to("cpu", copy=True) for name, value in own.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned; states of earlier versions have no sums."""
        self.decoder.load_state_dict({name: value for name, value in state.items() if name != _SUMS})
        self.saved_sums.copy_(state.get(_SUMS, torch.zeros(2, len(_NAMES))))
        self.sums.copy_(self.saved_sums)

    def describe(self) -> str:
        """Say what is reconstructed, and by what."""
        own, count = self.options, sum(p.numel() for p in self.decoder.parameters())
        labelled, others = self.per_step
        of_both = f", of {labelled:,} labelled and {others:,} unlabelled images per step" if others else ""
        return (
            f"reconstruction of {own.mask:.0%} of the patches{of_both}, weight {own.weight:g}; decoder "
            f"{self.decoder.width}x{own.decoder_depth}, {count / 1e6:.2g} M parameters, not saved"
        )


def _note(terms: Terms, part: slice, images: int, **means: Tensor) -> None:
    """Note the terms of a part of a batch."""
    for name, mean in means.items():
        terms[name, part.start or 0] = mean.detach().float(), images
