"""Random resized crops: which box of each image is cut, and the two ways of cutting it.

Images that are read from files for every batch are cut by Pillow, from the full image, while they are resized. Images
that are held in memory are cut together, by torch, on the device of the model; they are stored a little larger than the
model's input for that.

Shapes: B images, C channels, H x W stored pixels, h x w pixels of the model's input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import image_uniforms, uniforms

__all__ = [
    "CROP_COLUMNS",
    "RandomResizedCrop",
    "crop_boxes",
    "cut_each",
    "cut_together",
    "resized_crop",
]

_TRIES = 10  # boxes to try before falling back, as in torchvision
CROP_COLUMNS = 2 * _TRIES + 2
"""Random numbers per box to crop."""
_MARGIN = 1.25  # side of a stored image over the model's, so that crops of 64 % of the area are not enlarged

Floats = npt.NDArray[np.float32]
Span = tuple[Tensor, Tensor]
"""First pixel of each image's box along one axis, and the pixel after its last, each (B,)."""


@dataclass(frozen=True)
class RandomResizedCrop:
    """The random resized crop of a run; its boxes are a function of (seed, epoch, step), or of (seed, view, image).

    Args:
        pipeline: Provides the size h x w and the channels of the model's input.
        config: The smallest area and the aspect ratios of the boxes.
        seed: Seed of the boxes.
        views: Number of views per image, as in :class:`~vitreous.data.augment.pipeline.BatchAugment`.
        on_device: Whether the device cuts the boxes even if images are streamed, as it must if each has several.
        keeps_whole: Whether batches also show the images uncropped.
    """

    pipeline: EvalPipeline
    config: AugmentConfig
    seed: int
    views: int | None = None
    on_device: bool = False
    keeps_whole: bool = False

    @property
    def storage(self) -> EvalPipeline:
        """The pipeline for images held in memory: squashed to 1.25 times the model's size."""
        height, width = (math.ceil(_MARGIN * side) for side in self.pipeline.size)
        return replace(self.pipeline, size=(height, width), config=replace(self.pipeline.config, fit="squash"))

    @property
    def min_side(self) -> int:
        """Side in pixels of an image whose smallest square box has the resolution of the model's input."""
        return math.ceil(max(self.pipeline.size) / math.sqrt(self.config.resized_crop))

    def draw(
        self,
        epoch: int,
        step: int,
        offset: int,
        index: npt.NDArray[np.int64],
        positions: Sequence[int] | None = None,
    ) -> Floats:
        """Draw the random numbers (B, CROP_COLUMNS) of the images ``index`` (B,) of a step, from its ``offset`` on.

        ``positions`` are those in the step of images that are not consecutive.
        """
        if self.views is not None:
            return image_uniforms(self.seed, epoch % self.views, index, stream="crop", columns=CROP_COLUMNS)
        rows = partial(uniforms, self.seed, epoch, step, stream="crop", columns=CROP_COLUMNS, count=len(index))
        return rows(offset=offset) if positions is None else rows(positions=positions)

    def boxes(self, draws: Floats, aspect: Floats) -> Floats:
        """Return the boxes (B, 4) for the numbers of :meth:`draw` and the aspect ratios (B,) of the original images."""
        return crop_boxes(draws, aspect, self.config.resized_crop, self.config.resized_crop_ratio)

    def cut(self, image: Image.Image, box: Sequence[float]) -> npt.NDArray[np.uint8]:
        """Cut a box of :meth:`boxes` from an image of any size and resize it with antialiasing, to uint8 (h, w, C)."""
        (height, width), (top, left, box_height, box_width) = self.pipeline.size, box
        right, bottom = min(left + box_width, 1.0), min(top + box_height, 1.0)
        pixels = (left * image.width, top * image.height, right * image.width, bottom * image.height)
        image = image if self.pipeline.channels == 3 else image.convert("L")
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box=pixels)).reshape(
            height, width, -1
        )


def crop_boxes(
    uniform: Floats, aspect: Floats, smallest: float, ratio: tuple[float, float], largest: float = 1.0
) -> Floats:
    """Return the boxes of a random resized crop, as torchvision's RandomResizedCrop but not rounded to pixels.

    The fraction of the area is uniform in [smallest, largest], the aspect ratio log-uniform in ``ratio``. The first of
    10 boxes that fits is used; if none fits, the largest centred box of an allowed ratio. Fractions and ratios refer to
    the original images, of width / height ``aspect`` (B,), even if they are stored with another one. The random numbers
    ``uniform`` are (B, CROP_COLUMNS), the result is (B, 4): top, left, height, width as fractions of the image.
    """
    aspect = aspect[:, None]
    area = smallest + (largest - smallest) * uniform[:, :_TRIES]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    box_ratio = np.exp(low + (high - low) * uniform[:, _TRIES : 2 * _TRIES])
    width, height = np.sqrt(area * box_ratio / aspect), np.sqrt(area * aspect / box_ratio)
    fits = (width <= 1) & (height <= 1)
    first = fits.argmax(1)[:, None]
    has_fit = fits.any(1, keepdims=True)
    centred_ratio = np.clip(aspect, *ratio)
    width = np.where(has_fit, np.take_along_axis(width, first, 1), np.minimum(centred_ratio / aspect, 1))
    height = np.where(has_fit, np.take_along_axis(height, first, 1), np.minimum(aspect / centred_ratio, 1))
    corner = np.where(has_fit, uniform[:, -2:], np.float32(0.5))
    top, left = corner[:, :1] * (1 - height), corner[:, 1:] * (1 - width)
    return np.concatenate([top, left, height, width], 1).astype(np.float32)


def resized_crop(images: Tensor, boxes: Tensor, size: tuple[int, int], mirrored: Tensor | None = None) -> Tensor:
    """Cut each image's box, rounded to whole pixels; resize it with antialiasing; flip the images marked.

    Equal to torchvision's ``resized_crop`` of uint8 images: bit for bit on a CPU, within one level on other devices.
    ``images`` are uint8 (B, C, H, W), fastest in channels-last format; ``boxes`` (B, 4) top, left, height, width as
    fractions of H and W. The result is uint8 (B, C, h, w) for a ``size`` h, w.
    """
    top, left, height, width = boxes.unbind(1)
    rows, columns = _pixel_span(top, height, images.shape[2]), _pixel_span(left, width, images.shape[3])
    mirrored = torch.zeros_like(top, dtype=torch.bool) if mirrored is None else mirrored
    cut = cut_each if images.device.type == "cpu" else cut_together
    return cut(images, rows, columns, size, mirrored)


def _pixel_span(start: Tensor, length: Tensor, size: int) -> Span:
    """Round fractions (B,) of ``size`` pixels to whole pixels, at least one."""
    first = (start * size).round().clamp(0, size - 1)
    return first, torch.maximum(((start + length) * size).round().clamp(max=size), first + 1)


def cut_each(images: Tensor, rows: Span, columns: Span, size: tuple[int, int], mirrored: Tensor) -> Tensor:
    """Cut and resize one image at a time with torch's integer filter for uint8, which only exists on CPUs.

    Arguments and result as for :func:`resized_crop`, with the boxes as spans of pixels.
    """
    edges = torch.stack([*rows, *columns], 1).long().tolist()
    results = []
    for image, (top, bottom, left, right), is_mirrored in zip(images.split(1), edges, mirrored.tolist(), strict=True):
        box = image[:, :, top:bottom, left:right]
        # The filter would copy a box that is not contiguous; flipping makes that copy already.
        results.append(F.interpolate(box.flip(3) if is_mirrored else box, size, mode="bilinear", antialias=True))
    return torch.cat(results).contiguous()  # (B, C, h, w): colour operations are fastest on it


def cut_together(images: Tensor, rows: Span, columns: Span, size: tuple[int, int], mirrored: Tensor) -> Tensor:
    """Cut and resize all images at once, without synchronising with the device to read the boxes.

    Arguments and result as for :func:`cut_each`. The map is separable, and an output pixel depends on two or three
    input pixels per axis, so weighted sums of table rows (embedding_bag) are faster than products with dense matrices.
    """
    C, H, W = images.shape[1:]
    row, row_weight = _taps(*rows, H, size[0], None)  # (B, h, k)
    column, column_weight = _taps(*columns, W, size[1], mirrored)  # (B, w, k)
    pixels = images.permute(0, 2, 3, 1).flatten(2).float()  # (B, H, W * C)
    pixels = _weighted_sums(pixels, row, row_weight)  # (B, h, W * C)
    pixels = pixels.transpose(1, 2).reshape(-1, W, C * size[0])
    pixels = _weighted_sums(pixels, column, column_weight).unflatten(2, (C, size[0]))  # (B, w, C, h)
    return pixels.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _taps(first: Tensor, end: Tensor, source: int, target: int, mirrored: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weights of antialiased linear interpolation from pixels [first, end) of ``source`` to ``target``.

    As in torch: when shrinking, the triangle filter widens with the scale; pixels outside the box have no weight. The
    result, both (B, target, k), is the k source pixels that each target pixel depends on and their weights (sum 1).
    """
    out = torch.arange(target, device=first.device, dtype=first.dtype) + 0.5
    if mirrored is not None:
        out = torch.where(mirrored[:, None], target - out, out)  # (B, target)
    scale = (end - first)[:, None] / target
    centre = first[:, None] + out * scale  # (B, target)
    reach = scale.clamp(min=1)[..., None]
    most = math.ceil(2 * max(1, source / target))  # an upper bound that needs no synchronisation
    pixel = (centre[..., None] - reach + 0.5).floor() + torch.arange(most, device=first.device)  # (B, target, k)
    weight = (1 - (pixel + 0.5 - centre[..., None]).abs() / reach).clamp(min=0)
    weight = torch.where((pixel >= first[:, None, None]) & (pixel < end[:, None, None]), weight, 0)
    return pixel.clamp_(0, source - 1).long(), weight / weight.sum(2, keepdim=True)


def _weighted_sums(table: Tensor, taps: Tensor, weights: Tensor) -> Tensor:
    """Return (B, target, V), weighted sums of the rows ``taps`` (B, target, k) of a table (B, source, V)."""
    B, source, V = table.shape
    first = torch.arange(0, B * source, source, device=table.device).view(-1, 1, 1)
    rows, weights = (taps + first).flatten(0, 1), weights.flatten(0, 1)
    return F.embedding_bag(rows, table.reshape(-1, V), mode="sum", per_sample_weights=weights).view(B, -1, V)
