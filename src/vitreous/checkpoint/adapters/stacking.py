"""Matrices that one library stores as one tensor and another as several: joined and cut again without rounding."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vitreous.checkpoint.adapters.common import State
from vitreous.errors import CheckpointError

__all__ = ["cut", "cut_heads", "join", "join_heads", "kernel_of_rows", "prefixes", "renamed", "rows_of_kernel"]


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


def kernel_of_rows(rows: Tensor, channels: int = 3) -> Tensor:
    """Return a kernel (D, C, p, p) from rows of flattened patches, pixel by pixel, (D, p p C).

    Raises:
        ValueError: If the rows are not those of square patches.
    """
    side = math.isqrt(rows.shape[1] // channels)
    if side * side * channels != rows.shape[1]:
        raise ValueError(f"rows of {rows.shape[1]} values are no square patches of {channels} channels")
    return rows.unflatten(1, (side, side, channels)).permute(0, 3, 1, 2)


def rows_of_kernel(kernel: Tensor) -> Tensor:
    """Undo :func:`kernel_of_rows`."""
    return kernel.permute(0, 2, 3, 1).flatten(1)


def renamed(state: State, table: Mapping[str, str]) -> State:
    """Return the state with names replaced; the table maps the end of a name, from a dot on, to another end."""
    result: State = {}
    for name, tensor in state.items():
        for old, new in table.items():
            if name == old or name.endswith(f".{old}"):
                name = name.removesuffix(old) + new  # noqa: PLW2901
                break
        result[name] = tensor
    return result


def join_heads(state: State) -> Tensor:
    """Replace the two heads of a distilled model by their mean, a head on both tokens; return their biases, (2, K).

    The weights are halved, which is exact. The mean of the biases is not, so that they are kept.
    """
    weights = [state.pop(f"{name}.weight").to(torch.float32) for name in ("head", "head_dist")]
    biases = torch.stack([state.pop(f"{name}.bias").to(torch.float32) for name in ("head", "head_dist")])
    state["head.weight"], state["head.bias"] = torch.cat(weights, 1) / 2, biases.mean(0)
    return biases


def cut_heads(state: State, biases: Tensor | None) -> None:
    """Undo :func:`join_heads` in place. Without the biases, or if the head's has changed, both heads have that.

    Raises:
        CheckpointError: If the model's head was left out.
    """
    if "head.weight" not in state:
        raise CheckpointError("a distilled model has two heads in its family's files: keep them, or write a model file")
    if biases is None or not torch.equal(biases.mean(0), state["head.bias"]):
        biases = torch.stack([state["head.bias"]] * 2)
    weights = (state["head.weight"] * 2).chunk(2, 1)
    for name, weight, bias in zip(("head", "head_dist"), weights, biases, strict=True):
        state[f"{name}.weight"], state[f"{name}.bias"] = weight, bias
