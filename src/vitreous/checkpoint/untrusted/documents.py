"""JSON that strangers wrote: bounded in length and depth, and compared with what a field takes."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from vitreous.errors import CheckpointError
from vitreous.files.opening import read_regular

__all__ = ["LARGEST", "fits", "parse_object", "read_object"]

LARGEST = 16 << 20
"""Bytes of a document: 21,843 class names take one million. Parsed, each byte may take 25."""

_DEEPEST = 64  # levels: a configuration within a provenance takes four
_LARGEST_NUMBER = 1 << 53  # beyond it JSON's numbers are no whole ones everywhere


def read_object(file: Path) -> dict[str, Any]:
    """Read a file that has a JSON object.

    Raises:
        CheckpointError: If it cannot be read, or is none.
    """
    try:
        content = read_regular(file, LARGEST)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read '{file}': {getattr(error, 'strerror', None) or error}") from error
    return parse_object(content, f"'{file}'")


def parse_object(text: str | bytes, what: str, *, unique: bool = False) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        text: UTF-8.
        what: Where it stands, for messages, such as a file's name in quotes.
        unique: Whether a name that comes twice is an error: for text that others parse too.

    Raises:
        CheckpointError: If it is none, or is nested deeper than any configuration.
    """
    try:
        content = json.loads(text, object_pairs_hook=_once if unique else None)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:160]
        raise CheckpointError(f"{what} is no readable JSON, it is damaged: {reason}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{what} is no JSON object, it is damaged")
    level: Sequence[Any] = [content]
    for _ in range(_DEEPEST):
        level = [
            each
            for holder in level
            for each in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(each, dict | list)
        ]
        if not level:
            return content
    raise CheckpointError(f"{what} is nested more than {_DEEPEST} deep: no description of a model is")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's names with their values."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name comes twice")
    return content


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value, its lists made tuples, is one that a field of this type takes."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in arguments)
    if origin is tuple:
        kinds = arguments[:1] * len(value) if Ellipsis in arguments and isinstance(value, tuple) else arguments
        same = isinstance(value, tuple) and len(value) == len(kinds)
        return same and all(fits(item, part) for item, part in zip(value, kinds, strict=True))
    if kind is float:
        return type(value) in (int, float) and abs(value) < _LARGEST_NUMBER and math.isfinite(value)
    if kind is int:  # exact: True is no number here
        return type(value) is int and abs(value) < _LARGEST_NUMBER
    return type(value) is kind
