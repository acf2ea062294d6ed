"""Vitreous: Vision Transformers you can see through.

    import vitreous
    model = vitreous.create("B/16", num_classes=10)            # a torch.nn.Module
    classifier = vitreous.load("runs/digits-1/model.safetensors")
    classifier.predict("photo.jpg")
    vitreous.Client("http://127.0.0.1:8000").predict("photo.jpg")  # the same of a model behind `vitreous serve`
    vitreous.explain(classifier, "photo.jpg").image_map()      # which pixels speak for the predicted class
    result = vitreous.train("photos/", epochs=20)              # as the command; also `finetune`, `evaluate`, `inspect`
    result.model.predict("photo.jpg")

To read the code, begin with `model/vit.py` (the model), `data/` (from image files to batches) and `train/run.py` (the
order of events in a run). `predictor/` classifies images with a trained model, `api.py` has the commands as functions
and `cli/` the commands; `errors.py` is the exception tree. Importing this package loads none of them: each public name
is imported on first use.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.accelerate.model import create
    from vitreous.api import calibrate, evaluate, finetune, inspect, train
    from vitreous.client import Client
    from vitreous.inspection.explain import explain
    from vitreous.model.vit import VisionTransformer, ViTConfig
    from vitreous.predictor import Classifier, load

try:
    from vitreous._version import __version__ as __version__  # written by a build, from the tag
except ImportError:  # a source tree that was never built
    __version__ = "0+unknown"
__all__ = [
    "Classifier",
    "Client",
    "ViTConfig",
    "VisionTransformer",
    "calibrate",
    "create",
    "evaluate",
    "explain",
    "finetune",
    "inspect",
    "load",
    "train",
]

_MODULES = {
    "Classifier": "vitreous.predictor",
    "Client": "vitreous.client",
    "calibrate": "vitreous.api",
    "ViTConfig": "vitreous.model.config",
    "VisionTransformer": "vitreous.model.vit",
    "create": "vitreous.accelerate.model",
    "explain": "vitreous.inspection.explain",
    "finetune": "vitreous.api",
    "inspect": "vitreous.api",
    "load": "vitreous.predictor",
}
_CALLABLE_PACKAGES = ("evaluate", "train")  # names of a subpackage that are also functions in `vitreous.api`


class _CallablePackage(ModuleType):
    """A subpackage that can be called as the function of the same name, such as `vitreous.train`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return the function's signature, which notebooks show for `vitreous.train?`."""
        if name == "__signature__":
            import inspect

            return inspect.signature(self._function())
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")

    def _function(self) -> Any:
        return getattr(importlib.import_module("vitreous.api"), self.__name__.rpartition(".")[2])

    def __repr__(self) -> str:
        return f"<function and package {self.__name__}>"


class _Package(ModuleType):
    """This package. Importing a subpackage sets it as an attribute here, which is where it is made callable."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLABLE_PACKAGES and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name in _CALLABLE_PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'vitreous' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
