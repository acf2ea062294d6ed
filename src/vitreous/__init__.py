"""Vitreous: Vision Transformers you can see through.

    import vitreous
    model = vitreous.create("B/16", num_classes=10)            # a plain torch.nn.Module
    classifier = vitreous.load("runs/digits-1/model.safetensors")
    classifier.predict("picture.jpg")

Importing this package loads nothing else: each name below is fetched when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.model.sizes import create
    from vitreous.model.vit import VisionTransformer, ViTConfig
    from vitreous.predictor import Classifier, load

__version__ = "0.1.0"
__all__ = ["Classifier", "ViTConfig", "VisionTransformer", "create", "load"]

_HOME = {
    "Classifier": "vitreous.predictor",
    "ViTConfig": "vitreous.model.config",
    "VisionTransformer": "vitreous.model.vit",
    "create": "vitreous.model.sizes",
    "load": "vitreous.predictor",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'vitreous' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
