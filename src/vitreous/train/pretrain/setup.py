"""Prepares a pretraining run: opens the data, completes the configuration, and builds the objective."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from vitreous.accelerate.model import build
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import ImageData
from vitreous.errors import ConfigError, DataError
from vitreous.machine.allocator import keep_freed_memory
from vitreous.machine.device import choose_device, choose_precision
from vitreous.machine.threads import one_thread
from vitreous.train.config import RunConfig
from vitreous.train.console import Display
from vitreous.train.finetune.initialisation import Pretrained, open_pretrained
from vitreous.train.finetune.starting_point import expand_short_name
from vitreous.train.pretrain.building import build_objective
from vitreous.train.pretrain.config import PretrainConfig
from vitreous.train.pretrain.objectives.base import Objective
from vitreous.train.setup import Setup, fit_to_data, make_loading, open_data

__all__ = ["describe_targets", "prepare"]

_SAMPLED = 256  # images whose targets are looked at
_LEAST_ENTROPY = 0.05  # nats: targets of less are constant but for a few images


def prepare(config: RunConfig, explicit: Collection[str], view: Display) -> Setup:
    """Open the data, and build the loaders and the objective, which is the `model` of the result.

    Raises:
        ConfigError: If weights of the pool would stay random.
        DataError: If what the loss asks for is the same in nearly all images, so that there is nothing to learn.
    """
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device)
    if device.type == "cpu":
        keep_freed_memory()  # before the first thread starts
    pretrained = None
    explicit = {*explicit} - {"num_classes"}
    if config.tune.source is not None:
        config, explicit = expand_short_name(config, explicit)
        with one_thread():
            config, pretrained = open_pretrained(config, explicit)
        explicit = {*explicit, "in_channels"}
    on_pool = _notes_on_pool(cast(PretrainConfig, config), pretrained)
    data = open_data(config, view, needs_labels=False)
    config = fit_to_data(config, data, explicit)
    config = cast(PretrainConfig, replace(config, model=replace(config.model, num_classes=0)))
    pipeline, loading = make_loading(config, data, crop_on_device=config.compares_views)
    torch.manual_seed(config.seed)
    with one_thread():
        backbone = build(config.model)
        if pretrained is not None:
            pretrained.load_into(backbone)
            pretrained = replace(pretrained, state={})
        objective = build_objective(config, backbone, pipeline)
    for scale in config.augment.small_first:
        objective.check_scale(scale)
    data.notes.extend((describe_targets(objective, data, pipeline), *on_pool))
    if objective.compares_images and config.accumulate > 1:
        part, changed = config.batch_size // config.accumulate, f"accumulate {config.accumulate} changes its loss"
        data.notes.append(f"{config.method} compares the {part} images of a part: {changed}")
    return Setup(config, data, pipeline, loading, cast(Any, objective), device, precision, pretrained)


def _notes_on_pool(config: PretrainConfig, pretrained: Pretrained | None) -> list[str]:
    """Return a note if the method leaves the weights of the source's pool as they are; refuse random ones."""
    pool = config.model.pool
    if config.trains_pool or not pool.attends:
        return []
    if pretrained is None:
        raise ConfigError(
            f"{config.method} does not train pool {pool.kind}, whose weights would stay random: use --model.pool mean "
            "or cls, or a method that compares views, such as --method visreg"
        )
    return [f"{config.method} does not train pool {pool.kind}, whose weights stay those of {pretrained.name}"]


def describe_targets(objective: Objective, data: ImageData, pipeline: EvalPipeline) -> str:
    """Return a line on the entropy of the targets, on a sample of the training images; refuse constant targets."""
    split = data.splits["train"]
    sample = range(0, len(split), -(-len(split) // _SAMPLED))
    split.fetch(sample)
    pixels = np.stack([pipeline.pixels(split.image(n)) for n in sample])
    entropy, what = objective.target_entropy(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous())
    if entropy < _LEAST_ENTROPY:
        raise DataError(
            f"the targets are constant, with an entropy of {abs(entropy):.2g} nats ({what}, in {len(pixels):,} images "
            f"of {data.name}): there is nothing to learn. `vitreous audit` finds blank and repeated images"
        )
    return f"the targets have an entropy of {entropy:.2f} nats ({what}, in {len(pixels):,} images)"
