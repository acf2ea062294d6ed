"""What every adapter takes and gives: tensors by name, the documents beside them, and what is known of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig

__all__ = ["Foreign", "Hints", "Imported", "Outgoing", "State", "Written", "few", "refuse"]

State = dict[str, Tensor]
"""Tensors by name."""

_SHOWN = 5


@dataclass(frozen=True)
class Foreign:
    """A checkpoint as it was found.

    Args:
        tensors: By the names of its own family.
        documents: The JSON files beside it, by file name, such as ``config.json``.
        name: What the user gave, for messages.
    """

    tensors: State
    documents: Mapping[str, Any] = field(default_factory=dict)
    name: str = "checkpoint"


@dataclass(frozen=True)
class Hints:
    """What the user says where a file does not: each None leaves it to the file.

    Args:
        heads: Attention heads per block.
        image_size: Height and width in pixels that the positions of the file are laid out for.
    """

    heads: int | None = None
    image_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Imported:
    """A checkpoint in this package's names.

    Args:
        family: Such as ``timm``.
        config: The model's configuration, true to the family's own computation.
        state: The model's tensors.
        layout: What the way back needs to write the same file again: plain JSON values.
        reasons: Lines for people: what was recognised, and why.
        classes: Names of the outputs, if the file has them.
        pipeline: The evaluation pipeline, if the file has it.
        kept: Tensors of the family that a forward pass never reads (a mask token): carried for the way back.
    """

    family: str
    config: ViTConfig
    state: State
    layout: dict[str, Any]
    reasons: list[str]
    classes: tuple[str, ...] | None = None
    pipeline: EvalPipeline | None = None
    kept: State = field(default_factory=dict)


@dataclass(frozen=True)
class Outgoing:
    """A model of this package, on its way to another family.

    Args:
        config: Its configuration.
        state: Its tensors.
        layout: How the file was laid out that it came from, if it came from that family; else empty.
        kept: Tensors that no forward pass reads.
        classes: Names of the outputs.
        pipeline: The evaluation pipeline.
    """

    config: ViTConfig
    state: State
    layout: Mapping[str, Any]
    kept: State
    classes: tuple[str, ...]
    pipeline: EvalPipeline


@dataclass(frozen=True)
class Written:
    """A checkpoint in another family's names.

    Args:
        tensors: By the names of that family.
        documents: JSON files that belong beside it, by file name.
    """

    tensors: State
    documents: dict[str, Any]


def refuse(family: str, problems: Iterable[str]) -> None:
    """Raise one error that lists everything that a family cannot express; return where there is nothing.

    Raises:
        CheckpointError: If there is any problem.
    """
    found = list(problems)
    if found:
        raise CheckpointError(
            f"{family} cannot express this model: {'; '.join(found)}. `--to onnx` and `--to torch` take any model"
        )


def few(items: Iterable[str]) -> str:
    """Join the first items, and count the rest."""
    every = list(items)
    rest = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + rest
