"""Known datasets that are decoded already, such as CIFAR-10: each image becomes a PNG, which keeps every pixel."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitreous.data.config import DataConfig
from vitreous.data.images.stored import StoredImage
from vitreous.data.sources.known import PixelSet
from vitreous.data.sources.listing import Entry, Listing
from vitreous.data.sources.scan import content_hash
from vitreous.data.sources.split import held_out

__all__ = ["as_entries"]


class _Pixels:
    """The images (n, H, W, C) of a split, encoded when they are read."""

    def __init__(self, name: str, images: npt.NDArray[np.uint8]) -> None:
        self.name, self.images = name, images

    def read(self, offset: int, length: int) -> bytes:
        """Return one image, at the position ``offset``, as a PNG."""
        buffer = io.BytesIO()
        Image.fromarray(self.images[offset].squeeze()).save(buffer, "PNG", compress_level=6)
        return buffer.getvalue()


class _PixelImage(StoredImage):
    """An image whose length is known once it is encoded."""

    __slots__ = ()

    def read(self) -> bytes:
        """Return the image as a PNG."""
        content = self.container.read(self.offset, 0)
        self.length = len(content)
        return content


def as_entries(pixels: PixelSet, config: DataConfig) -> Listing:
    """Return a decoded dataset as a listing of PNGs, with the splits that training uses."""
    entries = []
    for split, (images, labels) in pixels.splits.items():
        container = _Pixels(config.source, images)
        sides = np.full(len(labels), split, "<U5")
        if pixels.test_fraction:
            digests = [content_hash(image.data) for image in images]
            sides = np.where(held_out(digests, pixels.test_fraction, salt=1), "test", sides)
        own = len(pixels.splits) > 1 or pixels.test_fraction > 0
        for n, (label, side) in enumerate(zip(labels.tolist(), sides.tolist(), strict=True)):
            name = f"{split if len(pixels.splits) > 1 else config.source}/{n}.png"
            image = _PixelImage(container, name, n, images[n].nbytes)
            entries.append(Entry(image, name, pixels.classes[label], side if own else None))
    return Listing(Path(config.source), entries, classes=pixels.classes)
