"""The JSON file beside weights whose family has no place for class names and an evaluation pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitreous.checkpoint.adapters.common import Foreign
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig

__all__ = ["Beside", "read_sidecar", "sidecar"]


@dataclass(frozen=True)
class Beside:
    """What the file says; None where it says nothing.

    Args:
        heads: Attention heads, which no tensor shows.
        classes: Names of the outputs.
        pipeline: The evaluation pipeline.
    """

    heads: int | None = None
    classes: tuple[str, ...] | None = None
    pipeline: EvalPipeline | None = None


def sidecar(config: ViTConfig, classes: tuple[str, ...], pipeline: EvalPipeline) -> dict[str, Any]:
    """Say in JSON what the weights cannot."""
    return {"heads": config.heads, "classes": list(classes), "pipeline": pipeline.to_dict()}


def read_sidecar(source: Foreign) -> Beside:
    """Read what :func:`sidecar` wrote, if it lies beside the weights.

    Raises:
        CheckpointError: If it lies there and cannot be meant.
    """
    document = source.documents.get("sidecar")
    if not document:
        return Beside()
    heads, classes, pipeline = (document.get(key) for key in ("heads", "classes", "pipeline"))
    if not (isinstance(heads, int | None) and isinstance(classes, list | None) and isinstance(pipeline, dict | None)):
        raise CheckpointError(f"the JSON file beside '{source.name}' has no heads, classes and pipeline as expected")
    names = tuple(map(str, classes)) if classes else None
    return Beside(heads, names, EvalPipeline.from_dict(pipeline) if pipeline else None)
