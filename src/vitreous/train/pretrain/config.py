"""The configuration of a pretraining run: that of any run, a method, and the options of each method."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from typing import Any, Literal

from vitreous.errors import ConfigError
from vitreous.train.config import AUTO, RunConfig
from vitreous.train.pretrain import METHODS
from vitreous.train.pretrain.objectives.dino import DinoConfig
from vitreous.train.pretrain.objectives.lejepa import LeJepaConfig
from vitreous.train.pretrain.objectives.mae import MaeConfig
from vitreous.train.pretrain.objectives.mpp import MppConfig
from vitreous.train.pretrain.objectives.views import MultiView, ViewsConfig
from vitreous.train.pretrain.objectives.visreg import VisRegConfig

__all__ = ["MonitorConfig", "PretrainConfig"]

MethodName: Any = Literal[*METHODS]  # Any for mypy, which does not accept a computed Literal
_LABELS_ONLY = ("label_smoothing", "class_weights", "balanced_sampling", "patience", "select", "ema", "patches_last")


@dataclass(frozen=True)
class MonitorConfig:
    """What is measured during pretraining (:mod:`vitreous.train.pretrain.monitor`).

    Args:
        every: Epochs between two probes of the features by k nearest neighbours and a linear layer, where there are
            labels. The first and the last epoch are always probed.
        images: Most images of val whose rank is measured, and most labelled images of train and of val for the probes.
        stop: Whether a collapse stops the run.
    """

    every: int = 5
    images: int = 2000
    stop: bool = True

    def __post_init__(self) -> None:
        """Check ranges, and report all problems in one error."""
        problems = [
            f"monitor.{name} is {getattr(self, name)}, it must be at least {least}"
            for name, least in (("every", 1), ("images", 2))
            if getattr(self, name) < least
        ]
        if problems:
            raise ConfigError("; ".join(problems))


@dataclass(frozen=True)
class PretrainConfig(RunConfig):
    """One pretraining run. The fields of :class:`~vitreous.train.config.RunConfig` come first.

    Args:
        method: How to learn without labels. `mae`: predict masked patches. `mpp`: predict the mean colours of masked
            patches, as the paper. `visreg` and `lejepa`: views of an image agree, and all images together are spread
            out. `dino`: a student predicts a teacher.
        mae: Options of mae.
        mpp: Options of mpp.
        views: The crops of visreg, lejepa and dino.
        visreg: Options of visreg.
        lejepa: Options of lejepa.
        dino: Options of dino.
        monitor: What is measured during pretraining.
    """

    method: MethodName = "mae"
    mae: MaeConfig = field(default_factory=MaeConfig)
    mpp: MppConfig = field(default_factory=MppConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    visreg: VisRegConfig = field(default_factory=VisRegConfig)
    lejepa: LeJepaConfig = field(default_factory=LeJepaConfig)
    dino: DinoConfig = field(default_factory=DinoConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)

    def __post_init__(self) -> None:
        """Check what pretraining has no use for, besides choices and ranges."""
        super().__post_init__()
        default, problems = RunConfig(), []
        problems += [
            f"{name} is {value}, but only training on labels uses it: omit it"
            for name in _LABELS_ONLY
            if (value := getattr(self, name)) != getattr(default, name)
        ]
        if self.augment.mixup or self.augment.cutmix:
            problems.append("mixup and cutmix mix labels, which pretraining does not have: set both to 0")
        if self.model.patch_dropout:
            problems.append(f"model.patch_dropout is {self.model.patch_dropout}, set the mask of the method instead")
        if self.tune.source == AUTO:
            problems.append("tune.source is auto: name the model to continue from with --from")
        if self.tune.mode != "full":
            problems.append(f"tune.mode is {self.tune.mode}, but pretraining trains all weights: omit it")
        if self.optim.layer_decay is not None:
            problems.append(f"optim.layer_decay is {self.optim.layer_decay}, which is for fine-tuning: omit it")
        if self.distil.teacher is not None:
            problems.append("distil.teacher is for training on labels: omit it")
        if self.aux.method != "none":
            instead = ", or use --method mae" if self.aux.method == "mae" else ""
            problems.append(f"aux {self.aux.method} is for training on labels: omit it{instead}")
        if self.devices * self.nodes > 1:
            problems.append(f"devices {self.devices} and nodes {self.nodes}: pretraining uses one process, omit both")
        if self.strategy == "fsdp":
            problems.append("strategy fsdp is for training on labels: omit it")
        if self.compile:
            problems.append("compile is for training on labels: omit it")
        if self.compares_views and self.augment.resized_crop == 1:
            problems.append(f"{self.method} compares crops of an image: set augment.resized_crop below 1, such as 0.3")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def verb(self) -> str:
        """The verb of the command that runs this configuration."""
        return "pretrain"

    @property
    def compares_views(self) -> bool:
        """Whether the method compares several crops of each image."""
        return issubclass(pkgutil.resolve_name(METHODS[self.method]), MultiView)

    @property
    def trains_pool(self) -> bool:
        """Whether a pool with weights learns."""
        return bool(pkgutil.resolve_name(METHODS[self.method]).trains_pool)
