"""Geometric operations on batches: flips, padded crops, boxes to erase, affine maps.

Nothing is drawn here: :func:`erase_boxes` turns given random numbers into boxes. Random resized crops are in
resized_crop.py.

Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ERASE_COLUMNS", "Floats", "affine", "erase_boxes", "flip", "pad_crop"]

_TRIES = 10  # boxes to try, as in torchvision
ERASE_COLUMNS = 2 * _TRIES + 2
"""Random numbers per box to erase."""

Floats = npt.NDArray[np.float32]
"""Random numbers in [0, 1) or sizes in pixels."""


def flip(images: Tensor, mirrored: Tensor) -> Tensor:
    """Flip horizontally the images that ``mirrored`` (B,) marks; images (B, C, H, W) of any dtype."""
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


def pad_crop(images: Tensor, corner: Tensor, pad: int, mirrored: Tensor) -> Tensor:
    """Pad each image by reflection, cut a window of the original size, then flip the images marked in ``mirrored``.

    A single gather does all of this without materialising the padded images (B, C, H, W). ``corner`` (B, 2) are the top
    and left of the window in the padded image, integers in [0, 2 pad]; ``pad`` is below H and W.
    """
    B, C, H, W = images.shape
    y, x = torch.arange(H, device=images.device), torch.arange(W, device=images.device)
    x = torch.where(mirrored[:, None], W - 1 - x, x)  # (B, W)
    rows = _reflect(corner[:, :1] - pad + y, H)  # (B, H)
    columns = _reflect(corner[:, 1:] - pad + x, W)  # (B, W)
    index = (rows[:, :, None] * W + columns[:, None, :]).view(B, 1, H * W).expand(B, C, H * W)
    return images.reshape(B, C, H * W).gather(2, index).view(B, C, H, W)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Reflect indices outside [0, size) at the first and last pixel, which are not repeated."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def erase_boxes(uniform: Floats, size: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return the boxes of random erasing (arXiv 1708.04896): 2 to 33 % of the area, aspect ratio 0.3 to 3.3.

    The random numbers ``uniform`` are (B, ERASE_COLUMNS). The result is (B, 4): top, left, height and width in pixels
    of an image of ``size``. Height and width are 0 if none of 10 boxes fits.
    """
    H, W = size
    area = H * W * (0.02 + 0.31 * uniform[:, :_TRIES])
    ratio = np.exp(math.log(0.3) + math.log(3.3 / 0.3) * uniform[:, _TRIES : 2 * _TRIES])  # height / width
    height, width = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (height < H) & (width < W) & (height > 0) & (width > 0)
    first = fits.argmax(1)[:, None]
    has_fit = fits.any(1, keepdims=True)
    height, width = (np.where(has_fit, np.take_along_axis(side, first, 1), 0)[:, 0] for side in (height, width))
    top = np.floor(uniform[:, -2] * (H - height + 1))
    left = np.floor(uniform[:, -1] * (W - width + 1))
    return np.stack([top, left, height, width], 1).astype(np.int64)


def affine(images: Tensor, matrices: Tensor, fill: Tensor) -> Tensor:
    """Apply a bilinear affine map to each image; pixels from outside the image have the colour ``fill`` (C,).

    ``images`` and the result are uint8 (B, C, H, W); ``matrices`` (B, 2, 3) map output to input positions (x, y) in
    pixels, origin at the image centre.
    """
    H, W = images.shape[2:]
    # Coordinates of grid_sample range from -1 to 1 on both axes.
    scale = torch.tensor([[1, H / W, 2 / W], [W / H, 1, 2 / H]]).to(matrices.device, non_blocking=True)
    grid = F.affine_grid(matrices * scale, list(images.shape), align_corners=False)
    level = fill.view(1, -1, 1, 1)
    moved = F.grid_sample(images.float() - level, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (moved + level).round_().clamp_(0, 255).to(torch.uint8)
