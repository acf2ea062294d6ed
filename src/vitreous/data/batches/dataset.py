"""Datasets: from the plan of a batch to its pixels, from memory or from files.

A batch is a dict with ``images`` uint8 (B, C, H, W), ``labels`` and ``index`` int64 (B,), and ``epoch``, ``step`` and
``offset`` int. If an image may have several labels, ``labels`` are (B, K) of 0 and 1; if training learns probabilities,
they are these, float32 (B, K). A batch from memory that is still to be cropped also has ``boxes`` float32 (B, 4), and
larger images: the device of the model cuts them faster than the loader. If each image has several crops, the batch has
``aspect`` float32 (B,) instead, the width over the height of the original images. If the images are needed uncropped
too, it has both, or from files ``uncropped`` beside the crops.
Where several processes share a training batch, it also has ``positions``, a list of the positions of its images in the
step, and ``whole``, the number of images in all processes. If images without a label come with it, ``unlabelled`` is a
batch of them, without ``labels``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitreous.data.augment.resized_crop import RandomResizedCrop
from vitreous.data.batches.sampler import BatchPlan
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import Split
from vitreous.data.sources.scan import Progress
from vitreous.errors import VitreousError
from vitreous.machine.cores import num_cores

__all__ = ["Batch", "MemoryDataset", "PairedDataset", "StreamedDataset", "decoded_bytes"]

Batch = dict[str, Any]
"""Tensors and lists by name; the first dimension counts images."""

_GROUP = 16  # images decoded before their boxes are computed: 16 boxes take as long as one, and memory is limited


class MemoryDataset(Dataset[Batch | VitreousError]):
    """Batches from one uint8 array that holds all images of a split.

    The images are decoded here, once, on all cores. Arrays that have the right size already are used as they are.

    Args:
        split: Labelled images.
        pipeline: Fits each image to the model's size.
        crop: Random resized crop of the training split; None shows whole images.
        progress: Called with (done, total) while the split is decoded.
    """

    def __init__(
        self,
        split: Split,
        pipeline: EvalPipeline,
        crop: RandomResizedCrop | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.split, self.crop = split, crop
        self.aspect = np.ones(len(split), dtype=np.float32)  # width / height of the original images, (n,)
        if split.arrays is not None:
            self.aspect[:] = split.arrays.shape[2] / split.arrays.shape[1]
        if split.arrays is not None and _is_stored(split.arrays, pipeline, crop):
            # torch.from_numpy warns about a read-only array, so such an array is copied.
            pixels = split.arrays if split.arrays.flags.writeable else split.arrays.copy()
        else:
            pixels = self._decode(split, _storage(pipeline, crop), progress)
        self.pixels = torch.from_numpy(pixels)  # (n, H, W, C)

    def __getitem__(self, plan: BatchPlan) -> Batch:
        """Return the batch of a plan."""
        images = self.pixels.index_select(0, torch.from_numpy(plan.indices)).permute(0, 3, 1, 2)  # (B, C, H, W)
        if self.crop is None:
            return _batch(plan, images.contiguous(), self.split)
        if self.crop.on_device:
            return _batch(plan, images, self.split) | {"aspect": torch.from_numpy(self.aspect[plan.indices])}
        draws = _draw(self.crop, plan)
        aspect = self.aspect[plan.indices]
        boxes = torch.from_numpy(self.crop.boxes(draws, aspect))
        whole = {"aspect": torch.from_numpy(aspect)} if self.crop.keeps_whole else {}
        return _batch(plan, images, self.split) | {"boxes": boxes, **whole}

    def _decode(self, split: Split, storage: EvalPipeline, progress: Progress | None) -> npt.NDArray[np.uint8]:
        """Fit all images to the stored size, in threads: Pillow releases the GIL."""
        pixels = np.empty((len(split), *storage.size, storage.channels), dtype=np.uint8)

        def decode(index: int) -> None:
            if self.crop is None:
                image = split.image(index)
            else:
                image, self.aspect[index] = split.reduced_image(index, max(storage.size))
            pixels[index] = storage.pixels(image)

        with ThreadPoolExecutor(num_cores()) as pool:
            try:
                for done, _ in enumerate(pool.map(decode, range(len(split))), start=1):
                    if progress is not None:
                        progress(done, len(split))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return pixels


class StreamedDataset(Dataset[Batch | VitreousError]):
    """Batches whose images are decoded from their files each time, usually in a worker process.

    Args:
        split: Labelled images.
        pipeline: Fits each image to the model's size.
        crop: Random resized crop of the training split; None shows whole images.
    """

    def __init__(self, split: Split, pipeline: EvalPipeline, crop: RandomResizedCrop | None = None) -> None:
        self.split, self.pipeline, self.crop = split, pipeline, crop

    def __getitem__(self, plan: BatchPlan) -> Batch | VitreousError:
        """Return the batch of a plan, or the error that prevents it.

        An error is returned, not raised, because torch would wrap it in the traceback of the worker. The loader raises
        it in the main process.
        """
        extra = {}
        try:
            self.split.fetch(plan.indices.tolist())
            if self.crop is not None and self.crop.on_device:
                storage = self.crop.storage
                decoded = [self.split.reduced_image(n, max(storage.size)) for n in plan.indices.tolist()]
                images = [storage.pixels(image) for image, _ in decoded]
                extra["aspect"] = torch.tensor([aspect for _, aspect in decoded])
            elif self.crop is None:
                images = [self.pipeline.pixels(self.split.image(index)) for index in plan.indices.tolist()]
            else:
                cut = list(self._crops(plan, self.crop))
                images = [crop for crop, _ in cut]
                if self.crop.keeps_whole:
                    extra["uncropped"] = self._stack([whole for _, whole in cut if whole is not None])
        except VitreousError as error:
            return error
        return _batch(plan, self._stack(images), self.split) | extra

    def _stack(self, images: list[npt.NDArray[np.uint8]]) -> Tensor:
        """Return images (H, W, C) as one tensor (B, C, H, W)."""
        # A process may have no images in the last batches of an evaluation, a micro-batch no unlabelled ones.
        stacked = np.stack(images) if images else np.empty((0, *self.pipeline.size, self.pipeline.channels), np.uint8)
        return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous()

    def _crops(
        self, plan: BatchPlan, crop: RandomResizedCrop
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8] | None]]:
        """Yield a random crop of each image and, if that is kept, the image as in evaluation, uint8 (H, W, C)."""
        draws, min_side = _draw(crop, plan), crop.min_side
        for first in range(0, len(plan.indices), _GROUP):
            group = slice(first, first + _GROUP)
            decoded = [self.split.reduced_image(index, min_side) for index in plan.indices[group].tolist()]
            boxes = crop.boxes(draws[group], np.array([aspect for _, aspect in decoded], np.float32)).tolist()
            for (image, _), box in zip(decoded, boxes, strict=True):
                yield crop.cut(image, box), self.pipeline.pixels(image) if crop.keeps_whole else None


class PairedDataset(Dataset[Batch | VitreousError]):
    """Labelled batches that have a batch of unlabelled images each, as ``unlabelled``, which has no ``labels``."""

    def __init__(self, labelled: MemoryDataset | StreamedDataset, unlabelled: MemoryDataset | StreamedDataset) -> None:
        self.labelled, self.unlabelled = labelled, unlabelled

    def __getitem__(self, plan: BatchPlan) -> Batch | VitreousError:
        """Return the batch of a plan, or the error that prevents it."""
        batch = self.labelled[plan]
        if plan.unlabelled is None or isinstance(batch, VitreousError):
            return batch
        others = self.unlabelled[plan.unlabelled]
        if isinstance(others, VitreousError):
            return others
        return batch | {"unlabelled": {key: value for key, value in others.items() if key != "labels"}}


def _draw(crop: RandomResizedCrop, plan: BatchPlan) -> npt.NDArray[np.float32]:
    """Draw the random numbers of the crops of a batch, (B, CROP_COLUMNS)."""
    positions = None if plan.positions is None else plan.positions.tolist()
    return crop.draw(plan.epoch, plan.step, plan.offset, plan.indices, positions)


def _batch(plan: BatchPlan, images: Tensor, split: Split) -> Batch:
    share = {} if plan.positions is None else {"positions": plan.positions.tolist(), "whole": plan.whole}
    return {
        "images": images,
        "labels": torch.from_numpy(split.labels_of(plan.indices)),
        "index": torch.from_numpy(plan.indices),
        "epoch": plan.epoch,
        "step": plan.step,
        "offset": plan.offset,
        **share,
    }


def decoded_bytes(split: Split, pipeline: EvalPipeline, crop: RandomResizedCrop | None) -> int:
    """Return the bytes that :class:`MemoryDataset` allocates for a split."""
    if split.arrays is not None and _is_stored(split.arrays, pipeline, crop):
        return 0
    storage = _storage(pipeline, crop)
    return len(split) * storage.channels * math.prod(storage.size)


def _storage(pipeline: EvalPipeline, crop: RandomResizedCrop | None) -> EvalPipeline:
    """Return the pipeline that fits images to the size at which they are held in memory."""
    return pipeline if crop is None else crop.storage


def _is_stored(arrays: npt.NDArray[np.uint8], pipeline: EvalPipeline, crop: RandomResizedCrop | None) -> bool:
    """Return whether arrays (n, H, W, C) need no decoding: the pipeline would not change them, or a crop fits them."""
    storage = _storage(pipeline, crop)
    if arrays.shape[3] != storage.channels:
        return False
    if crop is not None:
        return all(side <= limit for side, limit in zip(arrays.shape[1:3], storage.size, strict=True))
    return arrays.shape[1:3] == storage.size and (storage.config.fit != "crop" or storage.config.crop_ratio == 1)
