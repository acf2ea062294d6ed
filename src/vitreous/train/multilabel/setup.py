"""Fits a configuration to data in which an image may have several labels, and refuses what has no meaning there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vitreous.errors import ConfigError
from vitreous.train.config import RunConfig

__all__ = ["for_several_labels"]


def for_several_labels(config: RunConfig) -> RunConfig:
    """Return the configuration with what a run with several labels can do.

    The epoch and the stage are chosen by mAP in place of top-1. The probe of the frozen features beside other training,
    which compares by top-1, is left out.

    Raises:
        ConfigError: If a setting needs one class of each image.
    """
    if problems := list(_conflicts(config)):
        raise ConfigError("; ".join(problems))
    select = "mean_ap" if config.select == "top1" else config.select
    return replace(config, select=select, tune=replace(config.tune, probe=False))


def _conflicts(config: RunConfig) -> Iterator[str]:
    where = "an image of this data may have several labels"
    if config.balanced_sampling:
        yield f"balanced_sampling draws by the one class of each image, but {where}: use class_weights"
