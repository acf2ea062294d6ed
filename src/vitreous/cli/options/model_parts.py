"""Options of the model's parts: ``--model.position rope-2d --model.position.theta 100``.

A part's kind and its options are typed as options of their own, and become one mapping of the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]
from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentParser

from vitreous.choices import fits
from vitreous.cli.options.types import describe_type
from vitreous.errors import UsageError, did_you_mean

Parts = dict[str, dict[str, dict[str, Any]]]

__all__ = ["add_model_options", "fold_parts", "is_part_option"]


def add_model_options(parser: ArgumentParser) -> Parts:
    """Add every option of :class:`~vitreous.model.config.ViTConfig` under ``--model.``; return its parts."""
    from vitreous.model.config import PARTS, ViTConfig  # imports torch
    from vitreous.model.part import option_types

    parser.add_class_arguments(ViTConfig, "model", skip=set(PARTS), instantiate=False)
    descriptions, found = _descriptions(ViTConfig), {}
    for part, kinds in PARTS.items():
        name = f"--model.{part}"
        summaries = " ".join(" ".join(str(kind.__doc__).split("\n\n")[0].split()) for kind in kinds)
        parser.add_argument(name, type=dict | str, metavar="KIND", help=f"{descriptions[part]} {summaries}")
        found[name] = {kind.kind: option_types(kind) for kind in kinds}
        options = dict.fromkeys(option for kind in kinds for option in option_types(kind))
        for option in options:
            having = [kind for kind in kinds if option in option_types(kind)]
            hint = reduce(or_, dict.fromkeys(option_types(kind)[option] for kind in having))
            text = _descriptions(having[0])[option]
            owners = "" if len(kinds) == 1 else f"({', '.join(kind.kind for kind in having)}) "
            parser.add_argument(f"{name}.{option}", type=hint, help=owners + text)
    return found


def is_part_option(option: str, parts: Iterable[str]) -> bool:
    """Return whether an option string is a part's, or an option of one."""
    return any(option == part or option.startswith(f"{part}.") for part in parts)


def fold_parts(words: Sequence[str], parts: Parts) -> list[str]:
    """Replace the options of each part by one option whose value is a JSON mapping.

    ``words`` are ``--option=value``, as the parser names options; ``parts`` has the options' types by part and kind.
    """
    folded: dict[str, dict[str, Any]] = {}
    others: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        part = next((part for part in parts if is_part_option(name, [part])), None)
        if part is None:
            others.append(word)
        elif name == part:
            folded.setdefault(part, {}).update(_kind(part, value, parts[part]))
        else:
            option = name.removeprefix(f"{part}.")
            types = [options[option] for options in parts[part].values() if option in options]
            folded.setdefault(part, {})[option] = _value(name, value, types)
    return [*(f"{part}={json.dumps(options)}" for part, options in folded.items()), *others]


def _kind(part: str, value: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    if value.lstrip().startswith("{"):
        options = yaml.safe_load(value)
        if isinstance(options, dict):
            return options
    if value not in kinds:
        raise UsageError(f"{part} is '{value}', it must be one of {', '.join(kinds)}.{did_you_mean(value, kinds)}")
    return {"kind": value}


def _value(name: str, text: str, types: Sequence[Any]) -> Any:
    try:
        value = yaml.safe_load(text)
        value = float(text) if isinstance(value, str) and float in types else value  # YAML 1.1 reads 1e-5 as text
    except (yaml.YAMLError, ValueError):
        value = text
    value = tuple(value) if isinstance(value, list) else value
    if not any(fits(value, hint) for hint in types):
        expected = " or ".join(dict.fromkeys(describe_type(hint) for hint in types))
        words = [str(word) for hint in types for word in getattr(hint, "__args__", ()) if isinstance(word, str)]
        raise UsageError(f"{name} is '{text}', it must be {expected}.{did_you_mean(text, words)}")
    return value


def _descriptions(documented: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say of each field."""
    return {
        param.arg_name: " ".join((param.description or "").split())
        for base in reversed(documented.__mro__)
        if base.__doc__
        for param in parse_docstring(base.__doc__).params
    }
