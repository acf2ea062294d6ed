"""The description in an exported file: strings by name, some of them JSON, readable with the format's own tools.

It is written by :func:`describe`. :func:`parse` reads it back from a file that may come from anyone, so every value is
checked as in a model file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous import __version__
from vitreous.checkpoint.licence import recorded_licence
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.stored_thresholds import THRESHOLDS, parse_thresholds, thresholds_to_dict
from vitreous.checkpoint.untrusted.documents import parse_object
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError
from vitreous.export.example import example
from vitreous.export.graph.core import CLASS_MAP, output_names

__all__ = ["Described", "describe", "parse"]

_MAX_CHARACTERS = 16 << 20  # of all strings together; the class names of ImageNet-21k take one million
_UNKNOWN_LICENCE = "not stated"
_NEEDED = ("producer", "input", "outputs", "classes", "temperature", "pipeline", "provenance", "scores", "precision")


@dataclass(frozen=True)
class Described:
    """What an exported file says about itself."""

    info: ModelInfo
    outputs: tuple[str, ...]
    precision: str  # of the model's weights and products


def describe(
    info: ModelInfo, form: str, file: str, *, precision: str, resize: str, with_map: bool = False
) -> dict[str, str]:
    """Return the description of a model for a format and a file's name; `resize` is `exact` or `native`."""
    channels, (height, width) = info.pipeline.channels, info.pipeline.size
    colours = "RGB" if channels == 3 else "grey"
    rules = thresholds_to_dict(info)
    return {
        "producer": f"vitreous {__version__}",
        "input": f"images: uint8, (batch, height, width, {channels}), {colours}, 0 to 255, upright as EXIF says, "
        f"any batch, height and width; resized to {height} x {width} and normalised in the graph",
        "outputs": ", ".join(output_names(info, with_map)),
        "classes": json.dumps(info.classes),
        "temperature": repr(info.temperature),
        "pipeline": json.dumps(info.pipeline.to_dict()),
        **{name: json.dumps(rules.get(name)) for name in THRESHOLDS},
        "provenance": json.dumps(dict(info.provenance)),
        "scores": json.dumps(dict(info.scores)),
        "license": recorded_licence(info.provenance) or _UNKNOWN_LICENCE,
        "precision": precision,
        "resize": resize,
        "size": f"{height} x {width}",
        "example": example(form, file, info, resize),
    }


def parse(words: Mapping[str, str], file: Path) -> Described:
    """Check a description and return what it says.

    Raises:
        CheckpointError: If it is missing, too large, or a value is damaged.
    """
    if sum(len(name) + len(text) for name, text in words.items()) > _MAX_CHARACTERS:
        raise CheckpointError(f"the description in '{file}' has more than {_MAX_CHARACTERS:,} characters: not read")
    if missing := [name for name in _NEEDED if name not in words]:
        raise CheckpointError(
            f"'{file}' is not a file of `vitreous export`: its metadata lacks {', '.join(missing)}. "
            "Give an exported file, or the model file"
        )
    document = {
        name: _value(file, name, words) for name in ("classes", "pipeline", "provenance", "scores", *THRESHOLDS)
    }
    rules = parse_thresholds(file, {name: document[name] for name in THRESHOLDS if document[name] is not None})
    try:
        classes = document["classes"]
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise ValueError("classes is not a list of names")
        pipeline = EvalPipeline.from_dict(document["pipeline"])
        if not pipeline.has_statistics:
            raise ValueError("pipeline has no mean and std")
        temperature = float(words["temperature"])
        info = ModelInfo(tuple(classes), pipeline, temperature, document["provenance"], document["scores"], **rules)
    except (CheckpointError, ConfigError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"'{file}': its metadata is damaged: {error}") from error
    expected = output_names(info, with_map=words["outputs"].endswith(f", {CLASS_MAP}"))
    if words["outputs"] != ", ".join(expected):
        raise CheckpointError(f"'{file}': its metadata names outputs {words['outputs']!a:.100}, expected {expected}")
    return Described(info, tuple(expected), words["precision"][:20])


def _value(file: Path, name: str, words: Mapping[str, str]) -> Any:
    """Parse one JSON value; an absent threshold is None."""
    text = words.get(name, "null")
    return parse_object(f'{{"value": {text}}}', f"'{file}': {name} in its metadata", unique=True).get("value")
