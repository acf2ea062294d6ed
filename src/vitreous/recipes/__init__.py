"""Recipes: functions that return the configuration of a run.

Each file opens with the command, settings, cost, hardware and score of a recipe. Read `digits` first. `start`, `folder`
and `finetune` are the defaults for your own images, and `backbone` made what `start` starts from. `cifar10` and
`cifar100` and their `_cpu` and `_gpu` variants aim at a high score. `paper_*`, `simple_vit`, `notebook_*` and
`annotated_cifar10` reproduce published settings.

To change a value, name its field: ``vitreous train cifar10 --optim.lr 0.001``. The fields and their defaults are in
train/config.py, data/config.py and model/config.py.

To add a recipe, write ``recipes/my_name.py`` with a function ``my_name() -> RunConfig``, and add ``my-name`` to
``RECIPES``. tests/test_recipes.py checks that the header of the file agrees with the configuration.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from vitreous.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from vitreous.train.config import RunConfig

__all__ = ["RECIPES", "recipe", "recipe_for"]

RECIPES: dict[str, str] = {
    "digits": "bundled handwritten digits: half a minute on two CPU cores",
    "backbone": "the small backbone inside the package, from 129,000 small images of 210 classes",
    "start": "your own images, from the small backbone in this package: a few thousand in minutes on two CPU cores",
    "folder": "your own images, from scratch",
    "cifar10": "CIFAR-10 with modern training: small ViT, convolutional stem, Muon",
    "cifar100": "CIFAR-100, the same with 100 classes",
    "cifar10-cpu": "CIFAR-10 in half an hour on two CPU cores: plain ViT, Muon, small images first",
    "cifar10-gpu": "CIFAR-10 in ten minutes on one GPU, a draft",
    "cifar100-gpu": "CIFAR-100 in ten minutes on one GPU, a draft",
    "notebook-cifar10": "the public notebook tutorials on CIFAR-10: width 256, 6 layers, 180 epochs",
    "notebook-cifar100": "the public notebook tutorials on CIFAR-100: width 256, 24 layers, 180 epochs",
    "annotated-cifar10": "the annotated ViT on CIFAR-10: width 512, 6 layers, 32 epochs",
    "paper-imagenet": "ViT-B/16 on ImageNet from scratch, as arXiv 2010.11929 table 3",
    "finetune": "from a trained model: what `vitreous finetune` uses",
    "paper-finetune": "fine-tuning with SGD at 384 pixels, as arXiv 2010.11929 table 4",
    "simple-vit": "ViT-S/16 on ImageNet in 90 epochs, as arXiv 2205.01580",
}
"""The name of each recipe, with the line that `vitreous train --help` shows. A module and its function have the same
name, with underscores."""


def recipe(name: str) -> RunConfig:
    """Return the configuration of a recipe.

    Raises:
        UsageError: If there is no recipe of that name.
    """
    if name not in RECIPES:
        raise UsageError(f"there is no recipe '{name}'.{did_you_mean(name, RECIPES)} Known: {', '.join(RECIPES)}")
    function = name.replace("-", "_")
    config: RunConfig = getattr(importlib.import_module(f"vitreous.recipes.{function}"), function)()
    return dataclasses.replace(config, recipe=name)


def recipe_for(source: str) -> str:
    """Return the name of the default recipe for a data source: the recipe of the same name, or else `folder`."""
    return source if source in ("digits", "cifar10", "cifar100") else "folder"
