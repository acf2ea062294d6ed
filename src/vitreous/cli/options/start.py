"""Decides where `vitreous train FOLDER` starts: from the small backbone in the package, or from random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vitreous.checkpoint.shipped import SHIPPED
from vitreous.errors import UsageError, VitreousError
from vitreous.train.finetune.free_options import free_options

if TYPE_CHECKING:
    from vitreous.train.config import RunConfig

__all__ = ["START", "check_start", "fit_recipe", "starts_from_shipped"]

START = "start"
"""The recipe that starts from the backbone."""

_MOST_IMAGES = 20_000
"""Not measured beyond a few thousand (docs/explanation/start.md): with many more, a larger model from random weights
may win."""


def starts_from_shipped(source: str, typed: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether a run on a folder or manifest starts from the backbone, as ``--start`` says or its images suggest.

    Unasked, it does so for few images, unless options name a recipe, a size, or parts of another model.

    Raises:
        UsageError: If ``--start shipped`` contradicts another option.
    """
    wish = typed.get("start")
    if wish == "none":
        return False
    whole = START in (typed.get("recipe"), stored.get("recipe"))  # with the backbone's model
    contradictions = list(_other_models({**typed, "recipe": None}, {}) if whole else _other_models(typed, stored))
    if wish == "shipped":
        if contradictions:
            raise UsageError(f"--start shipped keeps the model of the backbone: omit {', '.join(contradictions)}")
        return True
    return not contradictions and _few_images(source, typed, stored)


def check_start(typed: Mapping[str, Any], config: RunConfig) -> None:
    """Refuse ``--start none`` beside a recipe or a file whose run starts from the backbone.

    Raises:
        UsageError: If both are given.
    """
    if typed.get("start") == "none" and config.tune.source == SHIPPED:
        given = "--recipe start" if typed.get("recipe") == START else "the recipe start of --config"
        raise UsageError(
            f"--start none trains from random weights, but {given} starts from the backbone in the package: omit one"
        )


def fit_recipe(config: RunConfig, typed: Mapping[str, Any], source: str | None) -> RunConfig:
    """Return the recipe `start` for the data and the image size typed.

    Images are mirrored only if the data's own recipe does so: a mirrored digit is another one. The smaller images that
    the run begins with are left out if patches do not tile them: a user who types a size need not know of them.
    """
    from vitreous.model.config import pair
    from vitreous.recipes import recipe, recipe_for

    augment = config.augment
    if source is not None:
        augment = dataclasses.replace(augment, flip=recipe(recipe_for(source)).augment.flip)
    size = typed.get("model", {}).get("image_size")
    if size is not None and "small_first" not in typed.get("augment", {}):
        sides = list(zip(pair(size), pair(config.model.patch_size), strict=True))
        if any(side * share % patch for share in augment.small_first for side, patch in sides):
            augment = dataclasses.replace(augment, small_first=())
    return dataclasses.replace(config, augment=augment)


def _other_models(typed: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that ask for another model than the backbone."""
    for fields in (typed, stored):
        if fields.get("recipe"):
            yield f"--recipe {fields['recipe']}"
        if fields.get("size"):
            yield f"--model {fields['size']}"
    # An image size does not change the architecture; an initialisation asks for random weights.
    may_differ = {"image_size", *free_options()} - {"init"}
    for name, value in {**stored.get("model", {}), **typed.get("model", {})}.items():
        options = [f"{name}.{option}" for option in value] if isinstance(value, Mapping) else [name]
        if not may_differ.issuperset(options):
            yield f"--model.{name}"
    if {**stored.get("tune", {}), **typed.get("tune", {})}.get("source"):
        yield "--tune.source"
    task = {**stored.get("aux", {}), **typed.get("aux", {})}.get("method")
    if task not in (None, "none", "auto", "self-training"):
        yield f"--aux {task}"


def _few_images(source: str, typed: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether a folder or manifest lists few images; what cannot be read is reported when it is opened."""
    from vitreous.data.config import DataConfig
    from vitreous.data.sources.listing import Listing
    from vitreous.data.sources.opening import list_source

    try:
        listed = list_source(
            DataConfig(**{**stored.get("data", {}), **typed.get("data", {}), "source": source}), sets_aside=True
        )
    except VitreousError:
        return True
    return isinstance(listed, Listing) and len(listed.entries) <= _MOST_IMAGES
