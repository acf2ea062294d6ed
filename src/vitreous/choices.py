"""Checks that all configurations share: values from a fixed list of choices, and values of the right type."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Collection, Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vitreous.errors import did_you_mean

__all__ = ["fits", "unknown_choices", "wrong_types"]

_LARGEST_NUMBER = 2.0**53  # integers up to here are exact in float64; no option needs a larger one


def unknown_choices(config: Any) -> Iterator[str]:
    """Yield one sentence for each ``Literal`` field of a dataclass whose value is not among its choices.

    A field typed ``Literal[...] | None`` also accepts None.
    """
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, allowed = getattr(config, field.name), _choices(hints[field.name])
        if allowed and value not in allowed:
            words = [str(word) for word in allowed if word is not None]
            listed = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
            hint = did_you_mean(str(value), words)
            yield f"{field.name} is '{value}', it must be {listed}" + (f".{hint}" if hint else "")


def _choices(hint: Any) -> tuple[Any, ...]:
    """Return the values that ``Literal[...]`` or ``Literal[...] | None`` allows, and nothing for other types."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        if len(parts) == 1 and get_origin(parts[0]) is Literal:
            return (*get_args(parts[0]), None)
    return ()


def wrong_types(config: Any, skip: Collection[str] = ()) -> Iterator[str]:
    """Yield one sentence for each field of a dataclass whose value does not have the field's type.

    ``Literal`` fields are left to :func:`unknown_choices`. Fields in ``skip`` are not checked.
    """
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        hint, value = hints[field.name], getattr(config, field.name)
        if field.name not in skip and not _choices(hint) and not fits(value, hint):
            yield f"{field.name} is {value!r:.60}, it must be {_describe_type(hint)}"


def _describe_type(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe_type(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list of {len(get_args(hint)) if Ellipsis not in get_args(hint) else ''} numbers".replace("  ", " ")
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return words.get(hint, str(hint))


def fits(value: Any, hint: Any) -> bool:
    """Return whether a plain value has the type of a field.

    Convert lists to tuples first. A bool is not a number, and neither are NaN and infinity.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in arguments)
    if origin is tuple:
        parts = arguments[:1] * len(value) if Ellipsis in arguments and isinstance(value, tuple) else arguments
        same_length = isinstance(value, tuple) and len(value) == len(parts)
        return same_length and all(fits(item, part) for item, part in zip(value, parts, strict=True))
    if hint is float:
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and abs(value) < _LARGEST_NUMBER
            and math.isfinite(value)
        )
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST_NUMBER
    return type(value) is hint
