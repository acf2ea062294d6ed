"""What an opened source of images is: its splits, and what is known of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitreous.data.images.reading import read_image, read_reduced
from vitreous.data.images.stored import ImagePath, StoredImage, fetch_stored, number_shards, order_by_place

__all__ = ["ImageData", "Split"]


@dataclass(frozen=True)
class Split:
    """The labelled images of one split: files, or pixels in memory."""

    labels: npt.NDArray[Any]  # (n,) indices of classes, int64; (n, K) of 0 and 1 if an image may have several, int8
    names: tuple[str, ...]  # of each image: its path relative to the data folder, or `train/17`
    paths: list[ImagePath] | None = None  # None for pixels in memory
    arrays: npt.NDArray[np.uint8] | None = None  # pixels (n, H, W, C); None for files
    digests: tuple[str, ...] = ()  # content hash of each image; of its name and length for trusted files
    soft_labels: npt.NDArray[np.float16] | None = None  # (n, K) probabilities that training learns instead of `labels`

    def __len__(self) -> int:
        return len(self.labels)

    def labels_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return what training learns of B images: labels, int64 (B,) or (B, K), or probabilities, float32 (B, K)."""
        if self.soft_labels is not None:
            return self.soft_labels[indices].astype(np.float32)
        return self.labels[indices].astype(np.int64)

    def image(self, index: int) -> Image.Image:
        """Return one image in mode RGB; raise DataError if its file can no longer be decoded."""
        return read_image(self.arrays[index] if self.arrays is not None else (self.paths or [])[index])

    def reduced_image(self, index: int, min_side: int) -> tuple[Image.Image, float]:
        """Return one image in mode RGB, and the aspect ratio (width / height) of the original.

        A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if both sides keep at least ``min_side`` pixels. That rounds
        its sides, so the aspect ratio is that of the full size.
        """
        if self.paths is None:
            image = self.image(index)
            return image, image.width / image.height
        image, (height, width) = read_reduced(self.paths[index], min_side)
        return image, width / height

    def fetch(self, indices: Sequence[int]) -> None:
        """Fetch images that lie in a store, all at once, before they are read one by one."""
        if self.paths is not None:
            fetch_stored([path for n in indices if isinstance(path := self.paths[n], StoredImage)])

    def fetch_in_groups(self, indices: Sequence[int], count: int) -> Iterator[Sequence[int]]:
        """Yield the indices in groups of at most ``count``, each after its images have been fetched."""
        for first in range(0, len(indices), count):
            group = indices[first : first + count]
            self.fetch(group)
            yield group

    def shard_of(self) -> npt.NDArray[np.int64] | None:
        """Return the number of the shard that each image lies in, (n,); None if some lie in files of their own."""
        return None if self.paths is None else number_shards(self.paths)

    def reading_order(self) -> npt.NDArray[np.int64]:
        """Return the images in the order in which they lie in shards, (n,); files keep theirs."""
        return np.arange(len(self)) if self.paths is None else order_by_place(self.paths)

    def name_of(self, index: int) -> str:
        """Return the name of one image."""
        return self.names[index]


@dataclass(frozen=True)
class ImageData:
    """An opened source: every image is readable and has a label and a split.

    Args:
        name: Name of the known dataset, the folder or the manifest; for run directories and titles.
        classes: Class names; labels are indices into it.
        splits: `train`, `val` and, if there is one, `test`. Without holding out: the splits of the data, or `all`.
        channels: 1 if every image is stored without colour, else 3.
        native_size: Height and width in pixels if all images share them, else None.
        median_size: Median height and median width of the images.
        fingerprint: Hash of every image's name, label and content; independent of order and split.
        order: Hash of the classes, and of every image's name, label and content in the order of each split.
        held_out: Record of the images held out here (:func:`vitreous.data.sources.split.record_of`).
        unlabelled: Images without a label that training may see besides; none of them is in another split.
        unreadable: Path and reason of each file left out because it cannot be decoded.
        notes: Lines to print: how the data was split, what was ignored, what may be unexpected.
    """

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Split]
    channels: int
    native_size: tuple[int, int] | None
    median_size: tuple[int, int]
    fingerprint: str
    order: str = ""
    held_out: str | None = None
    unlabelled: Split | None = None
    unreadable: list[tuple[ImagePath, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def several(self) -> bool:
        """Whether an image may have several labels, or none."""
        return any(split.labels.ndim == 2 for split in self.splits.values())

    def counts(self) -> dict[str, int]:
        """Return the number of images per class, over all splits, in the order of the classes."""
        total = sum(_count(split.labels, len(self.classes)) for split in self.splits.values())
        return dict(zip(self.classes, np.asarray(total).tolist(), strict=True))


def _count(labels: npt.NDArray[Any], classes: int) -> npt.NDArray[np.int64]:
    """Return the number of images of each class, (K,)."""
    return labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=classes)
