"""Moving pixels of whole batches: flips, reflect-padded crops, random resized crops and affine maps.

No chance is drawn here: :func:`crop_boxes` and :func:`erase_boxes` turn given uniform numbers into boxes.

Shapes: B batch, C channels, H x W picture, h x w result.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.groups import in_groups

__all__ = ["CROP_COLUMNS", "affine", "crop_boxes", "erase_boxes", "flip", "pad_crop", "resized_crop"]

_TRIES = 10  # torchvision draws a box anew this often before it falls back
CROP_COLUMNS = 2 * _TRIES + 2  # uniform numbers that one box uses up
Floats = npt.NDArray[np.float32]


def flip(images: Tensor, which: Tensor) -> Tensor:
    """Mirror left-right the images that ``which`` (B,) marks; images (B, C, H, W) of any type."""
    return torch.where(which.view(-1, 1, 1, 1), images.flip(3), images)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Fold indices outside [0, size) back at the first and last pixel, which are not repeated."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def pad_crop(images: Tensor, corner: Tensor, pad: int, mirrored: Tensor) -> Tensor:
    """Cut from each reflect-padded image the window of its own size at ``corner``; mirror those marked afterwards.

    One gather does all: nothing is padded or copied twice.

    Args:
        images: (B, C, H, W) of any type.
        corner: (B, 2) integers, top and left of the window in the padded image, each in [0, 2 pad].
        pad: Pixels of padding on each side, below H and W.
        mirrored: (B,) booleans.
    """
    B, C, H, W = images.shape
    down = torch.arange(H, device=images.device)
    along = torch.arange(W, device=images.device)
    columns = torch.where(mirrored[:, None], W - 1 - along, along)  # (B, W)
    rows = _reflect(corner[:, :1] - pad + down, H)  # (B, H)
    columns = _reflect(corner[:, 1:] - pad + columns, W)
    where = (rows[:, :, None] * W + columns[:, None, :]).view(B, 1, H * W).expand(B, C, H * W)
    return images.reshape(B, C, H * W).gather(2, where).view(B, C, H, W)


def crop_boxes(uniform: Floats, aspect: Floats, smallest: float, ratio: tuple[float, float]) -> Floats:
    """Boxes of a random resized crop (Inception's; as torchvision's RandomResizedCrop, without rounding to pixels).

    Share of area uniform in [smallest, 1], aspect ratio log-uniform; the first of 10 tries that fits, else the largest
    middle box of an allowed ratio. Shares and ratios are of the real picture, whatever canvas it is stored on.

    Args:
        uniform: (B, CROP_COLUMNS) in [0, 1).
        aspect: (B,) true width / height of each picture.
        smallest: Least share of the area.
        ratio: Least and greatest aspect ratio.

    Returns:
        (B, 4) top, left, height, width as shares of the picture's height and width.
    """
    aspect = aspect[:, None]
    share = smallest + (1 - smallest) * uniform[:, :_TRIES]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    wanted = np.exp(low + (high - low) * uniform[:, _TRIES : 2 * _TRIES])
    width, height = np.sqrt(share * wanted / aspect), np.sqrt(share * aspect / wanted)
    fits = (width <= 1) & (height <= 1)
    first = fits.argmax(1)[:, None]
    middle = np.clip(aspect, *ratio)
    found = fits.any(1, keepdims=True)
    width = np.where(found, np.take_along_axis(width, first, 1), np.minimum(middle / aspect, 1))
    height = np.where(found, np.take_along_axis(height, first, 1), np.minimum(aspect / middle, 1))
    corner = np.where(found, uniform[:, -2:], np.float32(0.5))
    top, left = corner[:, :1] * (1 - height), corner[:, 1:] * (1 - width)
    return np.concatenate([top, left, height, width], 1).astype(np.float32)


def erase_boxes(uniform: Floats, size: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Boxes of random erasing (arXiv 1708.04896, as torchvision): 2 to 33 % of the area, aspect ratio 0.3 to 3.3.

    Args:
        uniform: (B, CROP_COLUMNS) in [0, 1).
        size: Height and width in pixels.

    Returns:
        (B, 4) top, left, height, width in pixels; 0 high and wide where no try fits inside the image.
    """
    H, W = size
    area = H * W * (0.02 + 0.31 * uniform[:, :_TRIES])
    ratio = np.exp(math.log(0.3) + math.log(3.3 / 0.3) * uniform[:, _TRIES : 2 * _TRIES])  # height / width
    height, width = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (height < H) & (width < W) & (height > 0) & (width > 0)
    first = fits.argmax(1)[:, None]
    found = fits.any(1, keepdims=True)
    extent = [np.where(found, np.take_along_axis(side, first, 1), 0)[:, 0] for side in (height, width)]
    top = np.floor(uniform[:, -2] * (H - extent[0] + 1))
    left = np.floor(uniform[:, -1] * (W - extent[1] + 1))
    return np.stack([top, left, *extent], 1).astype(np.int64)


def _taps(start: Tensor, length: Tensor, source: int, target: int, mirrored: Tensor | None) -> tuple[Tensor, Tensor]:
    """Antialiased linear interpolation of [start, start + length) in ``source`` pixels to ``target`` pixels.

    As Pillow's ``resize(box=...)``: the triangle filter widens with the scale when it shrinks, and sees past the box.

    Returns:
        The k source pixels that each target pixel is a weighted sum of, integers (B, target, k), and their weights
        (B, target, k), which sum to 1.
    """
    out = torch.arange(target, device=start.device, dtype=start.dtype) + 0.5
    if mirrored is not None:
        out = torch.where(mirrored[:, None], target - out, out)  # (B, target)
    centre = start[:, None] + out * (length[:, None] / target)  # (B, target)
    reach = (length / target).clamp(min=1)[:, None, None]
    most = math.ceil(2 * max(1, source / target))  # known without a look at the device
    first = (centre - reach[..., 0] + 0.5).floor()[..., None]
    pixel = first + torch.arange(most, device=start.device)  # (B, target, k)
    weight = (1 - (pixel + 0.5 - centre[..., None]).abs() / reach).clamp(min=0)
    weight = torch.where((pixel >= 0) & (pixel < source), weight, 0)
    return pixel.clamp_(0, source - 1).long(), weight / weight.sum(2, keepdim=True)


def _weighted_sums(table: Tensor, taps: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of few rows each of tables (B, source, values): (B, target, values) for taps (B, target, k)."""
    B, source, values = table.shape
    first = torch.arange(0, B * source, source, device=table.device).view(-1, 1, 1)
    rows = (taps + first).flatten(0, 1)
    sums = F.embedding_bag(rows, table.reshape(-1, values), mode="sum", per_sample_weights=weights.flatten(0, 1))
    return sums.view(B, -1, values)


def resized_crop(images: Tensor, boxes: Tensor, size: tuple[int, int], mirrored: Tensor | None = None) -> Tensor:
    """Cut each image's box and resize it, antialiased, to one size; mirror those marked.

    The map is separable, and two or three pixels make one in each direction: so few that sums of rows of a table, once
    for the rows and once for the columns, are several times faster than products with matrices of all weights.

    Args:
        images: uint8 (B, C, H, W); fastest where they lie as (B, H, W, C) in memory.
        boxes: (B, 4) top, left, height, width as shares of H and W.
        size: h, w of the result.
        mirrored: (B,) booleans.

    Returns:
        uint8 (B, C, h, w).
    """
    C, H, W = images.shape[1:]
    h, w = size
    top, left, height, width = boxes.unbind(1)

    def cut(images: Tensor, row: Tensor, row_weight: Tensor, column: Tensor, column_weight: Tensor) -> Tensor:
        pixels = images.permute(0, 2, 3, 1).flatten(2).float()  # B H W*C
        pixels = _weighted_sums(pixels, row, row_weight)  # B h W*C
        pixels = pixels.transpose(1, 2).reshape(-1, W, C * h)
        pixels = _weighted_sums(pixels, column, column_weight).unflatten(2, (C, h))  # B w C h
        return pixels.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)

    rows = _taps(top * H, height * H, H, h, None)
    columns = _taps(left * W, width * W, W, w, mirrored)
    return in_groups(cut, images, *rows, *columns).contiguous()


def affine(images: Tensor, matrices: Tensor, fill: Tensor) -> Tensor:
    """Bilinear affine map of each image; what comes from outside is ``fill``.

    Args:
        images: uint8 (B, C, H, W).
        matrices: (B, 2, 3) from output to input position (x, y) in pixels, origin in the middle of the image.
        fill: (C,) in 0..255.

    Returns:
        uint8 (B, C, H, W).
    """
    H, W = images.shape[2:]
    # grid_sample's coordinates run from -1 to 1 on both axes.
    scale = matrices.new_tensor([[1, H / W, 2 / W], [W / H, 1, 2 / H]])
    grid = F.affine_grid(matrices * scale, list(images.shape), align_corners=False)
    level = fill.view(1, -1, 1, 1)
    moved = F.grid_sample(images.float() - level, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (moved + level).round_().clamp_(0, 255).to(torch.uint8)
