"""The text of a run's recipe.yaml, which `vitreous train --config` runs again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from vitreous.files.text import yaml_text
from vitreous.model.part import Part
from vitreous.train.config import RunConfig

__all__ = ["recipe_text"]


def recipe_text(config: RunConfig) -> str:
    """Return a configuration as YAML for ``vitreous train --config``: every field, `out` null, paths absolute."""
    source = config.data.source
    if not re.fullmatch(r"[\w-]+", source):  # such a word is the name of a known dataset
        source = _absolute(source)
    start = config.tune.source and _absolute(config.tune.source)
    teacher = config.distil.teacher and _absolute(config.distil.teacher)
    exclude = config.data.exclude and _absolute(config.data.exclude)
    unlabelled = config.aux.unlabelled and _absolute(config.aux.unlabelled)
    labellers = tuple(map(_absolute, config.aux.model))
    config = replace(
        config,
        out=None,
        data=replace(config.data, source=source, exclude=exclude),
        tune=replace(config.tune, source=start),
        distil=replace(config.distil, teacher=teacher),
        aux=replace(config.aux, unlabelled=unlabelled, model=labellers),
    )
    return "\n".join(_lines(config)) + "\n"


def _lines(config: Any) -> Iterator[str]:
    """Yield the lines of a dataclass, those of dataclasses in it indented; a part begins with its kind."""
    if isinstance(config, Part):
        yield f"kind: {_scalar(config.kind)}"
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield f"{field.name}:"
            yield from (f"  {line}" for line in _lines(value))
        else:
            yield f"{field.name}: {_scalar(value)}"


def _absolute(path: str) -> str:
    """Make the path of an existing file absolute; leave any other text as it is."""
    expanded = os.path.expanduser(path)
    return os.path.abspath(expanded) if os.path.exists(expanded) else path


def _scalar(value: Any) -> str:
    """Write a value as JSON, which is valid YAML; floats keep their point, without which YAML 1.1 reads text."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return (mantissa if "." in mantissa else mantissa + ".0") + exponent + power
    return yaml_text(value)
