"""The evaluation pipeline: from a decoded image to the model's input, the same in training, evaluation and prediction.

It is built once from the configuration and the training images, and stored in the model file. Decoding is in
:mod:`vitreous.data.images.reading`, augmentation in :mod:`vitreous.data.augment.pipeline`.

Shapes: B images, C channels, H x W pixels of the model's input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.config import PreprocessConfig
from vitreous.data.images.reading import read_image
from vitreous.data.placement import Placement, place
from vitreous.errors import CheckpointError, ConfigError

__all__ = ["EvalPipeline", "channel_statistics"]

_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
_MIDDLE_GREY = 0.5
_LARGEST_SIDE = 16_384  # pixels; an RGB square of this side takes 800 MB as uint8


@dataclass(frozen=True)
class EvalPipeline:
    """Resize, cut and normalise images; deterministic and stateless.

    Args:
        size: Height and width (H, W) of the model's input in pixels.
        channels: 3 for colour, 1 for greyscale (ITU-R 601 luma).
        config: How images are fitted to the size, and mean and std per channel for pixels in [0, 1].

    Raises:
        ConfigError: If the size or the channels are out of range, or mean and std do not have one value per channel.
    """

    size: tuple[int, int]
    channels: int
    config: PreprocessConfig

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", tuple(int(side) for side in self.size))
        problems = []
        kept = self.config.crop_ratio if self.config.fit == "crop" else 1.0  # fraction of the resized sides
        if len(self.size) != 2 or min(self.size) < 1:
            problems.append(f"size is {self.size}, it must be a height and a width of at least 1 pixel")
        elif max(self.size) / kept > _LARGEST_SIDE:
            sides = " x ".join(f"{side / kept:.6g}" for side in self.size)
            problems.append(
                f"images would be resized to {sides} pixels, the limit is {_LARGEST_SIDE:,} per side: use a smaller "
                "image size, or a larger crop_ratio"
            )
        if type(self.channels) is not int or self.channels not in (1, 3):
            problems.append(f"channels is {self.channels}, it must be 1 (greyscale) or 3 (colour)")
        problems += [
            f"{name} has {len(values)} values for {self.channels} channels: give {self.channels}, or none to measure it"
            for name, values in (("mean", self.config.mean), ("std", self.config.std))
            if len(values) not in (0, self.channels)
        ]
        if problems:
            raise ConfigError("; ".join(problems))

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the model's input for one image: float32 (C, H, W)."""
        return self.normalise(torch.from_numpy(self.pixels(image)).permute(2, 0, 1))

    def pixels(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        """Resize one image, then cut or pad it, to uint8 (H, W, C)."""
        if image.mode not in ("RGB", "L"):
            image = read_image(image)
        mode = "RGB" if self.channels == 3 else "L"
        image = image if image.mode == mode else image.convert(mode)
        fitted = self._pad(image) if self.config.fit == "pad" else self._cover(image)
        return np.array(fitted).reshape(*self.size, self.channels)

    def placement(self, height: int, width: int) -> Placement:
        """Return where the pixels of an image of this size lie in the model's input."""
        return place((height, width), self.size, self.config)

    @property
    def padding(self) -> tuple[int, ...]:
        """The colour around an image that is padded, one value from 0 to 255 per channel: the mean."""
        mean = self.config.mean or (_MIDDLE_GREY,) * self.channels
        return tuple(min(255, max(0, round(255 * value))) for value in mean)

    def _cover(self, image: Image.Image) -> Image.Image:
        """Resize the image and cut it to the size."""
        at, (height, width) = self.placement(image.height, image.width), self.size
        image = image if at.cut == (0, 0, *image.size) else image.crop(at.cut)
        image = self._resize(image, (at.resized[1], at.resized[0]))
        return image.crop((-at.left, -at.top, width - at.left, height - at.top))

    def _pad(self, image: Image.Image) -> Image.Image:
        """Resize so that the image just fits into the size, centred on the mean colour."""
        at, (height, width) = self.placement(image.height, image.width), self.size
        colour = self.padding
        canvas = Image.new(image.mode, (width, height), colour if self.channels == 3 else colour[0])
        canvas.paste(self._resize(image, (at.resized[1], at.resized[0])), (at.left, at.top))
        return canvas

    def _resize(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        return image if image.size == size else image.resize(size, _FILTERS[self.config.interpolation])

    def normalise(self, batch: Tensor) -> Tensor:
        """Return ``(batch / 255 - mean) / std`` per channel.

        Args:
            batch: uint8 (B, C, H, W) or (C, H, W), on any device; the result is float32.

        Raises:
            ConfigError: If the number of channels differs, or mean and std are not known yet.
        """
        self._check(batch)
        mean, std = (_per_channel(values, batch.device) for values in (self.config.mean, self.config.std))
        return batch.to(torch.float32, copy=True).div_(255).sub_(mean).div_(std)

    def denormalise(self, batch: Tensor) -> Tensor:
        """Return the pixels of normalised images as float32 in [0, 1], outside of it where the images had no such."""
        mean, std = (_per_channel(values, batch.device) for values in (self.config.mean, self.config.std))
        return batch.float() * std + mean

    def normalise_(self, batch: Tensor) -> Tensor:
        """Normalise float32 pixels in [0, 255] in place: :meth:`normalise` to within 1e-6, in half the passes."""
        self._check(batch)
        factor = tuple(1 / (255 * s) for s in self.config.std)
        shift = tuple(m / s for m, s in zip(self.config.mean, self.config.std, strict=True))
        return batch.mul_(_per_channel(factor, batch.device)).sub_(_per_channel(shift, batch.device))

    def _check(self, batch: Tensor) -> None:
        if batch.ndim < 3 or batch.shape[-3] != self.channels:
            raise ConfigError(f"a batch of shape {tuple(batch.shape)} does not fit (B, {self.channels}, H, W)")
        if not self.has_statistics:
            raise ConfigError("mean and std are not known: set both, or measure them on the training images")

    @property
    def has_statistics(self) -> bool:
        """Whether mean and std are known, as :meth:`normalise` requires."""
        return bool(self.config.mean) and bool(self.config.std)

    def with_measured_statistics(self, images: Iterable[Image.Image]) -> EvalPipeline:
        """Return a copy with mean and std measured on images, where the configuration left them empty.

        With `pad`, images are squashed for the measurement, so that the padding does not count.
        """
        config = self.config
        plain = replace(self, config=replace(config, fit="squash" if config.fit == "pad" else config.fit))
        mean, std = channel_statistics(plain.pixels(image)[None] for image in images)
        return replace(self, config=replace(config, mean=config.mean or mean, std=config.std or std))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, the argument of :meth:`from_dict`."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.config).items()}
        return {"size": list(self.size), "channels": self.channels, **plain}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> EvalPipeline:
        """Return the pipeline that :meth:`to_dict` described."""
        known = {"size", "channels", *(field.name for field in fields(PreprocessConfig))}
        problems = [
            f"{what} {', '.join(sorted(map(str, keys)))}"
            for what, keys in (("unknown", stored.keys() - known), ("missing", known - stored.keys()))
            if keys
        ]
        if problems:
            raise CheckpointError(f"the evaluation pipeline in this model file is invalid: {'; '.join(problems)}")
        try:
            values = dict(stored)
            height, width = values.pop("size")
            return cls((height, width), values.pop("channels"), PreprocessConfig(**values))
        except (ConfigError, TypeError, ValueError) as error:
            raise CheckpointError(f"the evaluation pipeline in this model file is invalid: {error}") from error


def channel_statistics(batches: Iterable[npt.NDArray[np.uint8]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the exact mean and standard deviation per channel over all pixels (..., C), scaled to [0, 1].

    The standard deviation is at least 1/255, so that a constant channel can be normalised.
    """
    count, total, squares = 0, np.zeros(1, np.int64), np.zeros(1, np.int64)
    for batch in batches:
        flat = batch.reshape(-1, batch.shape[-1])
        histogram = np.stack([np.bincount(channel, minlength=256) for channel in flat.T])  # (C, 256)
        values = np.arange(256)
        count += len(flat)
        total = total + histogram @ values
        squares = squares + histogram @ values**2
    if count == 0:
        raise ConfigError("mean and std cannot be measured: there are no images")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 1.0))
    return tuple(float(m) / 255 for m in mean), tuple(float(s) / 255 for s in std)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a tensor created in inference mode cannot be used under autograd later
        return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)
