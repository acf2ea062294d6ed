"""Datasets: from the plan of a batch to its pixels, from memory or from files.

A batch is a dict with ``images`` uint8 (B, C, H, W), ``labels`` and ``index`` int64 (B,), and ``epoch``, ``step`` and
``offset`` int. With ``boxes`` float32 (B, 4), the images are larger and a random resized crop is still to be cut from
them (:func:`vitreous.data.augment.geometry.resized_crop`), which the device does faster than the loader.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from vitreous.data.augment.geometry import CROP_COLUMNS, Floats, crop_boxes
from vitreous.data.batches.sampler import BatchPlan
from vitreous.data.config import AugmentConfig
from vitreous.data.images.reading import read_reduced
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import uniforms
from vitreous.data.sources.opening import Split
from vitreous.data.sources.scan import Progress
from vitreous.errors import VitreousError

__all__ = ["Batch", "MemoryDataset", "StreamedDataset", "cores", "decoded_bytes"]

Batch = dict[str, Any]

_MARGIN = 1.25  # side of a stored image over the model's, so that crops of 64 % of the area are not enlarged
_GROUP_BYTES = 1 << 28  # of decoded images that wait for their boxes


class MemoryDataset(Dataset[Batch | VitreousError]):
    """Batches from one uint8 array of all images of a split, decoded once.

    With a random resized crop, the images are stored squashed to 1.25 times the model's size, and a batch has boxes.

    Args:
        split: Labelled images.
        pipeline: Determines the size and the channels of the stored images.
        augment: Configuration of the training split; None for evaluation.
        seed: Seed of the crops.
        progress: Called while the split is decoded, which happens here, on all cores.
    """

    def __init__(
        self,
        split: Split,
        pipeline: EvalPipeline,
        augment: AugmentConfig | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.augment, self.seed, self.labels = _if_cropped(augment), seed, split.labels
        self.aspect = np.ones(len(split), dtype=np.float32)  # width / height of the original images
        if split.arrays is not None:
            self.aspect[:] = split.arrays.shape[2] / split.arrays.shape[1]
        stored = pipeline if self.augment is None else _with_margin(pipeline)
        if split.arrays is not None and _is_usable(split.arrays, stored, self.augment is not None):
            # torch.from_numpy warns about a read-only array, so such an array is copied.
            pixels = split.arrays if split.arrays.flags.writeable else split.arrays.copy()
        else:
            pixels = self._decode(split, stored, progress)
        self.pixels = torch.from_numpy(pixels)  # N H W C

    def _decode(self, split: Split, pipeline: EvalPipeline, progress: Progress | None) -> npt.NDArray[np.uint8]:
        """Pass all images through the pipeline, in threads: Pillow releases the GIL."""
        pixels = np.empty((len(split), *pipeline.size, pipeline.channels), dtype=np.uint8)

        def decode(index: int) -> None:
            if self.augment is None:
                image = split.image(index)
            else:
                image, self.aspect[index] = _read_reduced(split, index, max(pipeline.size))
            pixels[index] = pipeline.pixels(image)

        with ThreadPoolExecutor(cores()) as pool:
            try:
                for done, _ in enumerate(pool.map(decode, range(len(split))), start=1):
                    if progress is not None:
                        progress(done, len(split))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return pixels

    def __getitem__(self, plan: BatchPlan) -> Batch:
        images = self.pixels.index_select(0, torch.from_numpy(plan.indices)).permute(0, 3, 1, 2)  # B C H W
        if self.augment is None:
            return _batch(plan, images.contiguous(), self.labels)
        boxes = _draw_boxes(_crop_draws(plan, self.seed), self.aspect[plan.indices], self.augment)
        # The crop is fastest in channels-last memory format.
        return {**_batch(plan, images, self.labels), "boxes": torch.from_numpy(boxes)}


class StreamedDataset(Dataset[Batch | VitreousError]):
    """Batches decoded from files each time. Random resized crops are cut here, from the full image.

    If an image cannot be read, the item is the error itself, and the loader raises it in the main process; torch would
    wrap an error raised here in the traceback of the worker.

    Args:
        split: Labelled images.
        pipeline: Fits each image to the model's size.
        augment: Configuration of the training split; None for evaluation.
        seed: Seed of the crops.
    """

    def __init__(
        self, split: Split, pipeline: EvalPipeline, augment: AugmentConfig | None = None, seed: int = 0
    ) -> None:
        self.split, self.pipeline, self.seed = split, pipeline, seed
        self.augment = _if_cropped(augment)

    def __getitem__(self, plan: BatchPlan) -> Batch | VitreousError:
        """Return the batch of a plan, or the error that prevents it."""
        try:
            if self.augment is None:
                images = [self.pipeline.pixels(self.split.image(int(index))) for index in plan.indices]  # H W C each
            else:
                images = self._crops(plan, self.augment)
        except VitreousError as error:
            return error
        return _batch(plan, torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), self.split.labels)

    def _crops(self, plan: BatchPlan, augment: AugmentConfig) -> list[npt.NDArray[np.uint8]]:
        """Cut a random box from each image and resize it to (H, W, C), antialiased."""
        draws = _crop_draws(plan, self.seed)
        crops: list[npt.NDArray[np.uint8]] = []
        for images in self._decoded(plan, augment):
            aspects = np.array([aspect for _, aspect in images], np.float32)
            boxes = _draw_boxes(draws[len(crops) : len(crops) + len(images)], aspects, augment).tolist()
            crops += [self._cut(image, box) for (image, _), box in zip(images, boxes, strict=True)]
        return crops

    def _decoded(self, plan: BatchPlan, augment: AugmentConfig) -> Iterator[list[tuple[Image.Image, float]]]:
        """Yield images with their aspect ratios, in groups: drawing the boxes of many takes as long as those of one."""
        # Large enough for the smallest square box to have the model's resolution.
        least = math.ceil(max(self.pipeline.size) / math.sqrt(augment.resized_crop))
        group: list[tuple[Image.Image, float]] = []
        for index in plan.indices:
            group.append(_read_reduced(self.split, int(index), least))
            if sum(4 * image.width * image.height for image, _ in group) > _GROUP_BYTES:
                yield group
                group = []
        if group:
            yield group

    def _cut(self, image: Image.Image, box: list[float]) -> npt.NDArray[np.uint8]:
        height, width = self.pipeline.size
        top, left, box_height, box_width = box
        right, bottom = min(left + box_width, 1.0), min(top + box_height, 1.0)
        pixels = (left * image.width, top * image.height, right * image.width, bottom * image.height)
        image = image if self.pipeline.channels == 3 else image.convert("L")
        crop = image.resize((width, height), Image.Resampling.BILINEAR, box=pixels)
        return np.asarray(crop).reshape(height, width, -1)


def decoded_bytes(split: Split, pipeline: EvalPipeline, cropped: bool) -> int:
    """Return the bytes that :class:`MemoryDataset` allocates for a split; ``cropped``: with a random resized crop."""
    stored = _with_margin(pipeline) if cropped else pipeline
    if split.arrays is not None and _is_usable(split.arrays, stored, cropped):
        return 0
    return len(split) * stored.channels * math.prod(stored.size)


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _if_cropped(augment: AugmentConfig | None) -> AugmentConfig | None:
    return augment if augment is not None and augment.resized_crop < 1 else None


def _with_margin(pipeline: EvalPipeline) -> EvalPipeline:
    """Return the pipeline that squashes images to the size at which they are stored for random resized crops."""
    height, width = (math.ceil(_MARGIN * side) for side in pipeline.size)
    return replace(pipeline, size=(height, width), config=replace(pipeline.config, fit="squash"))


def _is_usable(arrays: npt.NDArray[np.uint8], stored: EvalPipeline, cropped: bool) -> bool:
    """Whether arrays (N, H, W, C) can be used as they are: unchanged by the pipeline, or small enough to crop from."""
    if arrays.shape[3] != stored.channels:
        return False
    if cropped:
        return all(side <= limit for side, limit in zip(arrays.shape[1:3], stored.size, strict=True))
    return arrays.shape[1:3] == stored.size and (stored.config.fit != "crop" or stored.config.crop_ratio == 1)


def _read_reduced(split: Split, index: int, least: int) -> tuple[Image.Image, float]:
    """Return an image and the aspect ratio of the original.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if its shorter side keeps at least ``least`` pixels. That rounds
    its size, so the aspect ratio comes from the full size.
    """
    if split.paths is not None:
        image, (height, width) = read_reduced(split.paths[index], least)
        return image, width / height
    image = split.image(index)
    return image, image.width / image.height


def _crop_draws(plan: BatchPlan, seed: int) -> Floats:
    """Return the random numbers of a batch's crops, (B, CROP_COLUMNS), the same from memory and from files."""
    count = len(plan.indices)
    return uniforms(seed, plan.epoch, plan.step, stream="crop", columns=CROP_COLUMNS, count=count, offset=plan.offset)


def _draw_boxes(draws: Floats, aspect: Floats, augment: AugmentConfig) -> Floats:
    return crop_boxes(draws, aspect, augment.resized_crop, augment.resized_crop_ratio)


def _batch(plan: BatchPlan, images: Tensor, labels: npt.NDArray[np.int64]) -> Batch:
    return {
        "images": images,
        "labels": torch.from_numpy(np.array(labels[plan.indices], dtype=np.int64)),
        "index": torch.from_numpy(plan.indices),
        "epoch": plan.epoch,
        "step": plan.step,
        "offset": plan.offset,
    }
