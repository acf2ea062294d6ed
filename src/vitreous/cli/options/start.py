"""Decides where `vitreous train FOLDER` starts: from the small backbone in the package, or from random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitreous.errors import UsageError, VitreousError

__all__ = ["START", "starts_from_shipped"]

START = "start"
"""The recipe that starts from the backbone."""

_MOST_IMAGES = 20_000
"""Not measured beyond a few thousand (docs/start.md): with many more, a larger model from random weights may win."""

_MAY_DIFFER = {"image_size", "dropout", "patch_dropout", "num_classes"}
"""Options of the model that do not ask for another architecture."""


def starts_from_shipped(source: str, typed: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether a run on a folder or manifest starts from the backbone, as ``--start`` says or its images suggest.

    Unasked, it does so for few images, unless options name a recipe, a size, or parts of another model.

    Raises:
        UsageError: If ``--start shipped`` contradicts another option.
    """
    wish = typed.get("start") or "auto"
    if wish == "none":
        return False
    reasons = [f"--{name} {fields[key]}" for fields in (typed, stored) for key, name in _NAMING if fields.get(key)]
    model = {**stored.get("model", {}), **typed.get("model", {})}
    reasons += [f"--model.{name}" for name in model if name not in _MAY_DIFFER]
    reasons += ["--tune.source"] * bool({**stored.get("tune", {}), **typed.get("tune", {})}.get("source"))
    if wish == "shipped":
        if reasons:
            raise UsageError(f"--start shipped keeps the model of the backbone: omit {', '.join(reasons)}")
        return True
    return not reasons and _few_images(source, typed, stored)


_NAMING = (("recipe", "recipe"), ("size", "model"))


def _few_images(source: str, typed: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether a folder or manifest lists few images; what cannot be read is reported when it is opened."""
    from vitreous.data.config import DataConfig
    from vitreous.data.sources.opening import list_source

    try:
        listed = list_source(DataConfig(**{**stored.get("data", {}), **typed.get("data", {}), "source": source}))
    except VitreousError:
        return True
    entries = getattr(listed, "entries", None)
    return entries is not None and len(entries) <= _MOST_IMAGES
