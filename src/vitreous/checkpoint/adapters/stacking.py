"""Matrices that one library stores as one tensor and another as several: joined and cut again without rounding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import torch

from vitreous.checkpoint.adapters.common import State

__all__ = ["cut", "join", "prefixes", "renamed"]


def prefixes(state: State) -> list[str]:
    """Return the beginnings of the names of all blocks, ``blocks.0.`` and so on."""
    numbers = {int(found[1]) for name in state if (found := re.match(r"blocks\.(\d{1,4})\.", name))}
    return [f"blocks.{number}." for number in sorted(numbers)]


def join(state: State, whole: str, parts: Sequence[str]) -> bool:
    """Replace several tensors by one that stacks their rows, if all of them are there; return whether they are."""
    if not all(part in state for part in parts):
        return False
    tensors = [state.pop(part) for part in parts]
    if len({tensor.shape for tensor in tensors}) > 1:  # keep their own names, which the caller reports
        state |= dict(zip(parts, tensors, strict=True))
        return False
    state[whole] = torch.cat(tensors)
    return True


def cut(state: State, whole: str, parts: Sequence[str]) -> None:
    """Undo :func:`join`, if the whole is there."""
    if whole in state:
        state |= dict(zip(parts, state.pop(whole).chunk(len(parts)), strict=True))


def renamed(state: State, table: Mapping[str, str] | Iterable[tuple[str, str]]) -> State:
    """Return the state with names replaced; the table maps the end of a name, from a dot on, to another end."""
    pairs = list(table.items() if isinstance(table, Mapping) else table)
    result: State = {}
    for name, tensor in state.items():
        for old, new in pairs:
            if name == old or name.endswith(f".{old}"):
                name = name.removesuffix(old) + new  # noqa: PLW2901
                break
        result[name] = tensor
    return result
