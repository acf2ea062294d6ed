"""The one evaluation pipeline: from a picture to the numbers that a model sees, in training, evaluation and prediction.

Built once from the configuration and the training images, stored in the model file, used by every command. Decoding
is :mod:`vitreous.data.images.reading`; random changes are :mod:`vitreous.data.augment.pipeline`.

Shapes: B batch, C channels, H x W pixels of the model's input.
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
from vitreous.data.images.reading import read_picture
from vitreous.errors import CheckpointError, ConfigError

__all__ = ["EvalPipeline", "channel_statistics"]

_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
_MIDDLE_GREY = 0.5
_LARGEST_SIDE = 16_384  # pixels: a square of these takes 800 MB before it is a number
_LONGEST = 16  # a picture longer than this many times the target is cut before it is resized


@dataclass(frozen=True)
class EvalPipeline:
    """Resizes, cuts and normalises; deterministic and without state.

    Args:
        size: Height and width (H, W) in pixels of what the model sees.
        channels: 3 for colour, 1 for grey (ITU-R 601 luma).
        config: How pictures meet the rectangle, and mean and std per channel in [0, 1].

    Raises:
        ConfigError: If the size or the channels are out of range, or mean and std do not have one value per channel.
    """

    size: tuple[int, int]
    channels: int
    config: PreprocessConfig

    def __post_init__(self) -> None:
        """Check that the parts fit together, all problems in one error."""
        object.__setattr__(self, "size", tuple(int(side) for side in self.size))
        problems = []
        if len(self.size) != 2 or min(self.size) < 1:
            problems.append(f"size is {self.size}, it must be a height and a width of at least 1 pixel")
        elif max(self.size) / self._share > _LARGEST_SIDE:
            sides = " x ".join(f"{side / self._share:.6g}" for side in self.size)
            problems.append(
                f"images would be resized to {sides} pixels, at most {_LARGEST_SIDE:,} a side are: use a smaller image "
                "size, or a larger crop_ratio"
            )
        if type(self.channels) is not int or self.channels not in (1, 3):
            problems.append(f"channels is {self.channels}, it must be 1 (grey) or 3 (colour)")
        problems += [
            f"{name} has {len(values)} values for {self.channels} channels: give {self.channels}, or none to measure it"
            for name, values in (("mean", self.config.mean), ("std", self.config.std))
            if len(values) not in (0, self.channels)
        ]
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def _share(self) -> float:
        """The share of the resized image's sides that is kept."""
        return self.config.crop_ratio if self.config.fit == "crop" else 1.0

    @property
    def has_statistics(self) -> bool:
        """Whether mean and std are known, as :meth:`normalise` needs."""
        return bool(self.config.mean) and bool(self.config.std)

    def with_statistics(self, mean: Iterable[float], std: Iterable[float]) -> EvalPipeline:
        """The same pipeline with mean and std filled in where the configuration left them empty."""
        config = self.config
        return replace(self, config=replace(config, mean=config.mean or tuple(mean), std=config.std or tuple(std)))

    def measured(self, pictures: Iterable[Image.Image]) -> EvalPipeline:
        """The same pipeline with mean and std measured on these pictures, where the configuration left them empty.

        With `pad`, the pictures are squashed for the measurement: bars are no part of them.
        """
        fit = "squash" if self.config.fit == "pad" else self.config.fit
        plain = replace(self, config=replace(self.config, fit=fit))
        return self.with_statistics(*channel_statistics(plain.pixels(picture)[None] for picture in pictures))

    def pixels(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        """Resize, then cut or pad, one picture.

        Args:
            image: Any mode; RGB and L are taken as they are.

        Returns:
            Array (H, W, C) of uint8.
        """
        if image.mode not in ("RGB", "L"):
            image = read_picture(image)
        wanted = "RGB" if self.channels == 3 else "L"
        image = image if image.mode == wanted else image.convert(wanted)
        fitted = {"crop": self._crop, "squash": self._squash, "pad": self._pad}[self.config.fit](image)
        return np.array(fitted).reshape(*self.size, self.channels)

    def normalise(self, batch: Tensor) -> Tensor:
        """``(batch / 255 - mean) / std`` per channel.

        Args:
            batch: Pixels (B, C, H, W), or (C, H, W), in [0, 255]; uint8, on any device.

        Returns:
            float32, of the same shape and on the same device.

        Raises:
            ConfigError: If the channels do not fit, or mean and std are not known yet.
        """
        self._check(batch)
        mean, std = (_per_channel(values, batch.device) for values in (self.config.mean, self.config.std))
        return batch.to(torch.float32, copy=True).div_(255).sub_(mean).div_(std)

    def normalise_(self, batch: Tensor) -> Tensor:
        """The same in place and in two passes, not in four: to 1e-6 of what :meth:`normalise` gives.

        Args:
            batch: float32 pixels (B, C, H, W), or (C, H, W), in [0, 255], on any device.

        Raises:
            ConfigError: As there.
        """
        self._check(batch)
        factor = tuple(1 / (255 * s) for s in self.config.std)
        shift = tuple(m / s for m, s in zip(self.config.mean, self.config.std, strict=True))
        return batch.mul_(_per_channel(factor, batch.device)).sub_(_per_channel(shift, batch.device))

    def _check(self, batch: Tensor) -> None:
        """Raise where a batch cannot be normalised."""
        if batch.ndim < 3 or batch.shape[-3] != self.channels:
            raise ConfigError(f"a batch of shape {tuple(batch.shape)} does not fit (B, {self.channels}, H, W)")
        if not self.has_statistics:
            raise ConfigError("mean and std are not known: set both, or measure them on the training images")

    def __call__(self, image: Image.Image) -> Tensor:
        """One picture as the model sees it: float32 (C, H, W)."""
        return self.normalise(torch.from_numpy(self.pixels(image)).permute(2, 0, 1))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` is the way back."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.config).items()}
        return {"size": list(self.size), "channels": self.channels, **plain}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> EvalPipeline:
        """The pipeline that :meth:`to_dict` described.

        Raises:
            CheckpointError: If keys are missing or unknown, or a value cannot be meant.
        """
        known = {"size", "channels", *(field.name for field in fields(PreprocessConfig))}
        problems = [
            f"{what} {', '.join(sorted(map(str, keys)))}"
            for what, keys in (("unknown", stored.keys() - known), ("missing", known - stored.keys()))
            if keys
        ]
        if problems:
            raise CheckpointError(f"the evaluation pipeline of this model file does not fit: {'; '.join(problems)}")
        choices = {"fit": ("crop", "squash", "pad"), "interpolation": tuple(_FILTERS)}
        for name, allowed in choices.items():
            if stored[name] not in allowed:
                raise CheckpointError(f"pipeline {name} is {stored[name]!r}, known are {', '.join(allowed)}")
        try:
            values = dict(stored)
            height, width = values.pop("size")
            return cls((height, width), values.pop("channels"), PreprocessConfig(**values))
        except (ConfigError, TypeError, ValueError) as error:
            raise CheckpointError(f"the evaluation pipeline of this model file cannot be used: {error}") from error

    def _crop(self, image: Image.Image) -> Image.Image:
        """Resize so that the picture just covers the target divided by `crop_ratio`, cut the middle."""
        height, width = self.size
        # Floor as timm does: 224 at 0.875 is 256. The longer side is floored as torchvision's Resize does.
        cover_h, cover_w = int(height / self.config.crop_ratio), int(width / self.config.crop_ratio)
        if image.width * cover_h > image.height * cover_w:
            image = _shorten(image, _LONGEST * cover_w * image.height // cover_h, image.height)
            resized = (image.width * cover_h // image.height, cover_h)
        else:
            image = _shorten(image, image.width, _LONGEST * cover_h * image.width // cover_w)
            resized = (cover_w, image.height * cover_w // image.width)
        image = self._resize(image, resized)
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))

    def _squash(self, image: Image.Image) -> Image.Image:
        return self._resize(image, (self.size[1], self.size[0]))

    def _pad(self, image: Image.Image) -> Image.Image:
        """Resize so that the picture just fits into the target, centred on the mean colour."""
        height, width = self.size
        if image.width * height > image.height * width:
            resized = (width, max(1, image.height * width // image.width))
        else:
            resized = (max(1, image.width * height // image.height), height)
        mean = self.config.mean or (_MIDDLE_GREY,) * self.channels
        colour = tuple(min(255, max(0, round(255 * value))) for value in mean)
        canvas = Image.new(image.mode, (width, height), colour if self.channels == 3 else colour[0])
        canvas.paste(self._resize(image, resized), ((width - resized[0]) // 2, (height - resized[1]) // 2))
        return canvas

    def _resize(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        """PIL's antialiased resize to (width, height); a picture of that size already stays as it is."""
        return image if image.size == size else image.resize(size, _FILTERS[self.config.interpolation])


def channel_statistics(batches: Iterable[npt.NDArray[np.uint8]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel over all pixels, exact, on the scale [0, 1].

    Args:
        batches: Arrays (n, H, W, C) of uint8. One array (n, H, W, C) is also such an iterable, of (H, W, C).

    Returns:
        Mean and std, one value per channel. The std is at least 1/255, so that a constant channel can be divided by.
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
        raise ConfigError("mean and std cannot be measured: there are no pictures")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 1.0))
    return tuple(float(m) / 255 for m in mean), tuple(float(s) / 255 for s in std)


def _shorten(image: Image.Image, width: int, height: int) -> Image.Image:
    """Cut the middle (width, height) of a picture that is larger: resizing a 1 x 50,000 strip would fill the memory."""
    if image.width <= width and image.height <= height:
        return image
    width, height = min(max(1, width), image.width), min(max(1, height), image.height)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A number for each channel as (C, 1, 1) on the device, built once."""
    with torch.inference_mode(False):  # a tensor born in inference mode could not be used under autograd later
        return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)
