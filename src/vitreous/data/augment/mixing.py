"""What mixes images with each other or with noise, and the targets that go with it: smoothing, mixup, CutMix, erasing.

Shapes: B batch, C channels, H x W picture, K classes. Images are normalised floats.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["cutmix", "cutmix_box", "erase", "mixup", "partners", "smooth_targets"]


def smooth_targets(labels: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Target distributions: ``smoothing`` spread over all classes, the rest on the label, as torch's CrossEntropyLoss.

    Args:
        labels: (B,) class indices.
        num_classes: K.
        smoothing: Share in [0, 1).

    Returns:
        float32 (B, K), rows sum to 1.
    """
    return F.one_hot(labels, num_classes).float().mul_(1 - smoothing).add_(smoothing / num_classes)


def partners(count: int, device: torch.device) -> Tensor:
    """Whom each image of a batch is mixed with: its neighbour, in pairs (0, 1), (2, 3), ...

    The last one of an odd number gets the first. The order is random already, and neighbours stay together when a step
    is cut into parts of even size, so that gradient accumulation changes no image.
    """
    index = torch.arange(count, device=device) ^ 1
    return torch.where(index < count, index, 0)


def mixup(images: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Blend each image and target with its partner's (arXiv 1710.09412): ``share`` of its own."""
    other = partners(len(images), images.device)
    return images.lerp(images[other], 1 - share), targets.lerp(targets[other], 1 - share)


def cutmix_box(share: float, centre: tuple[float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Box that CutMix (arXiv 1905.04899) replaces: area 1 - share around a centre, cut at the borders.

    Args:
        share: Share of the image that stays, before the borders cut the box.
        centre: y, x in [0, 1).
        size: H, W.

    Returns:
        top, left, bottom, right in pixels.
    """
    edges = []
    for at, extent in zip(centre, size, strict=True):
        side, middle = int(extent * (1 - share) ** 0.5), int(at * extent)
        edges.append((max(middle - side // 2, 0), min(middle + side - side // 2, extent)))
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


def cutmix(images: Tensor, targets: Tensor, box: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """Paste the partner's pixels into the box, in place; targets are mixed by the exact area that was pasted."""
    top, left, bottom, right = box
    H, W = images.shape[2:]
    other = partners(len(images), images.device)
    pasted = images[:, :, top:bottom, left:right]
    pasted.copy_(pasted.index_select(0, other))  # half of the time of indexing
    return images, targets.lerp(targets[other], (bottom - top) * (right - left) / (H * W))


def erase(images: Tensor, which: Tensor, boxes: Tensor, noise: Tensor, shift: Tensor) -> Tensor:
    """Overwrite a box of some images with noise (arXiv 1708.04896, "random" mode).

    Args:
        images: (B, C, H, W); not changed.
        which: (M,) indices of the images to erase in.
        boxes: (M, 4) top, left, height, width in pixels.
        noise: 1-D, at least C H W + the largest shift long. Each image reads its own stretch of this one tape: drawing
            fresh noise for every image would cost more than the rest of the augmentation together.
        shift: (M,) where on the tape each image starts.
    """
    _, C, H, W = images.shape
    top, left, height, width = (side.view(-1, 1) for side in boxes.unbind(1))
    y, x = torch.arange(H, device=images.device), torch.arange(W, device=images.device)
    inside = ((y >= top) & (y < top + height))[:, None, :, None] & ((x >= left) & (x < left + width))[:, None, None, :]
    fresh = noise.unfold(0, C * H * W, 1)[shift].view(-1, C, H, W)
    return images.index_copy(0, which, torch.where(inside, fresh.to(images.dtype), images[which]))
