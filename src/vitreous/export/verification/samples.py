"""The images that a written file is verified on: photographs and noise, in batches and sizes that find fixed ones.

Shapes: B batch, h x w pixels of the images, C channels.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from sklearn.datasets import load_sample_images

from vitreous.data.placement import cover_size
from vitreous.data.preprocess import EvalPipeline

__all__ = ["Sample", "files", "samples", "size_without_resize"]

Pixels = npt.NDArray[np.uint8]

_DISTINCT = 7  # images in a large batch; it repeats them, so that PyTorch need not compute all
_BATCHES = ((7, (224, 224)), (32, (224, 160)), (64, (40, 56)))  # images, and their height and width


@dataclass(frozen=True)
class Sample:
    """A batch of images of one size.

    Attributes:
        name: What it is, for messages.
        images: The distinct images, (n, h, w, C).
        batch: Size of the batch, which repeats the images.
    """

    name: str
    images: Pixels
    batch: int

    def repeated(self) -> Pixels:
        """Return the batch, (B, h, w, C)."""
        return np.ascontiguousarray(self.images[np.arange(self.batch) % len(self.images)])


def samples(pipeline: EvalPipeline) -> Iterator[Sample]:
    """Yield batches of 1, 7, 32 and 64 images, square and not; the first needs no resize, and has noise too."""
    rng = np.random.default_rng(secrets.randbits(128))  # no graph can be made to fit the noise
    photographs = [_channels(photo, pipeline.channels) for photo in load_sample_images().images]
    height, width = size_without_resize(pipeline)
    noise = rng.integers(0, 256, (2, height, width, pipeline.channels), dtype=np.uint8)
    exact = np.concatenate((_windows(photographs, (height, width), _DISTINCT - 2, rng), noise))
    yield Sample(f"{_DISTINCT} images of {height} x {width}, which need no resize", exact, _DISTINCT)
    for number, photo in enumerate(photographs, start=1):
        yield Sample(f"photograph {number}, {photo.shape[0]} x {photo.shape[1]}", photo[None], 1)
    tall = np.ascontiguousarray(photographs[0].transpose(1, 0, 2))[None]
    yield Sample(f"a tall photograph, {tall.shape[1]} x {tall.shape[2]}", tall, 1)
    for batch, size in _BATCHES:
        images = _windows(photographs, size, min(batch, _DISTINCT), rng)
        yield Sample(f"{batch} images of {size[0]} x {size[1]}", images, batch)


def size_without_resize(pipeline: EvalPipeline) -> tuple[int, int]:
    """Return a height and width that the pipeline only crops."""
    return cover_size(pipeline.size, pipeline.config) if pipeline.config.fit == "crop" else pipeline.size


def files(folder: Path) -> list[Path]:
    """Write image files that readers get wrong: rotated by EXIF, grey, with a palette, transparent; return them."""
    photo = Image.fromarray(load_sample_images().images[1]).resize((150, 100))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: rotate by 90 degrees
    photo.save(folder / "rotated.jpg", quality=95, exif=exif)
    photo.save(folder / "plain.png")
    photo.convert("L").save(folder / "grey.png")
    photo.quantize(64).save(folder / "palette.png")
    transparent = photo.convert("RGBA")
    transparent.putalpha(photo.convert("L"))
    transparent.save(folder / "transparent.png")
    return sorted(folder.iterdir())


def _channels(photo: Pixels, channels: int) -> Pixels:
    return photo if channels == 3 else np.asarray(Image.fromarray(photo).convert("L"))[:, :, None]


def _windows(photographs: list[Pixels], size: tuple[int, int], count: int, rng: np.random.Generator) -> Pixels:
    """Cut windows of a size out of photographs, enlarged where they are smaller; (count, h, w, C)."""
    height, width = size
    found = []
    for n in range(count):
        photo = photographs[n % len(photographs)]
        repeats = (-(-height // photo.shape[0]), -(-width // photo.shape[1]), 1)
        photo = np.tile(photo, repeats)
        top, left = (int(rng.integers(0, photo.shape[axis] - size[axis] + 1)) for axis in (0, 1))
        found.append(photo[top : top + height, left : left + width])
    return np.stack(found)
