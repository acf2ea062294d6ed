"""Configuration of the data: source and split, evaluation pipeline, augmentation.

Plain dataclasses that import no torch. Each docstring names the module that reads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from vitreous.choices import unknown_choices
from vitreous.data.augment import POLICIES
from vitreous.data.sources.urls import check_address
from vitreous.errors import ConfigError

__all__ = ["AugmentConfig", "DataConfig", "PreprocessConfig"]

PolicyName: Any = Literal["none", *POLICIES]  # Any for mypy, which does not accept a computed Literal


@dataclass(frozen=True)
class DataConfig:
    """Source of the labelled images and how they are split (:mod:`vitreous.data.sources.opening`).

    Args:
        source: A known dataset (`digits`, `cifar10`, ...), a folder of images or shards, also one in a store (s3://,
            gs://, az://, hf://), or a .csv, .parquet or .jsonl manifest of paths and labels.
        dir: Folder of the known datasets. A dataset that is not in it is downloaded to it.
        val_fraction: Fraction of the training images held out for validation if the data has no validation split.
        split: How these images are chosen. `stratified`: the same fraction of every class, to within one image. `hash`:
            each image by its content alone; images added later move no image across the split, but the fraction varies
            between classes.
        strict: Fail if a file cannot be decoded. By default such files are left out and reported.
        exclude: Text file of paths to leave out, one per line, as `vitreous audit --write-exclude` writes it.
        memory_gb: Keep decoded images in memory if they fit into this many GiB; otherwise stream them from disk.
        workers: Worker processes that decode streamed images. None chooses by the number of cores.
        shuffle_shards: Shards that are mixed at a time in training, where images lie in more (`vitreous shard`).
        cache_gb: GiB of shards from a store (s3://, gs://, az://, hf://) that are kept in the user's cache folder.
    """

    source: str = "digits"
    dir: str = "~/.cache/vitreous"
    val_fraction: float = 0.2
    split: Literal["stratified", "hash"] = "stratified"
    strict: bool = False
    exclude: str | None = None
    memory_gb: float = 2.0
    workers: int | None = None
    shuffle_shards: int = 16
    cache_gb: float = 10.0

    def __post_init__(self) -> None:
        problems = []
        if self.shuffle_shards < 1:
            problems.append(f"shuffle_shards is {self.shuffle_shards}, it must be at least 1")
        if self.workers is not None and self.workers < 0:
            problems.append(f"workers is {self.workers}, it cannot be negative")
        if not 0 <= self.cache_gb < 1 << 20:
            problems.append(f"cache_gb is {self.cache_gb}, it must be between 0 and 1,048,576")
        if not 0 < self.val_fraction < 1:
            problems.append(f"val_fraction is {self.val_fraction}, it must be between 0 and 1")
        check_address(self.source)
        _raise_all([*problems, *unknown_choices(self)])


@dataclass(frozen=True)
class PreprocessConfig:
    """The evaluation pipeline that training, evaluation and prediction share (:mod:`vitreous.data.preprocess`).

    Args:
        fit: How an image is brought to the model's input size. `crop`: resize the shorter side, then cut the centre.
            `squash`: resize both sides, changing the aspect ratio. `pad`: resize the longer side, then fill with the
            mean colour.
        crop_ratio: With `crop`, the fraction of the resized shorter side that is kept, in (0, 1].
        interpolation: Resampling filter (antialiased).
        mean: Mean per channel, for pixels in [0, 1]. Empty: measured on the training images.
        std: Standard deviation per channel, for pixels in [0, 1]. Empty: measured on the training images.
    """

    fit: Literal["crop", "squash", "pad"] = "crop"
    crop_ratio: float = 1.0
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] = "bicubic"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Make tuples of the lists that YAML and JSON give; check ranges and choices."""
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(float(v) for v in getattr(self, name)))
        problems = []
        if not 0 < self.crop_ratio <= 1:
            problems.append(f"crop_ratio is {self.crop_ratio}, it must be in (0, 1]")
        if not all(s > 0 for s in self.std):
            problems.append(f"std is {self.std}, every value must be above 0")
        if not all(math.isfinite(v) for v in (*self.mean, *self.std)):
            problems.append(f"mean is {self.mean} and std {self.std}, every value must be finite")
        _raise_all([*problems, *unknown_choices(self)])


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation of training batches, on the device (:mod:`vitreous.data.augment.pipeline`).

    Args:
        flip: Probability of a horizontal flip.
        pad_crop: Pad by this many pixels by reflection, then cut a random window of the original size; 0 is off.
        resized_crop: Smallest fraction of the area that a random resized crop keeps, in (0, 1]; 1 is off.
        resized_crop_ratio: Smallest and largest aspect ratio of that crop.
        policy: Random operations on each image. `none`; `rand`: RandAugment (arXiv 1909.13719); `trivial`:
            TrivialAugment (arXiv 2103.10158); `three`: 3-Augment (arXiv 2204.07118); or the name of an added policy.
        policy_ops: Number of operations of RandAugment.
        policy_magnitude: Magnitude of RandAugment, 0 to 10.
        color_jitter: Largest relative change of brightness, contrast and saturation; 0 is off.
        erasing: Probability of overwriting a random rectangle with noise (arXiv 1708.04896).
        mixup: Alpha of mixup's beta distribution (arXiv 1710.09412); 0 is off.
        cutmix: Alpha of CutMix's beta distribution (arXiv 1905.04899); 0 is off. If both are on, each batch gets one.
        mix_chance: Probability that a batch is mixed.
        mix_after: Epochs before mixing starts: an image seen a few times is not memorised yet.
        off_last: Fraction of the schedule, at its end, that trains without policy, erasing, mixup and CutMix.
        small_first: Side lengths to begin training with, as fractions of the full side; smaller images cost less. Each
            is used for an equal part of `small_until`, and must be a whole number of patches.
        small_until: Fraction of the schedule (of its time, if it has a time budget) after which images have full size.
    """

    flip: float = 0.5
    pad_crop: int = 0
    resized_crop: float = 1.0
    resized_crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    policy: PolicyName = "none"
    policy_ops: int = 2
    policy_magnitude: float = 9.0
    color_jitter: float = 0.0
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_chance: float = 1.0
    mix_after: int = 0
    off_last: float = 0.0
    small_first: tuple[float, ...] = ()
    small_until: float = 0.5

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed."""
        return bool(self.mix_chance and (self.mixup or self.cutmix))

    def __post_init__(self) -> None:
        """Make tuples of the lists that YAML and JSON give; check ranges and choices."""
        for name in ("resized_crop_ratio", "small_first"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        problems = [
            f"{name} is {getattr(self, name)}, it must be in [0, 1]"
            for name in ("flip", "erasing", "mix_chance", "off_last", "small_until")
            if not 0 <= getattr(self, name) <= 1
        ]
        if not all(0 < fraction <= 1 for fraction in self.small_first):
            problems.append(f"small_first is {self.small_first}, each must be a fraction of the side in (0, 1]")
        if not 0 < self.resized_crop <= 1:
            problems.append(f"resized_crop is {self.resized_crop}, it must be in (0, 1]")
        ratio = self.resized_crop_ratio
        if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1] < math.inf:
            problems.append(f"resized_crop_ratio is {ratio}, it must be two numbers above 0, the smaller one first")
        problems += [
            f"{name} is {getattr(self, name)}, it cannot be negative"
            for name in ("pad_crop", "mixup", "cutmix", "mix_after", "color_jitter", "policy_ops", "policy_magnitude")
            if getattr(self, name) < 0
        ]
        _raise_all([*problems, *unknown_choices(self)])

    def side_at(self, full: int, progress: float) -> int:
        """Return the side length of training images in pixels.

        Args:
            full: The model's input side in pixels.
            progress: Completed fraction of the schedule, in [0, 1].
        """
        if not self.small_first or progress >= self.small_until:
            return full
        return round(full * self.small_first[int(progress / self.small_until * len(self.small_first))])


def _raise_all(problems: list[str]) -> None:
    """Raise all problems of one configuration as one error."""
    if problems:
        raise ConfigError("; ".join(problems))
