"""Vitreous: Vision Transformers you can see through.

    import vitreous
    model = vitreous.create("B/16", num_classes=10)            # a plain torch.nn.Module
    classifier = vitreous.load("runs/digits-1/model.safetensors")
    classifier.predict("picture.jpg")
    result = vitreous.train("photos/", epochs=20)              # as the command does; `finetune` and `evaluate` too
    result.model.predict("picture.jpg")

Importing this package loads nothing else: each name below is fetched when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.api import evaluate, finetune, train
    from vitreous.model.sizes import create
    from vitreous.model.vit import VisionTransformer, ViTConfig
    from vitreous.predictor import Classifier, load

__version__ = "0.1.0"
__all__ = ["Classifier", "ViTConfig", "VisionTransformer", "create", "evaluate", "finetune", "load", "train"]

_HOME = {
    "Classifier": "vitreous.predictor",
    "ViTConfig": "vitreous.model.config",
    "VisionTransformer": "vitreous.model.vit",
    "create": "vitreous.model.sizes",
    "finetune": "vitreous.api",
    "load": "vitreous.predictor",
}


_VERBS_AND_ROOMS = ("evaluate", "train")  # a function of the facade, and a package below it, of one name


class _Callable(ModuleType):
    """A package that is also the function of its name: `vitreous.train` is both."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function()(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        """The function's own arguments, which notebooks show for `vitreous.train?`."""
        if name == "__signature__":
            import inspect

            return inspect.signature(self._function())
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")

    def _function(self) -> Any:
        return getattr(importlib.import_module("vitreous.api"), self.__name__.rpartition(".")[2])

    def __repr__(self) -> str:
        return f"<function and package {self.__name__}>"


class _Facade(ModuleType):
    """This package. Importing a package below it sets an attribute here: where that is a verb too, it can be called."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _VERBS_AND_ROOMS and isinstance(value, ModuleType):
            value.__class__ = _Callable
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name in _VERBS_AND_ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'vitreous' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
