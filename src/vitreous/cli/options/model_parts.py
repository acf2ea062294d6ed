"""Options of the model's parts: ``--model.position rope-2d --model.position.theta 100``.

A part's kind and its options are typed as options of their own, and become one mapping of the configuration.
"""

from __future__ import annotations

import json
import re
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
from vitreous.files.text import visible

Parts = dict[str, dict[str, dict[str, Any]]]
_PLAIN = (str, int, float, bool, type(None))  # of a part's option, or of an item of its list

__all__ = ["add_model_options", "field_descriptions", "fold_parts", "is_part_option", "name_kinds"]


class _Loader(yaml.SafeLoader):  # type: ignore[misc,unused-ignore]
    """Plain values of YAML, with the numbers of YAML 1.2 and JSON: YAML 1.1 reads ``1e-5`` as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"), list("-+.0123456789")
)


def add_model_options(parser: ArgumentParser) -> Parts:
    """Add every option of :class:`~vitreous.model.config.ViTConfig` under ``--model.``; return its parts."""
    from vitreous.model.config import PARTS, ViTConfig  # imports torch
    from vitreous.model.part import option_types

    parser.add_class_arguments(ViTConfig, "model", skip=set(PARTS), instantiate=False)
    descriptions, found = field_descriptions(ViTConfig), {}
    for part, kinds in PARTS.items():
        name = f"--model.{part}"
        summaries = " ".join(" ".join(str(kind.__doc__).split("\n\n")[0].split()) for kind in kinds)
        parser.add_argument(name, type=dict | str, metavar="KIND", help=f"{descriptions[part]} {summaries}")
        types = {kind: option_types(kind) for kind in kinds}
        texts = {kind: field_descriptions(kind) for kind in kinds}
        found[name] = {kind.kind: types[kind] for kind in kinds}
        for option in dict.fromkeys(option for kind in kinds for option in types[kind]):
            having = [kind for kind in kinds if option in types[kind]]
            hint = reduce(or_, dict.fromkeys(types[kind][option] for kind in having))
            text = texts[having[0]][option]
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


def name_kinds(fields: Mapping[str, Any], parts: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a model with each part that is a word as a mapping, ``{"kind": word}``."""
    names = {part.removeprefix("--model.") for part in parts}
    return {
        name: {"kind": value} if name in names and isinstance(value, str) else value for name, value in fields.items()
    }


def _kind(part: str, value: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    if value.lstrip().startswith("{"):
        return _mapping(part, value)
    if value not in kinds:
        raise UsageError(f"{part} is '{value}', it must be one of {', '.join(kinds)}.{did_you_mean(value, kinds)}")
    return {"kind": value}


def _mapping(part: str, text: str) -> dict[str, Any]:
    """Return the options written in braces, as YAML or JSON. A value is a word, a number or a list of them."""
    try:
        options = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        options = None
    if isinstance(options, dict):
        values = [each for value in options.values() for each in (value if isinstance(value, list) else [value])]
        if all(isinstance(name, str) for name in options) and all(isinstance(each, _PLAIN) for each in values):
            return options
    example = "--model.position '{kind: rope-2d, theta: 100}'"
    raise UsageError(f"{part} is '{visible(text, 80)}', it must be a kind or options in braces, such as {example}")


def _value(name: str, text: str, types: Sequence[Any]) -> Any:
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        value = text
    value = tuple(value) if isinstance(value, list) else value
    if not any(fits(value, hint) for hint in types):
        expected = " or ".join(dict.fromkeys(describe_type(hint) for hint in types))
        words = [str(word) for hint in types for word in getattr(hint, "__args__", ()) if isinstance(word, str)]
        raise UsageError(f"{name} is '{visible(text, 80)}', it must be {expected}.{did_you_mean(text, words)}")
    return value


def field_descriptions(documented: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say of each field."""
    return {
        param.arg_name: " ".join((param.description or "").split())
        for base in reversed(documented.__mro__)
        if base.__doc__
        for param in parse_docstring(base.__doc__).params
    }
