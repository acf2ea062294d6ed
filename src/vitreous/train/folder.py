"""A run's folder: which one it is, and the recipe in it that can be run again as it is."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

from vitreous.checkpoint.atomic import replacing
from vitreous.errors import OutputError, UsageError
from vitreous.train.config import RunConfig

__all__ = ["make_folder", "recipe_text", "write_text"]

_TRACES = ("recipe.yaml", "metrics.csv", "model.safetensors", "report.json")


def make_folder(out: str | None, name: str) -> Path:
    """Make the folder of a run: the one that was asked for, else ``runs/NAME-1``, ``-2`` and so on.

    Raises:
        UsageError: If the folder that was asked for holds a run already.
        OutputError: If it cannot be made.
    """
    try:
        if out is not None:
            folder = Path(out).expanduser()
            taken = [trace for trace in _TRACES if (folder / trace).exists()]
            if taken:
                raise UsageError(
                    f"'{folder}' holds a run already ({', '.join(taken)}): give another --out, or move it away"
                )
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        number = 1
        slug = re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-.") or "run"
        while True:
            folder = Path("runs") / f"{slug}-{number}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return folder
    except OSError as error:
        raise OutputError(
            f"the run's folder '{folder}' cannot be made: {error.strerror or error}. Give another with --out"
        ) from error


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
    return json.dumps(value, ensure_ascii=False)


def write_text(path: Path, text: str) -> None:
    """Write a small file of the run, whole or not at all.

    Raises:
        OutputError: If it cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
