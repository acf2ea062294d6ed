"""What a run may be told about its data: where it is, how it is split, how pictures become pixels, how batches vary.

Plain dataclasses without torch; each is used by the module of this package that its docstring names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitreous.errors import ConfigError

__all__ = ["AugmentConfig", "DataConfig", "PreprocessConfig"]


@dataclass(frozen=True)
class DataConfig:
    """Where labelled images come from and how they are split (:mod:`vitreous.data.sources.opening`).

    Args:
        source: A known set (`digits`, `cifar10`, ...), a folder, or a .csv / .parquet manifest of path and label.
        dir: Folder for the known sets: read if they are there, downloaded to it otherwise.
        val_fraction: Share of the training images held out for validation where the data has no split for it.
        split: How they are chosen. `stratified`: the same share of every class, to within one image. `hash`: each image
            by its content alone, so that adding images moves none across, and the shares of classes vary; earlier
            versions held out so.
        strict: Stop at the first summary of unreadable files instead of training without them.
        exclude: A text file of paths, one a line, to leave out, such as `vitreous audit --write-exclude` makes.
        memory_gb: Sets whose decoded pictures fit into this many GiB are held in memory; larger ones stream from disk.
        workers: Processes that decode streamed pictures; None picks by the number of cores.
    """

    source: str = "digits"
    dir: str = "~/.cache/vitreous"
    val_fraction: float = 0.2
    split: Literal["stratified", "hash"] = "stratified"
    strict: bool = False
    exclude: str | None = None
    memory_gb: float = 2.0
    workers: int | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 0 < self.val_fraction < 1:
            raise ConfigError(f"val_fraction is {self.val_fraction}, it must be between 0 and 1")
        if self.split not in ("stratified", "hash"):
            raise ConfigError(f"split is '{self.split}', it must be stratified or hash")


@dataclass(frozen=True)
class PreprocessConfig:
    """The one evaluation pipeline that training, evaluation and prediction share (:mod:`vitreous.data.preprocess`).

    Args:
        fit: How a picture meets the model's rectangle. `crop`: resize the shorter side, cut the middle. `squash`:
            resize both sides, changing the aspect ratio. `pad`: resize the longer side, fill with the mean colour.
        crop_ratio: With `crop`, the share of the resized shorter side that is kept, in (0, 1].
        interpolation: Filter used to resize (antialiased).
        mean: Mean per channel, subtracted after scaling pixels to [0, 1]. Empty: measured on the training images.
        std: Standard deviation per channel, divided by. Empty: measured on the training images.
    """

    fit: Literal["crop", "squash", "pad"] = "crop"
    crop_ratio: float = 1.0
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] = "bicubic"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check ranges; YAML and JSON give lists, the fields are tuples."""
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(float(v) for v in getattr(self, name)))
        if not 0 < self.crop_ratio <= 1:
            raise ConfigError(f"crop_ratio is {self.crop_ratio}, it must be in (0, 1]")
        if not all(s > 0 for s in self.std):
            raise ConfigError(f"std is {self.std}, every value must be above 0")
        if not all(math.isfinite(v) for v in (*self.mean, *self.std)):
            raise ConfigError(f"mean is {self.mean} and std {self.std}, every value must be finite")


@dataclass(frozen=True)
class AugmentConfig:
    """How training batches vary, on whole batches and on the device (:mod:`vitreous.data.augment.pipeline`).

    Args:
        flip: Chance of a left-right flip.
        pad_crop: Reflect-pad by this many pixels, then cut a random window of the original size; 0 is off.
        resized_crop: Smallest share of the area that a random resized crop keeps, in (0, 1]; 1 is off.
        resized_crop_ratio: Least and greatest aspect ratio of that crop.
        policy: `none`; `rand`: RandAugment (arXiv 1909.13719); `trivial`: TrivialAugment (arXiv 2103.10158);
            `three`: 3-Augment (arXiv 2204.07118).
        policy_ops: RandAugment's number of operations.
        policy_magnitude: RandAugment's strength, 0 to 10.
        color_jitter: Brightness, contrast and saturation vary by up to this factor; 0 is off.
        erasing: Chance to overwrite a random rectangle with noise (arXiv 1708.04896).
        mixup: Alpha of the beta distribution of mixup (arXiv 1710.09412); 0 is off.
        cutmix: Alpha of CutMix (arXiv 1905.04899); 0 is off. With both, each batch gets one of the two.
        mix_chance: Share of batches that are mixed.
        mix_after: Epochs before the first that is mixed: what was seen a few times is not yet learnt by heart.
        off_last: Share of the schedule, at its end, that trains without policy, erasing, mixup and cutmix.
        small_first: Begin with smaller pictures, which cost less: their sides as shares of the full ones, one after the
            other, each for an equal part of `small_until`. Each must make whole patches.
        small_until: Share of the schedule, with a budget of its time, after which pictures are whole.
    """

    flip: float = 0.5
    pad_crop: int = 0
    resized_crop: float = 1.0
    resized_crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    policy: Literal["none", "rand", "trivial", "three"] = "none"
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

    def side(self, full: int, progress: float) -> int:
        """Of a picture at a point of the schedule, in pixels; ``full`` is the whole side, progress in [0, 1]."""
        if not self.small_first or progress >= self.small_until:
            return full
        return round(full * self.small_first[int(progress / self.small_until * len(self.small_first))])

    def __post_init__(self) -> None:
        """Check ranges, all problems in one error."""
        object.__setattr__(self, "resized_crop_ratio", tuple(self.resized_crop_ratio))
        problems = [
            f"{name} is {getattr(self, name)}, it must be in [0, 1]"
            for name in ("flip", "erasing", "mix_chance", "off_last", "small_until")
            if not 0 <= getattr(self, name) <= 1
        ]
        object.__setattr__(self, "small_first", tuple(self.small_first))
        if not all(0 < share <= 1 for share in self.small_first):
            problems.append(f"small_first is {self.small_first}, each must be a share of the side in (0, 1]")
        if not 0 < self.resized_crop <= 1:
            problems.append(f"resized_crop is {self.resized_crop}, it must be in (0, 1]")
        problems += [
            f"{name} is {getattr(self, name)}, it cannot be negative"
            for name in ("pad_crop", "mixup", "cutmix", "mix_after", "color_jitter", "policy_ops", "policy_magnitude")
            if getattr(self, name) < 0
        ]
        if problems:
            raise ConfigError("; ".join(problems))
