"""From the plan of a batch to its pixels: out of memory, where a split is held decoded, or from files as they come.

A batch is a dict: ``images`` uint8 (B, C, H, W), ``labels`` and ``index`` int64 (B,), ``epoch``, ``step`` and
``offset`` int; with ``boxes`` float32 (B, 4) the images are canvases that a random resized crop is still to be cut from
(:func:`vitreous.data.augment.geometry.resized_crop`), which the device does faster than the loader.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from vitreous.data.augment.geometry import CROP_COLUMNS, crop_boxes
from vitreous.data.batches.sampler import BatchPlan
from vitreous.data.config import AugmentConfig
from vitreous.data.images.reading import read_reduced
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import uniforms
from vitreous.data.sources.opening import Split
from vitreous.errors import VitreousError

__all__ = ["Batch", "MemoryBatches", "Progress", "StreamedBatches", "canvas_of", "cores", "draw_boxes", "held_bytes"]

Batch = dict[str, Any]
Progress = Callable[[int, int], None]
"""Called with (pictures done, pictures in all)."""

_CANVAS = 1.25
"""Side of the stored canvas over the model's: a crop of 64 % of the area is then cut at the model's resolution."""


_HELD = 256 << 20  # bytes of decoded pictures that a batch holds until their boxes are drawn


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def draw_boxes(plan: BatchPlan, aspect: npt.NDArray[np.float32], augment: AugmentConfig, seed: int) -> Tensor:
    """The random resized crops of a batch: float32 (B, 4) shares, the same for pictures in memory and from files."""
    uniform = uniforms(
        seed, plan.epoch, plan.step, stream="crop", columns=CROP_COLUMNS, count=len(plan.indices), offset=plan.offset
    )
    return torch.from_numpy(crop_boxes(uniform, aspect, augment.resized_crop, augment.resized_crop_ratio))


def canvas_of(pipeline: EvalPipeline) -> EvalPipeline:
    """The pipeline that squashes a picture onto the canvas that crops are cut from."""
    height, width = (math.ceil(_CANVAS * side) for side in pipeline.size)
    return replace(pipeline, size=(height, width), config=replace(pipeline.config, fit="squash"))


def _usable_as_is(split: Split, pipeline: EvalPipeline, cropped: bool) -> bool:
    """Whether a split's arrays are what the pipeline would make of them, or fit on the canvas."""
    if split.arrays is None or split.arrays.shape[3] != pipeline.channels:
        return False
    native = split.arrays.shape[1:3]
    if cropped:
        return all(have <= want for have, want in zip(native, pipeline.size, strict=True))
    config = pipeline.config
    return native == pipeline.size and (config.fit != "crop" or config.crop_ratio == 1)


def held_bytes(split: Split, pipeline: EvalPipeline, cropped: bool) -> int:
    """Memory in bytes that holding a split takes, besides what its arrays take already."""
    pipeline = canvas_of(pipeline) if cropped else pipeline
    if _usable_as_is(split, pipeline, cropped):
        return 0
    return len(split) * pipeline.channels * math.prod(pipeline.size)


def _reduced_picture(split: Split, index: int, least: int) -> tuple[Image.Image, float]:
    """A picture whose shorter side is at least ``least`` pixels, or its own, and its true width / height.

    JPEGs are decoded at 1/2, 1/4 or 1/8 of their size, which rounds it; everything else at its own.
    """
    if split.paths is not None:
        picture, (height, width) = read_reduced(split.paths[index], least)
        return picture, width / height
    picture = split.picture(index)
    return picture, picture.width / picture.height


class MemoryBatches(Dataset[Batch | VitreousError]):
    """Batches out of one uint8 array of all pictures.

    Args:
        split: Labelled pictures.
        pipeline: Gives the size of what is held.
        augment: For training with a random resized crop: pictures are held squashed on a larger canvas.
        seed: Of the crops.
        progress: Told about the decoding, which runs once, here, on all cores.
    """

    def __init__(
        self,
        split: Split,
        pipeline: EvalPipeline,
        augment: AugmentConfig | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.augment = augment if augment is not None and augment.resized_crop < 1 else None
        self.seed = seed
        self.labels = torch.from_numpy(np.array(split.labels, dtype=np.int64))
        cropped = self.augment is not None
        self.aspect = np.ones(len(split), dtype=np.float32)
        held = canvas_of(pipeline) if cropped else pipeline
        if split.arrays is not None:
            self.aspect[:] = split.arrays.shape[2] / split.arrays.shape[1]
        if split.arrays is not None and _usable_as_is(split, held, cropped):
            pixels = split.arrays
            if not pixels.flags.writeable:  # torch cannot mark a tensor as read-only, and warns
                pixels = pixels.copy()
            self.pixels = torch.from_numpy(pixels)
        else:
            self.pixels = torch.from_numpy(self._decode(split, held, cropped, progress))

    def _decode(
        self, split: Split, pipeline: EvalPipeline, cropped: bool, progress: Progress | None
    ) -> npt.NDArray[np.uint8]:
        """All pictures through the pipeline, on all cores: Pillow works outside the interpreter's lock."""
        pixels = np.empty((len(split), *pipeline.size, pipeline.channels), dtype=np.uint8)

        def decode(index: int) -> None:
            if cropped:
                picture, self.aspect[index] = _reduced_picture(split, index, max(pipeline.size))
            else:
                picture = split.picture(index)
            pixels[index] = pipeline.pixels(picture)

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
        """The batch of a plan."""
        index = torch.from_numpy(plan.indices)
        images = self.pixels.index_select(0, index).permute(0, 3, 1, 2)
        batch = {
            # Canvases stay as they lie, channels last: the crop reads them fastest so.
            "images": images.contiguous() if self.augment is None else images,
            "labels": self.labels[index],
            "index": index,
            "epoch": plan.epoch,
            "step": plan.step,
            "offset": plan.offset,
        }
        if self.augment is not None:
            batch["boxes"] = draw_boxes(plan, self.aspect[plan.indices], self.augment, self.seed)
        return batch


class StreamedBatches(Dataset[Batch | VitreousError]):
    """Batches read from their files each time; random resized crops are cut from the full picture, here in the worker.

    A picture that cannot be read makes the whole item that error, which the loader raises in the main process: torch
    would wrap it in the worker's traceback.

    Args:
        split: Labelled pictures.
        pipeline: What becomes of each picture.
        augment: For training: its random resized crop, if any.
        seed: Of the crops.
    """

    def __init__(
        self, split: Split, pipeline: EvalPipeline, augment: AugmentConfig | None = None, seed: int = 0
    ) -> None:
        self.split, self.pipeline, self.seed = split, pipeline, seed
        self.augment = augment if augment is not None and augment.resized_crop < 1 else None

    def __getitem__(self, plan: BatchPlan) -> Batch | VitreousError:
        """The batch of a plan, or why it cannot be made."""
        try:
            images = self._whole(plan) if self.augment is None else self._cropped(plan, self.augment)
        except VitreousError as error:
            return error
        return {
            "images": torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
            "labels": torch.from_numpy(np.array(self.split.labels[plan.indices], dtype=np.int64)),
            "index": torch.from_numpy(plan.indices),
            "epoch": plan.epoch,
            "step": plan.step,
            "offset": plan.offset,
        }

    def _whole(self, plan: BatchPlan) -> npt.NDArray[np.uint8]:
        return np.stack([self.pipeline.pixels(self.split.picture(int(index))) for index in plan.indices])

    def _cropped(self, plan: BatchPlan, augment: AugmentConfig) -> npt.NDArray[np.uint8]:
        """Cut and resize, antialiased, the box of each picture."""
        height, width = self.pipeline.size
        # Decoded no smaller than needed for the smallest square box to have the model's resolution.
        least = math.ceil(max(height, width) / math.sqrt(augment.resized_crop))
        pixels = np.empty((len(plan.indices), height, width, self.pipeline.channels), dtype=np.uint8)
        held: list[tuple[Image.Image, float]] = []
        space = 0
        for place, index in enumerate(plan.indices, start=1):
            held.append(_reduced_picture(self.split, int(index), least))
            space += held[-1][0].width * held[-1][0].height * 4
            if space > _HELD or place == len(plan.indices):
                self._cut(plan, augment, held, pixels[place - len(held) : place], place - len(held))
                held, space = [], 0
        return pixels

    def _cut(
        self,
        plan: BatchPlan,
        augment: AugmentConfig,
        held: list[tuple[Image.Image, float]],
        pixels: npt.NDArray[np.uint8],
        first: int,
    ) -> None:
        """Cut the boxes of the pictures that are held, those of a plan from ``first`` on, into ``pixels``."""
        height, width = self.pipeline.size
        part = plan._replace(indices=plan.indices[first : first + len(held)], offset=plan.offset + first)
        aspects = np.array([aspect for _, aspect in held], dtype=np.float32)
        boxes = draw_boxes(part, aspects, augment, self.seed).tolist()
        for place, ((picture, _), (top, left, tall, wide)) in enumerate(zip(held, boxes, strict=True)):
            source = picture if self.pipeline.channels == 3 else picture.convert("L")
            corners = (left, top, min(left + wide, 1.0), min(top + tall, 1.0))
            box = tuple(share * side for share, side in zip(corners, source.size * 2, strict=True))
            cut = source.resize((width, height), Image.Resampling.BILINEAR, box=box)
            pixels[place] = np.asarray(cut).reshape(height, width, -1)
