"""Operations that mix images with each other or with noise, and their targets: label smoothing, mixup, CutMix, erasing.

Shapes: B images, C channels, H x W pixels, K classes. Images are normalised floats.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["cutmix", "cutmix_box", "erase", "mixup", "partners", "smooth_targets"]


def smooth_targets(labels: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Return target distributions, float32 (B, K), for labels (B,), smoothed as by torch's CrossEntropyLoss.

    Of several labels, (B, K) of 0 and 1, each is smoothed towards 1/2 on its own. Floating-point labels are targets
    already, and stay as they are.
    """
    if labels.is_floating_point():
        return labels
    if labels.ndim == 2:
        return labels.float().mul_(1 - smoothing).add_(smoothing / 2)
    return F.one_hot(labels, num_classes).float().mul_(1 - smoothing).add_(smoothing / num_classes)


def partners(count: int, device: torch.device) -> Tensor:
    """Return the index of the image that each image is mixed with: pairs of neighbours (0, 1), (2, 3), ...

    The last of an odd number is paired with the first. The order of a batch is random already. Neighbours stay together
    when a step is cut into parts of even size, so gradient accumulation does not change the images.
    """
    index = torch.arange(count, device=device) ^ 1
    return torch.where(index < count, index, 0)


def mixup(images: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Blend each image and target, with ``weight``, with those of its partner (arXiv 1710.09412)."""
    partner = partners(len(images), images.device)
    return images.lerp(images[partner], 1 - weight), targets.lerp(targets[partner], 1 - weight)


def cutmix_box(weight: float, centre: tuple[float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the box that CutMix (arXiv 1905.04899) replaces: top, left, bottom, right in pixels, clipped.

    ``weight`` is the fraction of the image outside the box, before clipping; ``centre`` is y, x in [0, 1).
    """
    edges = []
    for position, extent in zip(centre, size, strict=True):
        side, middle = int(extent * (1 - weight) ** 0.5), int(position * extent)
        edges.append((max(middle - side // 2, 0), min(middle + side - side // 2, extent)))
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


def cutmix(images: Tensor, targets: Tensor, box: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """Paste the partner's pixels into the box, in place; mix targets by the exact pasted area."""
    top, left, bottom, right = box
    H, W = images.shape[2:]
    partner = partners(len(images), images.device)
    region = images[:, :, top:bottom, left:right]
    region.copy_(region.index_select(0, partner))  # faster than indexing
    return images, targets.lerp(targets[partner], (bottom - top) * (right - left) / (H * W))


def erase(images: Tensor, index: Tensor, boxes: Tensor, noise: Tensor, shift: Tensor) -> Tensor:
    """Return images (B, C, H, W) with a box of some overwritten with noise (arXiv 1708.04896, "random" mode).

    Args:
        images: Not modified.
        index: (M,) images to erase in.
        boxes: (M, 4) top, left, height, width in pixels.
        noise: 1-D, at least C H W plus the largest shift long. Every image reads a part of it, because fresh noise for
            every image would cost more than the rest of the augmentation.
        shift: (M,) where in the noise each image's part begins.
    """
    _, C, H, W = images.shape
    top, left, height, width = (side.view(-1, 1) for side in boxes.unbind(1))
    y, x = torch.arange(H, device=images.device), torch.arange(W, device=images.device)
    inside = ((y >= top) & (y < top + height))[:, None, :, None] & ((x >= left) & (x < left + width))[:, None, None, :]
    fresh = noise.unfold(0, C * H * W, 1)[shift].view(-1, C, H, W)
    return images.index_copy(0, index, torch.where(inside, fresh.to(images.dtype), images[index]))
