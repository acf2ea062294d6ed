"""How the types of options are shown to people: what values they take, and the placeholder in the help."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

__all__ = ["choices_in", "describe_type", "is_union", "placeholder"]


def describe_type(kind: Any, choices: Iterable[Any] | None = None) -> str:
    """Describe the values of a type for a user, such as "a whole number" or "one of cls, mean"."""
    names = choices_in(kind, choices)
    if names and not is_union(kind):
        return f"one of {', '.join(names)}"
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    restricted = {
        "PositiveInt": "a whole number of at least 1",
        "NonNegativeInt": "a whole number of at least 0",
        "PositiveFloat": "a number above 0",
        "NonNegativeFloat": "a number of at least 0",
    }
    arguments = typing.get_args(kind)
    if is_union(kind):
        return " or ".join(describe_type(part) for part in arguments)
    if typing.get_origin(kind) in (tuple, list) and arguments:
        each = {"int": "whole numbers", "float": "numbers"}.get(getattr(arguments[0], "__name__", ""), "values")
        count = "a list of" if Ellipsis in arguments or len(arguments) == 1 else f"{len(arguments)}"
        return f"{count} {each}, written a,b or [a, b]"
    return simple.get(kind) or restricted.get(getattr(kind, "__name__", ""), "a value")


def choices_in(kind: Any, choices: Iterable[Any] | None) -> list[str]:
    """Return the words that a type or a list of choices allows; empty if the values are not enumerated."""
    if choices is not None:
        return [str(choice) for choice in choices]
    if typing.get_origin(kind) is Literal:
        return [str(choice) for choice in typing.get_args(kind)]
    return [word for part in typing.get_args(kind) for word in choices_in(part, None)] if is_union(kind) else []


def is_union(kind: Any) -> bool:
    """Return whether a type is a union, also in the notation ``int | None``."""
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def placeholder(kind: Any) -> str:
    """Return the word that stands for a value in the help."""
    kinds = {kind, *typing.get_args(kind)} if is_union(kind) else {kind}
    names = {getattr(part, "__name__", "") for part in kinds}
    if names & {"int", "PositiveInt", "NonNegativeInt"}:
        return "N"
    return "X" if "float" in names else "TEXT"
