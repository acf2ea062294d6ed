"""An image that lies inside a larger file, such as a shard: read by its offset, and compared with its digest.

What the larger files are, and where they lie, is in :mod:`vitreous.data.shards`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vitreous.data.images.content import content_hash
from vitreous.data.images.headers import UnreadableError

__all__ = ["Container", "ImagePath", "StoredImage", "fetch_stored", "number_shards", "order_by_place"]


class Container(Protocol):
    """A file with many images, on a disk or in a store."""

    name: str

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; fewer if it ends before."""
        ...


class StoredImage(os.PathLike[str]):
    """An image inside a container; as a path it is the container's name and its own.

    Args:
        container: The file that it lies in.
        name: Its name, such as ``tulips/1.jpg``.
        offset: Where its bytes begin in the container.
        length: Number of its bytes.
        digest: Hash of its bytes (:func:`~vitreous.data.images.content.content_hash`); empty if it is not known.
        size: Upright height and width in pixels, if an index says that the image can be decoded; else None.
        grey: Stored without colour.
    """

    __slots__ = ("container", "digest", "grey", "length", "name", "offset", "size")

    def __init__(
        self,
        container: Container,
        name: str,
        offset: int,
        length: int,
        *,
        digest: str = "",
        size: tuple[int, int] | None = None,
        grey: bool = False,
    ) -> None:
        self.container, self.name, self.offset, self.length = container, name, offset, length
        self.digest, self.size, self.grey = digest, size, grey

    def __fspath__(self) -> str:
        return f"{self.container.name}/{self.name}"

    def __str__(self) -> str:
        return self.__fspath__()

    def read(self) -> bytes:
        """Return the bytes of the image; raise UnreadableError if they are not those that the index describes."""
        content = self.container.read(self.offset, self.length)
        if len(content) != self.length or (self.digest and content_hash(content) != self.digest):
            raise UnreadableError(
                f"its bytes in {self.container.name} are not those of the index: the file is damaged or was replaced; "
                "copy it again, or write the shards again"
            )
        return content


ImagePath = Path | StoredImage
"""Where an image is read from."""


def number_shards(images: Sequence[ImagePath]) -> npt.NDArray[np.int64] | None:
    """Return the number of the container of each image, (n,), by first appearance; None if some are files."""
    if not all(isinstance(image, StoredImage) for image in images):
        return None
    numbers: dict[int, int] = {}
    containers = (id(image.container) for image in images if isinstance(image, StoredImage))
    return np.asarray([numbers.setdefault(each, len(numbers)) for each in containers], np.int64)


def order_by_place(images: Sequence[ImagePath]) -> npt.NDArray[np.int64]:
    """Return the positions of images, (n,), in the order of their containers and of their places in them."""
    numbers = number_shards(images)
    if numbers is None:
        return np.arange(len(images))
    offsets = np.asarray([image.offset for image in images if isinstance(image, StoredImage)], np.int64)
    order: npt.NDArray[np.int64] = np.lexsort((offsets, numbers))
    return order


def fetch_stored(images: Sequence[StoredImage]) -> None:
    """Have the images that lie in stores fetched, those of each all at once, for the next time that they are read."""
    stores: dict[int, list[StoredImage]] = {}
    for image in images:
        stores.setdefault(id(getattr(image.container, "folder", None)), []).append(image)
    for own in stores.values():
        if (fetch := getattr(own[0].container, "fetch", None)) is not None:
            fetch(own)
