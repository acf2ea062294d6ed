"""Parses untrusted JSON, bounded in length and depth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous.errors import CheckpointError, first_line
from vitreous.files.opening import read_regular

__all__ = ["MAX_BYTES", "parse_object", "read_object"]

MAX_BYTES = 16 << 20
"""Upper limit of a document; the class names of ImageNet-21k take one million bytes."""

_MAX_DEPTH = 64


def read_object(file: Path) -> dict[str, Any]:
    """Read a file with a JSON object."""
    try:
        content = read_regular(file, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read '{file}': {getattr(error, 'strerror', None) or error}") from error
    return parse_object(content, f"'{file}'")


def parse_object(text: str | bytes, what: str, *, unique: bool = False) -> dict[str, Any]:
    """Parse a JSON object; `what` describes the text in messages, such as a file's name in quotes.

    With `unique`, a repeated name is an error, for text that other programs parse too.
    """
    try:
        content = json.loads(text, object_pairs_hook=_unique_names if unique else None)
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
        raise CheckpointError(f"{what} is not readable as JSON, it is damaged: {reason}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{what} is not a JSON object, it is damaged")
    level: Sequence[Any] = [content]
    for _ in range(_MAX_DEPTH):
        level = [
            value
            for container in level
            for value in (container.values() if isinstance(container, dict) else container)
            if isinstance(value, dict | list)
        ]
        if not level:
            return content
    raise CheckpointError(f"{what} is nested more than {_MAX_DEPTH} levels deep")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name occurs twice")
    return content
