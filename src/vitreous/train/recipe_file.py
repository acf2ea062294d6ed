"""The text of a run's recipe.yaml, which `vitreous train --config` runs again."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from vitreous.files.text import yaml_text
from vitreous.train.config import RunConfig

__all__ = ["recipe_text"]


def recipe_text(config: RunConfig) -> str:
    """A configuration as YAML for ``vitreous train --config``: every field, `out` open, paths absolute."""
    source, start = config.data.source, config.tune.source
    if os.path.exists(os.path.expanduser(source)) and not re.fullmatch(r"[\w-]+", source):
        source = os.path.abspath(os.path.expanduser(source))
    if start is not None and os.path.exists(os.path.expanduser(start)):
        start = os.path.abspath(os.path.expanduser(start))
    data, tune = dataclasses.replace(config.data, source=source), dataclasses.replace(config.tune, source=start)
    config = dataclasses.replace(config, out=None, data=data, tune=tune)
    lines = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            lines.append(f"{field.name}:")
            lines += [f"  {f.name}: {_scalar(getattr(value, f.name))}" for f in dataclasses.fields(value)]
        else:
            lines.append(f"{field.name}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """A value in JSON, which YAML reads the same; a float keeps its point, without which YAML 1.1 sees text."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return (mantissa if "." in mantissa else mantissa + ".0") + exponent + power
    return yaml_text(value)
