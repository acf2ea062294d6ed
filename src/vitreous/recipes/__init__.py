"""Recipes: functions that return the configuration of a run, each opening with command, cost, hardware and score.

Adding one: write ``recipes/my_name.py`` with a function ``my_name() -> RunConfig``, and add ``my-name`` to ``RECIPES``.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, cast

from vitreous.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from vitreous.train.config import RunConfig

__all__ = ["RECIPES", "header", "recipe", "recipe_for"]

RECIPES: dict[str, str] = {
    "digits": "1,797 real handwritten digits, bundled: about half a minute on two CPU cores",
    "folder": "your own pictures, from scratch: a few thousand in some minutes on two CPU cores",
    "cifar10": "CIFAR-10, strong: a small ViT with modern training",
    "cifar100": "CIFAR-100, strong: the same with 100 classes",
    "cifar10-cpu": "CIFAR-10 in half an hour on two CPU cores: plain ViT, Muon, small pictures at first",
    "cifar10-gpu": "CIFAR-10 in ten minutes on one GPU, a draft",
    "cifar100-gpu": "CIFAR-100 in ten minutes on one GPU: the same with 100 classes",
    "notebook-cifar10": "the public notebooks' ViT on CIFAR-10: width 256, 6 layers, 180 epochs",
    "notebook-cifar100": "the public notebooks' ViT on CIFAR-100: width 256, 24 layers, 180 epochs",
    "annotated-cifar10": "the annotated ViT on CIFAR-10: width 512, 6 layers, 32 epochs",
    "paper-imagenet": "ViT-B/16 on ImageNet from scratch, as arXiv 2010.11929 table 3",
    "finetune": "from a trained model, the modern way: what `vitreous finetune` uses",
    "paper-finetune": "fine-tuning by SGD at 384 pixels, as arXiv 2010.11929 table 4",
    "simple-vit": "ViT-S/16 on ImageNet in 90 epochs, as arXiv 2205.01580",
}
"""Each recipe and its one line; the module is the name with underscores, and has a function of that name."""


def recipe(name: str) -> RunConfig:
    """Return the configuration of a recipe.

    Raises:
        UsageError: If there is no recipe of that name.
    """
    if name not in RECIPES:
        raise UsageError(f"there is no recipe '{name}'.{did_you_mean(name, RECIPES)} Known: {', '.join(RECIPES)}")
    function = name.replace("-", "_")
    made = getattr(importlib.import_module(f"vitreous.recipes.{function}"), function)()
    return cast("RunConfig", made)


def recipe_for(source: str) -> str:
    """The recipe for some data where none is named: that of the data's own name, else `folder`."""
    return source if source in ("digits", "cifar10", "cifar100") else "folder"


def header(name: str) -> str:
    """The text that opens a recipe's file: its command, cost, hardware and score."""
    module = importlib.import_module(f"vitreous.recipes.{name.replace('-', '_')}")
    return inspect.cleandoc(module.__doc__ or "")
