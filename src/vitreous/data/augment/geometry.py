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

__all__ = [
    "CROP_COLUMNS",
    "affine",
    "crop_boxes",
    "cut_each",
    "cut_together",
    "erase_boxes",
    "flip",
    "pad_crop",
    "resized_crop",
]

_TRIES = 10  # torchvision draws a box anew this often before it falls back
CROP_COLUMNS = 2 * _TRIES + 2  # uniform numbers that one box uses up
Floats = npt.NDArray[np.float32]
Span = tuple[Tensor, Tensor]
"""The first pixel of each image's box and the one after its last, in one direction, each (B,)."""


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
    """Boxes of a random resized crop (Inception's; as torchvision's RandomResizedCrop, rounded where they are cut).

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


def _pixels(start: Tensor, length: Tensor, size: int) -> Span:
    """Shares of ``size`` pixels, each (B,), rounded to whole ones, at least one."""
    first = (start * size).round().clamp(0, size - 1)
    return first, torch.maximum(((start + length) * size).round().clamp(max=size), first + 1)


def resized_crop(images: Tensor, boxes: Tensor, size: tuple[int, int], mirrored: Tensor | None = None) -> Tensor:
    """Cut each image's box, rounded to whole pixels, and resize it, antialiased, to one size; mirror those marked.

    As torchvision's ``resized_crop`` of uint8 images: to the last bit on a CPU, within one level elsewhere.

    Args:
        images: uint8 (B, C, H, W); fastest where they lie as (B, H, W, C) in memory.
        boxes: (B, 4) top, left, height, width as shares of H and W.
        size: h, w of the result.
        mirrored: (B,) booleans.

    Returns:
        uint8 (B, C, h, w).
    """
    top, left, height, width = boxes.unbind(1)
    rows, columns = _pixels(top, height, images.shape[2]), _pixels(left, width, images.shape[3])
    mirrored = torch.zeros_like(top, dtype=torch.bool) if mirrored is None else mirrored
    cut = cut_each if images.device.type == "cpu" else cut_together
    return cut(images, rows, columns, size, mirrored)


def cut_each(images: Tensor, rows: Span, columns: Span, size: tuple[int, int], mirrored: Tensor) -> Tensor:
    """One image after the other, by torch's integer filter for uint8, which only CPUs have and which is faster there.

    Args:
        images: As of :func:`resized_crop`.
        rows: Of each box.
        columns: Of each box.
        size: As of :func:`resized_crop`.
        mirrored: As of :func:`resized_crop`.
    """
    edges = torch.stack([*rows, *columns], 1).long().tolist()
    results = []
    for image, (top, bottom, left, right), turned in zip(images.split(1), edges, mirrored.tolist(), strict=True):
        box = image[:, :, top:bottom, left:right]
        # The filter copies a box that is part of a picture; mirrored first, it finds a copy.
        results.append(F.interpolate(box.flip(3) if turned else box, size, mode="bilinear", antialias=True))
    return torch.cat(results).contiguous()  # B C h w, which is how colours change fastest


def cut_together(images: Tensor, rows: Span, columns: Span, size: tuple[int, int], mirrored: Tensor) -> Tensor:
    """All images at once and without a look at the boxes, which would wait for the device; arguments as above.

    The map is separable, and two or three pixels make one in each direction: so few that sums of rows of a table, once
    for the rows and once for the columns, are several times faster than products with matrices of all weights.
    """
    C, H, W = images.shape[1:]
    row, row_weight = _taps(*rows, H, size[0], None)
    column, column_weight = _taps(*columns, W, size[1], mirrored)
    pixels = images.permute(0, 2, 3, 1).flatten(2).float()  # B H W*C
    pixels = _weighted_sums(pixels, row, row_weight)  # B h W*C
    pixels = pixels.transpose(1, 2).reshape(-1, W, C * size[0])
    pixels = _weighted_sums(pixels, column, column_weight).unflatten(2, (C, size[0]))  # B w C h
    return pixels.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _taps(first: Tensor, end: Tensor, source: int, target: int, mirrored: Tensor | None) -> tuple[Tensor, Tensor]:
    """Antialiased linear interpolation of pixels [first, end) of ``source`` ones to ``target`` pixels.

    As torch's: the triangle filter widens with the scale when it shrinks, and sees nothing beside the box.

    Returns:
        The k source pixels that each target pixel is a weighted sum of, integers (B, target, k), and their weights
        (B, target, k), which sum to 1.
    """
    out = torch.arange(target, device=first.device, dtype=first.dtype) + 0.5
    if mirrored is not None:
        out = torch.where(mirrored[:, None], target - out, out)  # (B, target)
    scale = (end - first)[:, None] / target
    centre = first[:, None] + out * scale  # (B, target)
    reach = scale.clamp(min=1)[..., None]
    most = math.ceil(2 * max(1, source / target))  # known without a look at the device
    pixel = (centre[..., None] - reach + 0.5).floor() + torch.arange(most, device=first.device)  # (B, target, k)
    weight = (1 - (pixel + 0.5 - centre[..., None]).abs() / reach).clamp(min=0)
    inside = (pixel >= first[:, None, None]) & (pixel < end[:, None, None])
    weight = torch.where(inside, weight, 0)
    return pixel.clamp_(0, source - 1).long(), weight / weight.sum(2, keepdim=True)


def _weighted_sums(table: Tensor, taps: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of few rows each of tables (B, source, values): (B, target, values) for taps (B, target, k)."""
    B, source, values = table.shape
    first = torch.arange(0, B * source, source, device=table.device).view(-1, 1, 1)
    rows = (taps + first).flatten(0, 1)
    sums = F.embedding_bag(rows, table.reshape(-1, values), mode="sum", per_sample_weights=weights.flatten(0, 1))
    return sums.view(B, -1, values)


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
    scale = torch.tensor([[1, H / W, 2 / W], [W / H, 1, 2 / H]]).to(matrices.device, non_blocking=True)
    grid = F.affine_grid(matrices * scale, list(images.shape), align_corners=False)
    level = fill.view(1, -1, 1, 1)
    moved = F.grid_sample(images.float() - level, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (moved + level).round_().clamp_(0, 255).to(torch.uint8)
