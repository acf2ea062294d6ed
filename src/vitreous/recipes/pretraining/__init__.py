"""Recipes of `vitreous pretrain`: a function per method, which returns the configuration of a run.

The files are written like those of :mod:`vitreous.recipes`. Their images have 32 pixels; for other data,
:func:`pretraining_recipe` takes the sizes of images and patches from the recipe that classifies them.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from vitreous.errors import UsageError, did_you_mean
from vitreous.recipes import recipe, recipe_for

if TYPE_CHECKING:
    from vitreous.train.pretrain.config import PretrainConfig

__all__ = ["PRETRAINING", "pretraining_recipe"]

PRETRAINING: dict[str, str] = {
    "mae": "predict the pixels of masked patches: the fastest, for fine-tuning",
    "mpp": "predict the mean colours of masked patches, as arXiv 2010.11929",
    "visreg": "views agree, with variance and a sliced Wasserstein distance: features to use as they are",
    "lejepa": "views agree, with SIGReg",
    "dino": "a student predicts a teacher: for GPUs",
}
"""The name of each recipe, which is that of its method, with the line that `vitreous pretrain --help` shows."""


def pretraining_recipe(method: str, source: str | None = None) -> PretrainConfig:
    """Return the recipe of a method, with the sizes of images and patches that suit the data.

    Raises:
        UsageError: If there is no method of that name.
    """
    if method not in PRETRAINING:
        raise UsageError(
            f"there is no method '{method}'.{did_you_mean(method, PRETRAINING)} Known: {', '.join(PRETRAINING)}"
        )
    config: PretrainConfig = getattr(importlib.import_module(f"vitreous.recipes.pretraining.{method}"), method)()
    if source is not None:
        like = recipe(recipe_for(source))
        sizes = {name: getattr(like.model, name) for name in ("image_size", "patch_size", "in_channels")}
        config = dataclasses.replace(
            config,
            data=dataclasses.replace(config.data, source=source),
            model=dataclasses.replace(config.model, **sizes),
            augment=dataclasses.replace(config.augment, flip=like.augment.flip),
        )
    return dataclasses.replace(config, recipe=method)
