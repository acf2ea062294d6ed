"""Masked reconstruction beside classification (SSAT, arXiv 2310.20704): one loss of two passes through one encoder.

The whole image is classified; the visible patches of the same image are encoded alone, and a decoder predicts the
others. Where a stem lets patches show their neighbours, as convolutions do, the hidden patches have the mean colour
before the stem, so that no token knows of them.

Shapes: B batch, C channels, H x W pixels, (h, w) patches, N = h w patches, n of them visible, K classes, V = values of
a patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import MaskedLoss, Passes
from vitreous.errors import ConfigError
from vitreous.model.config import pair
from vitreous.train.config import RunConfig
from vitreous.train.multilabel.losses import TargetLoss
from vitreous.train.pretrain.base import check_dropping, take_rows
from vitreous.train.pretrain.mae import MaeDecoder, count_visible, draw_mask, hide_patches, mae_loss, patch_targets

__all__ = ["ReconstructionTask"]


class ReconstructionTask(nn.Module):
    """What a training step needs for the second task: the decoder, which is trained but not saved with the model.

    Args:
        config: The run, whose `aux.method` is `mae`.
        loss: Of logits and targets.

    Raises:
        ConfigError: If patches of the model cannot be left out, or the mask hides none of them.
    """

    def __init__(self, config: RunConfig, loss: TargetLoss = F.cross_entropy) -> None:
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

    def loss_of(self, images: Tensor, targets: Tensor, weight: Tensor | None) -> tuple[MaskedLoss, Tensor | None]:
        """Draw a mask for a training batch, and return its loss and, if the stem needs them, the masked images.

        Args:
            images: Augmented and normalised, (B, C, H, W).
            targets: Distributions of the labels, (B, K), or several labels between 0 and 1.
            weight: Of each class in the loss of the labels, (K,).
        """
        kept, hidden = draw_mask(images, self.patch, self.options.mask)  # (B, n) and (B, N - n)
        share = self.options.weight

        def loss_of(passes: Passes, part: slice) -> Tensor:
            loss = self.loss(passes("logits").float(), targets[part], weight=weight)
            tokens = passes.encode_visible(kept[part])
            prediction = self.decoder(tokens, passes.grid, kept[part], hidden[part])  # (B, N - n, V)
            values = patch_targets(images[part], self.patch, self.options.normalise)  # (B, N, V)
            return (1 - share) * loss + share * mae_loss(prediction, take_rows(values, hidden[part]))

        return loss_of, None if self.keeps_apart else hide_patches(images, hidden, self.patch)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs: the decoder."""
        return {name: value.detach().to("cpu", copy=True) for name, value in self.decoder.state_dict().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the decoder of :meth:`state`."""
        self.decoder.load_state_dict(state)

    def describe(self) -> str:
        """Say what is reconstructed, and by what."""
        own, count = self.options, sum(p.numel() for p in self.decoder.parameters())
        return (
            f"reconstruction of {own.mask:.0%} of the patches, weight {own.weight:g}; decoder "
            f"{self.decoder.width}x{own.decoder_depth}, {count / 1e6:.2g} M parameters, not saved"
        )
