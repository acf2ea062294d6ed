"""Augmentation and normalisation of a training batch, on the device that holds it.

This file draws the random numbers, on the CPU and as a function of (seed, epoch, step), or of (seed, view, image) where
every image has a fixed set of views; geometry.py, color.py, policies.py and mixing.py apply them. Order: crop and flip,
policy (all uint8), colour jitter, normalisation, erasing, mixup or CutMix, resizing to smaller images (all float32).
Where no padding or policy follows, which count in pixels, a random resized crop has the smaller size from the start.

Shapes: B images, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.augment import POLICIES, color, geometry, mixing
from vitreous.data.augment.geometry import Floats
from vitreous.data.augment.policies import Policy, to_device
from vitreous.data.augment.resized_crop import resized_crop
from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import generator, image_uniforms, uniforms
from vitreous.errors import ConfigError

__all__ = ["BatchAugment"]

_CACHED = 2**19  # float32 values (2 MiB) that stay in a CPU's cache


class BatchAugment:
    """Turn uint8 training batches into the inputs of the model and the targets of the loss.

    Args:
        config: What to vary.
        pipeline: Provides the size, the channels and the normalisation.
        num_classes: K.
        seed: Seed of all random numbers.
        label_smoothing: Fraction of each target that is spread over all classes, in [0, 1).
        views: Number of views per image. Epoch e then shows view e modulo this number of every image, the same each
            time but for mixing and what depends on progress. None draws new random numbers in each step.
    """

    def __init__(
        self,
        config: AugmentConfig,
        pipeline: EvalPipeline,
        num_classes: int,
        seed: int,
        label_smoothing: float = 0.0,
        *,
        views: int | None = None,
    ) -> None:
        if config.pad_crop >= min(pipeline.size):
            side = min(pipeline.size)
            raise ConfigError(f"pad_crop is {config.pad_crop}, it must be below the image's {side} pixels")
        if config.policy_magnitude > 10:
            raise ConfigError(f"policy_magnitude is {config.policy_magnitude:g}, it must be in [0, 10]")
        self.config, self.pipeline = config, pipeline
        self.num_classes, self.seed, self.label_smoothing, self.views = num_classes, seed, label_smoothing, views
        self.policy: Policy | None = pkgutil.resolve_name(POLICIES[config.policy]) if config.policy != "none" else None

    @torch.no_grad()
    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        epoch: int,
        step: int,
        progress: float = 0.0,
        offset: int = 0,
        boxes: Tensor | None = None,
        index: Tensor | None = None,
        positions: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Augment one batch, or one part of an accumulated step.

        Args:
            images: uint8 (B, C, H, W) of the pipeline's size, or of any size if `boxes` is given.
            labels: int64 (B,), or (B, K) of 0 and 1; or targets, float32 (B, K), which are not smoothed. Of these,
                images whose target is zero, and their partners, are not mixed.
            epoch: Epoch of the batch; `mix_after` depends on it.
            step: Optimiser step within the epoch.
            progress: Completed fraction of the schedule, in [0, 1]; `off_last` and `small_first` depend on it.
            offset: Position of the first image within its step.
            boxes: float32 (B, 4) top, left, height, width of the random resized crops that are still to be cut, as
                fractions of height and width.
            index: int64 (B,), position of each image in its split; read if images have fixed views.
            positions: Positions of the images within their step, where they do not follow `offset` in order.

        Returns:
            Normalised images float32 (B, C, H, W), smaller as long as `small_first` applies, and targets float32
            (B, K).
        """
        if boxes is None and images.shape[2:] != self.pipeline.size:
            raise ConfigError(
                f"images are {tuple(images.shape[2:])}, the model expects {self.pipeline.size}: pass the batch's boxes"
            )
        # Some steps move pixels by matrix products, which autocast would round to the 8 bits of bfloat16.
        with torch.autocast(images.device.type, enabled=False):
            is_strong = progress < 1 - self.config.off_last or self.config.off_last == 0
            draw = self._draws((epoch, step, positions or offset), images, index)
            images = self._crop_and_flip(images, boxes, draw, progress)  # (B, C, H, W)
            if is_strong:
                images = self._apply_policy(images, draw)
            images = self._jitter_and_normalise(images, draw)  # float32 from here
            targets = mixing.smooth_targets(labels, self.num_classes, self.label_smoothing)  # (B, K)
            if is_strong:
                images = self._erase(images, draw)
                if epoch >= self.config.mix_after:
                    images, targets = self._mix(images, targets, draw, may_be_zero=labels.is_floating_point())
            return self._resize(images, progress), targets

    def augment_batch(self, batch: Mapping[str, Any], progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Augment a training batch in the form that the loader yields (:mod:`vitreous.data.batches.dataset`)."""
        keys = ("epoch", "step", "offset", "boxes", "index", "positions")
        given = {key: batch[key] for key in keys if key in batch}
        return self(batch["images"], batch["labels"], progress=progress, **given)

    def without_augmentation(self, batch: Mapping[str, Any], progress: float = 0.0) -> Tensor:
        """Return the images of a training batch as in evaluation, at the size that training has at this time.

        Images held in memory that are still to be cropped are cut as the pipeline cuts them; where it pads, they are
        squashed instead.

        Args:
            batch: In the form that the loader yields (:mod:`vitreous.data.batches.dataset`).
            progress: Completed fraction of the schedule, in [0, 1].

        Returns:
            Normalised images float32 (B, C, H, W).
        """
        images = batch.get("uncropped", batch["images"])
        with torch.autocast(images.device.type, enabled=False):
            if images.shape[2:] != self.pipeline.size:
                aspect = batch.get("aspect", torch.ones(len(images))).cpu().numpy()
                images = resized_crop(images, to_device(self._whole_boxes(aspect), images.device), self.pipeline.size)
            return self._resize(self.pipeline.normalise(images), progress)

    def _whole_boxes(self, aspect: Floats) -> Floats:
        """Return what evaluation shows of images of width / height ``aspect`` (B,), as fractions (B, 4)."""
        (height, width), config = self.pipeline.size, self.pipeline.config
        share = np.ones((len(aspect), 2), np.float32)  # of height and width
        if config.fit == "crop":
            wider = aspect * height / width  # than the model's input
            share[:] = config.crop_ratio * np.minimum(1, np.stack([wider, 1 / wider], 1))
        return np.concatenate([(1 - share) / 2, share], 1)

    def mirrored(self, batch: Mapping[str, Any]) -> Tensor:
        """Return which images of a training batch :meth:`augment_batch` flips, bool (B,)."""
        images = batch["images"]
        place = batch["epoch"], batch["step"], batch.get("positions", batch.get("offset", 0))
        return self._mirrored(self._draws(place, images, batch.get("index")))

    def _draws(self, place: tuple[int, int, int | Sequence[int]], images: Tensor, index: Tensor | None) -> _Draws:
        """Return the random numbers of a batch at its place in the run: epoch, step, and offset or positions."""
        (epoch, step, within), device = place, images.device
        if self.views is None:
            return _Draws((self.seed, epoch, step), within, len(images), device)
        if index is None:
            raise ConfigError("images with fixed views are known by their index: pass that of the batch")
        return _ViewDraws((self.seed, epoch % self.views), index, device)

    def _mirrored(self, draw: _Draws) -> Tensor:
        return draw.move(draw.per_image("flip", 1)[:, 0] < self.config.flip)

    def _crop_and_flip(self, images: Tensor, boxes: Tensor | None, draw: _Draws, progress: float) -> Tensor:
        config = self.config
        mirrored = self._mirrored(draw)  # B
        if boxes is not None and config.pad_crop == 0:
            size = self._size_at(progress) if self.policy is None else self.pipeline.size
            return resized_crop(images, boxes, size, mirrored)
        if boxes is not None:
            images = resized_crop(images, boxes, self.pipeline.size)
        if config.pad_crop:
            corner = (draw.per_image("shift", 2) * (2 * config.pad_crop + 1)).astype(np.int64)
            return geometry.pad_crop(images, draw.move(corner), config.pad_crop, mirrored)
        return geometry.flip(images, mirrored) if config.flip else images

    def _apply_policy(self, images: Tensor, draw: _Draws) -> Tensor:
        if self.policy is None:
            return images
        fill = draw.move(np.rint(255 * np.asarray(self.pipeline.config.mean, np.float32)))  # C
        return self.policy(images, partial(draw.per_image, "policy"), fill, self.config)

    def _jitter_and_normalise(self, images: Tensor, draw: _Draws) -> Tensor:
        jitter = self.config.color_jitter
        if not jitter:
            return self.pipeline.normalise(images)
        factors = 1 + jitter * (2 * draw.per_image("jitter", 3) - 1)
        pixels, amounts = images.float(), draw.move(np.maximum(factors, 0))
        # On a CPU a few images at a time, so that they stay in the cache for all passes.
        count = max(1, _CACHED // images[0].numel()) if images.device.type == "cpu" else len(images)
        for chunk, amount in zip(pixels.split(count), amounts.split(count), strict=True):
            self.pipeline.normalise_(color.jitter_(chunk, amount))
        return pixels

    def _erase(self, images: Tensor, draw: _Draws) -> Tensor:
        if self.config.erasing == 0:
            return images
        uniform = draw.per_image("erase", geometry.ERASE_COLUMNS + 2)
        index = np.flatnonzero(uniform[:, 0] < self.config.erasing)
        if not len(index):
            return images
        boxes = geometry.erase_boxes(uniform[index, 2:], (images.shape[2], images.shape[3]))
        length = images[0].numel()
        noise = draw.per_step("noise").standard_normal(2 * length, dtype=np.float32)
        shift = (uniform[index, 1] * (length + 1)).astype(np.int64)
        return mixing.erase(images, draw.move(index), draw.move(boxes), draw.move(noise), draw.move(shift))

    def _mix(
        self, images: Tensor, targets: Tensor, draw: _Draws, *, may_be_zero: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Apply mixup, CutMix or neither, the same to all images of a step; with zero targets to other pairs alone."""
        if may_be_zero:
            mixed_images, mixed_targets = self._mix(images.clone(), targets, draw)  # CutMix works in place
            has_target = targets.any(1)  # B
            both = has_target & has_target[mixing.partners(len(images), images.device)]
            images = torch.where(both[:, None, None, None], mixed_images, images)
            return images, torch.where(both[:, None], mixed_targets, targets)
        config = self.config
        rng = draw.per_step("mix")
        mixed, choice, y, x = (float(u) for u in rng.random(4))
        if mixed >= config.mix_chance or not (config.mixup or config.cutmix):
            return images, targets
        if config.cutmix and (not config.mixup or choice < 0.5):
            size = (images.shape[2], images.shape[3])
            box = mixing.cutmix_box(float(rng.beta(config.cutmix, config.cutmix)), (y, x), size)
            return mixing.cutmix(images, targets, box)
        return mixing.mixup(images, targets, float(rng.beta(config.mixup, config.mixup)))

    def _size_at(self, progress: float) -> tuple[int, int]:
        height, width = (self.config.side_at(side, progress) for side in self.pipeline.size)
        return height, width

    def _resize(self, images: Tensor, progress: float) -> Tensor:
        size = self._size_at(progress)
        if tuple(images.shape[2:]) == size:
            return images
        return F.interpolate(images, size, mode="bilinear", antialias=True)


class _Draws:
    """The random numbers of one batch. Each use has its own named stream."""

    def __init__(
        self, position: tuple[int, ...], images: int | Sequence[int], count: int, device: torch.device
    ) -> None:
        self._position = position  # seed, epoch, step
        self._images = images  # within the step: the first of consecutive ones, or all
        self._count, self._device = count, device

    def per_image(self, stream: str, columns: int) -> Floats:
        seed, epoch, step = self._position
        rows = partial(uniforms, seed, epoch, step, stream=stream, columns=columns, count=self._count)
        return rows(offset=self._images) if isinstance(self._images, int) else rows(positions=self._images)

    def per_step(self, stream: str) -> np.random.Generator:
        """Return a generator for what all images of a step share."""
        return generator(*self._position, stream=stream)

    def move(self, array: np.ndarray[Any, Any]) -> Tensor:
        return to_device(array, self._device)


class _ViewDraws(_Draws):
    """The random numbers of one view of each image; the position is seed and view."""

    def __init__(self, position: tuple[int, int], index: Tensor, device: torch.device) -> None:
        super().__init__(position, 0, len(index), device)
        self._index = index.cpu().numpy()

    def per_image(self, stream: str, columns: int) -> Floats:
        seed, view = self._position
        return image_uniforms(seed, view, self._index, stream=stream, columns=columns)
