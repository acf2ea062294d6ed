"""Decides where `vitreous train FOLDER` starts: from the small backbone in the package, or from random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vitreous.errors import UsageError, VitreousError

__all__ = ["START", "starts_from_shipped"]

START = "start"
"""The recipe that starts from the backbone."""

_MOST_IMAGES = 20_000
"""Not measured beyond a few thousand (docs/explanation/start.md): with many more, a larger model from random weights
may win."""

_MAY_DIFFER = {"image_size", "dropout", "patch_dropout", "num_classes"}
"""Options of the model that do not ask for another architecture."""


def starts_from_shipped(source: str, typed: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether a run on a folder or manifest starts from the backbone, as ``--start`` says or its images suggest.

    Unasked, it does so for few images, unless options name a recipe, a size, or parts of another model.

    Raises:
        UsageError: If ``--start shipped`` contradicts another option.
    """
    wish = typed.get("start")
    if wish == "none":
        return False
    contradictions = list(_other_models(typed, stored))
    if wish == "shipped":
        if contradictions:
            raise UsageError(f"--start shipped keeps the model of the backbone: omit {', '.join(contradictions)}")
        return True
    return not contradictions and _few_images(source, typed, stored)


def _other_models(typed: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that ask for another model than the backbone."""
    for fields in (typed, stored):
        if fields.get("recipe"):
            yield f"--recipe {fields['recipe']}"
        if fields.get("size"):
            yield f"--model {fields['size']}"
    for name in {**stored.get("model", {}), **typed.get("model", {})}:
        if name not in _MAY_DIFFER:
            yield f"--model.{name}"
    if {**stored.get("tune", {}), **typed.get("tune", {})}.get("source"):
        yield "--tune.source"
    task = {**stored.get("aux", {}), **typed.get("aux", {})}.get("method")
    if task not in (None, "none", "self-training"):
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
