"""Occlusion. Shapes: B batch, S patches of a chunk, (h, w) patches down and across, N = h w."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.inspection.maps.base import ClassMaps, MapMethod, chosen
from vitreous.model.part import Shape, pair
from vitreous.model.vit import VisionTransformer

__all__ = ["Occlusion"]


@dataclass(frozen=True)
class Occlusion(MapMethod):
    """`occlusion`: how far the logit falls when a patch is covered (arXiv 1311.2901, section 4.2).

    A covered patch is 0 after normalisation: the mean colour of the training images. Values are differences of logits,
    negative where the class gains. It costs as many forward passes as there are patches.

    Args:
        batch_size: Covered images per pass, at least 1.
    """

    kind = "occlusion"
    title = "Occlusion"
    batch_size: int = 32

    def problems(self, shape: Shape) -> Iterator[str]:
        if self.batch_size < 1:
            yield f"{self.kind}: batch_size is {self.batch_size}, it must be at least 1"

    @torch.no_grad()
    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        logits = model(images)
        targets = chosen(logits, targets)
        ph, pw = pair(model.config.patch_size)
        h, w = images.shape[2] // ph, images.shape[3] // pw
        covered = images.new_empty(len(images), h * w)  # logits of the targets
        places = torch.arange(len(images) * h * w, device=images.device)
        for chunk in places.split(self.batch_size):
            which, patch = chunk // (h * w), chunk % (h * w)  # S each
            some = images[which].unflatten(2, (h, ph)).unflatten(4, (w, pw))  # S C h ph w pw, a copy
            some[torch.arange(len(chunk), device=images.device), :, patch // w, :, patch % w] = 0
            found = model(some.flatten(4, 5).flatten(2, 3))
            covered[which, patch] = found.gather(1, targets[which, None])[:, 0].to(covered.dtype)
        whole = logits.gather(1, targets[:, None])  # B 1
        return ClassMaps((whole - covered).unflatten(1, (h, w)), logits, targets)
