"""How a training batch varies: whole batches, on the device they are on, every draw a function of (seed, epoch, step).

The chance is drawn here, on the CPU, as small arrays; what is done with it is in geometry.py, color.py, policy.py and
mixing.py. Order: crop and flip, policy (uint8), colour jitter, normalisation, erasing, mixup or CutMix, smaller sizes
(float32).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.augment import color, geometry, mixing, policy
from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import generator, uniforms
from vitreous.errors import ConfigError

__all__ = ["BatchAugment"]

Floats = npt.NDArray[np.float32]

_CACHED = 2**19  # values, 2 MiB as float32


class BatchAugment:
    """Turns uint8 training batches into what the model and the loss see.

    Args:
        config: What to vary.
        pipeline: Gives the size, the channels and the normalisation.
        num_classes: K.
        seed: Of every draw.
        label_smoothing: Share of each target spread over all classes, in [0, 1).

    Raises:
        ConfigError: If the crop's padding is not smaller than the image, or the policy is too strong.
    """

    def __init__(
        self, config: AugmentConfig, pipeline: EvalPipeline, num_classes: int, seed: int, label_smoothing: float = 0.0
    ) -> None:
        if config.pad_crop >= min(pipeline.size):
            side = min(pipeline.size)
            raise ConfigError(f"pad_crop is {config.pad_crop}, it must be below the image's {side} pixels")
        if config.policy_magnitude > 10:
            raise ConfigError(f"policy_magnitude is {config.policy_magnitude:g}, it must be in [0, 10]")
        self.config = config
        self.pipeline = pipeline
        self.num_classes = num_classes
        self.seed = seed
        self.label_smoothing = label_smoothing

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
    ) -> tuple[Tensor, Tensor]:
        """Augment one batch, or one part of an accumulated step.

        Args:
            images: uint8 (B, C, H, W) of the pipeline's size; canvases of any size when `boxes` is given.
            labels: int64 (B,).
            epoch: Epoch of the batch; decides on `mix_after`.
            step: Optimiser step within the epoch.
            progress: Share of the whole schedule that is done, in [0, 1]; decides on `off_last` and
                `small_first`.
            offset: Position of the first image within its step.
            boxes: float32 (B, 4) top, left, height, width as shares of the height and width. Given by the loader when
                the images are canvases that the random resized crop is still to be cut from.

        Returns:
            Images float32 (B, C, H, W), normalised, smaller where `small_first` says so, and targets float32 (B, K).

        Raises:
            ConfigError: If the images are canvases, and no boxes are given.
        """
        if boxes is None and images.shape[2:] != self.pipeline.size:
            raise ConfigError(
                f"images are {tuple(images.shape[2:])}, the model sees {self.pipeline.size}: pass the batch's boxes"
            )
        # Matrix products move pixels here; autocast would round them to bfloat16's 8 bits.
        with torch.autocast(images.device.type, enabled=False):
            busy = progress < 1 - self.config.off_last or self.config.off_last == 0
            draw = _Draws((self.seed, epoch, step), offset, len(images), images.device)
            pixels = self._colours(self._place(images, boxes, draw), draw, busy)
            targets = mixing.smooth_targets(labels, self.num_classes, self.label_smoothing)
            if busy:
                pixels = self._erase(pixels, draw)
                if epoch >= self.config.mix_after:
                    pixels, targets = self._mix(pixels, targets, draw)
            return self._whole_or_small(pixels, progress), targets

    def of_batch(self, batch: Mapping[str, Any], progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """The same for a training batch as the loader gives it (:mod:`vitreous.data.batches.dataset`)."""
        place = {key: batch[key] for key in ("epoch", "step", "offset", "boxes") if key in batch}
        return self(batch["images"], batch["labels"], progress=progress, **place)

    def _place(self, images: Tensor, boxes: Tensor | None, draw: _Draws) -> Tensor:
        """Crop and flip."""
        config = self.config
        mirrored = draw.move(draw.each("flip", 1)[:, 0] < config.flip)
        if boxes is not None and config.pad_crop == 0:
            return geometry.resized_crop(images, boxes, self.pipeline.size, mirrored)
        if boxes is not None:
            images = geometry.resized_crop(images, boxes, self.pipeline.size)
        if config.pad_crop:
            corner = (draw.each("shift", 2) * (2 * config.pad_crop + 1)).astype(np.int64)
            return geometry.pad_crop(images, draw.move(corner), config.pad_crop, mirrored)
        return geometry.flip(images, mirrored) if config.flip else images

    def _colours(self, images: Tensor, draw: _Draws, busy: bool) -> Tensor:
        """Policy, colour jitter, normalisation."""
        config = self.config
        if busy and config.policy != "none":
            operations = config.policy_ops if config.policy == "rand" else 1
            uniform = draw.each("policy", policy.POLICY_COLUMNS * operations)
            if config.policy == "three":
                images = policy.three_augment(images, uniform)
            else:
                fill = draw.move(np.rint(255 * np.asarray(self.pipeline.config.mean, np.float32)))
                if config.policy == "rand":
                    images = policy.rand_augment(images, uniform, config.policy_magnitude, fill)
                else:
                    images = policy.trivial_augment(images, uniform, fill)
        if not config.color_jitter:
            return self.pipeline.normalise(images)
        factor = 1 + config.color_jitter * (2 * draw.each("jitter", 3) - 1)
        pixels, amount = images.float(), draw.move(np.maximum(factor, 0))
        # Some pictures after the other on a CPU, so that what passes over them stays in the cache.
        count = max(1, _CACHED // images[0].numel()) if images.device.type == "cpu" else len(images)
        for some, own in zip(pixels.split(count), amount.split(count), strict=True):
            self.pipeline.normalise_(color.jitter_(some, own))
        return pixels

    def _erase(self, pixels: Tensor, draw: _Draws) -> Tensor:
        """Random erasing on the images that drew it."""
        if self.config.erasing == 0:
            return pixels
        uniform = draw.each("erase", geometry.CROP_COLUMNS + 2)
        which = np.flatnonzero(uniform[:, 0] < self.config.erasing)
        if not len(which):
            return pixels
        boxes = geometry.erase_boxes(uniform[which, 2:], (pixels.shape[2], pixels.shape[3]))
        length = pixels[0].numel()
        noise = draw.step("noise").standard_normal(2 * length, dtype=np.float32)
        shift = (uniform[which, 1] * (length + 1)).astype(np.int64)
        return mixing.erase(pixels, draw.move(which), draw.move(boxes), draw.move(noise), draw.move(shift))

    def _mix(self, pixels: Tensor, targets: Tensor, draw: _Draws) -> tuple[Tensor, Tensor]:
        """Mixup, CutMix or neither, one for the whole step."""
        config = self.config
        rng = draw.step("mix")
        mixed, chosen, y, x = (float(u) for u in rng.random(4))
        if mixed >= config.mix_chance or not (config.mixup or config.cutmix):
            return pixels, targets
        if config.cutmix and (not config.mixup or chosen < 0.5):
            size = (pixels.shape[2], pixels.shape[3])
            box = mixing.cutmix_box(float(rng.beta(config.cutmix, config.cutmix)), (y, x), size)
            return mixing.cutmix(pixels, targets, box)
        return mixing.mixup(pixels, targets, float(rng.beta(config.mixup, config.mixup)))

    def _whole_or_small(self, pixels: Tensor, progress: float) -> Tensor:
        """Shrink the pictures where the schedule begins with smaller ones."""
        height, width = (self.config.side(side, progress) for side in self.pipeline.size)
        if (height, width) == self.pipeline.size:
            return pixels
        return F.interpolate(pixels, (height, width), mode="bilinear", antialias=True)


class _Draws:
    """The draws of one batch, by the name of what they are for."""

    def __init__(self, at: tuple[int, int, int], offset: int, count: int, device: torch.device) -> None:
        self._at = at  # seed, epoch, step
        self._offset, self._count, self._device = offset, count, device

    def each(self, stream: str, columns: int) -> Floats:
        """Uniform numbers for each image, (B, columns)."""
        return uniforms(*self._at, stream=stream, columns=columns, count=self._count, offset=self._offset)

    def step(self, stream: str) -> np.random.Generator:
        """A generator for what a whole step draws once."""
        return generator(*self._at, stream=stream)

    def move(self, array: npt.NDArray[np.generic]) -> Tensor:
        """To the device, without waiting for it."""
        return torch.from_numpy(array).to(self._device, non_blocking=True)
