"""The JSON file beside the weights of families that have no format for class names and an evaluation pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitreous.checkpoint.adapters.common import ForeignCheckpoint
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig

__all__ = ["Sidecar", "is_sidecar", "make_sidecar", "read_sidecar"]


@dataclass(frozen=True)
class Sidecar:
    """The contents of the file; None for what it does not have."""

    heads: int | None = None
    classes: tuple[str, ...] | None = None
    pipeline: EvalPipeline | None = None


def make_sidecar(config: ViTConfig, classes: tuple[str, ...], pipeline: EvalPipeline) -> dict[str, Any]:
    """Return the JSON document with what the weights do not show."""
    return {"heads": config.heads, "classes": list(classes), "pipeline": pipeline.to_dict()}


def is_sidecar(document: Any) -> bool:
    """Return whether a JSON document has all that :func:`make_sidecar` writes; others may have the name by chance."""
    return isinstance(document, dict) and {"heads", "classes", "pipeline"} <= document.keys()


def read_sidecar(source: ForeignCheckpoint) -> Sidecar:
    """Read what :func:`make_sidecar` returned, if the file is there."""
    document = source.documents.get("sidecar")
    if not document:
        return Sidecar()
    heads, classes, pipeline = (document.get(key) for key in ("heads", "classes", "pipeline"))
    if not (isinstance(heads, int | None) and isinstance(classes, list | None) and isinstance(pipeline, dict | None)):
        raise CheckpointError(f"the JSON file beside '{source.name}' has invalid heads, classes or pipeline")
    names = tuple(map(str, classes)) if classes else None
    return Sidecar(heads, names, EvalPipeline.from_dict(pipeline) if pipeline else None)
