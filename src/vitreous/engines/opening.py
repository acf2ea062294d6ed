"""Opens an engine for a model, converting the model if necessary, and checks that it agrees with PyTorch."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.accelerate.merging import merged_tokens
from vitreous.data.preprocess import EvalPipeline
from vitreous.engines.base import Engine
from vitreous.engines.cache import GraphCache, digest
from vitreous.engines.check import CHECKED, agreement, check_images
from vitreous.engines.names import Precision
from vitreous.engines.torch_engine import TorchEngine
from vitreous.errors import first_line
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.files.user_cache import remove
from vitreous.model.vit import VisionTransformer

__all__ = ["CONVERTERS", "Opened", "Opener", "UnfitError", "installed"]

CONVERTERS = {"openvino": ("openvino",), "onnxruntime": ("onnxruntime", "onnx", "onnxscript")}
"""Engines besides PyTorch, the faster first, and the packages of each. ``NAME_engine.py`` converts a model and runs the
result; it is slow to import."""


class UnfitError(Exception):
    """An engine cannot be used for a model. The message continues a sentence that begins with the engine's name."""


@dataclass(frozen=True)
class Opened:
    """An engine that agrees with PyTorch, and the folder of its graph."""

    engine: Engine
    folder: Path


class Opener:
    """Opens engines for one model, with arguments as :class:`~vitreous.engines.choose.EngineChoice` has them."""

    def __init__(
        self,
        model: VisionTransformer,
        pipeline: EvalPipeline,
        temperature: float,
        notify: Callable[[str], None],
        rule: LabelRule | None = None,
    ) -> None:
        self.model, self.pipeline, self.temperature, self.rule = model, pipeline, temperature, rule
        self.device = next(model.parameters()).device
        self.plain = TorchEngine(model, "float32")
        self._notify = notify

    @cached_property
    def images(self) -> Tensor:
        """The check images, normalised, 3 x C x H x W."""
        return self.pipeline.normalise(check_images(self.pipeline.channels, self.pipeline.size).to(self.device))

    @cached_property
    def reference(self) -> tuple[Tensor, Tensor]:
        """Logits and features of the check images, by PyTorch in float32."""
        return self.plain(self.images)

    def seconds(self, engine: Engine) -> float:
        """Measure the time that an engine takes for one image: the shorter of two, as other programs interfere."""
        times = []
        for _ in range(2):
            start = time.perf_counter()
            engine(self.images[:1])
            times.append(time.perf_counter() - start)
        return min(times)

    def torch(self, precision: Precision) -> Engine:
        """Open PyTorch; raise UnfitError if its results disagree with those in float32."""
        return self.plain if precision == "float32" else self._checked(partial(TorchEngine, self.model), precision)

    def graph(self, name: str, precision: Precision, batch: int, convert: bool) -> Opened | None:
        """Open one of `CONVERTERS` on its stored graph; convert the model if there is none that works, or return None.

        Raises UnfitError if that fails or the engine disagrees, and OutputError if the graph cannot be stored.
        """
        module: Any = importlib.import_module(f"vitreous.engines.{name}_engine")
        folder = self._cache.find(name, CONVERTERS[name])
        if folder is not None:
            start = partial(module.Graph, folder, batch=batch)
            try:
                return Opened(self._checked(start, precision), folder)
            except UnfitError:
                if precision != "float32" and self._agrees_in_float32(start):
                    raise  # the precision is at fault, not the graph
        if not convert:
            return None
        if folder is not None:
            remove(folder)
        self._notify(f"converting the model for {name}, once")
        folder = self._cache.write(name, CONVERTERS[name], partial(self._convert, module))
        return Opened(self._checked(partial(module.Graph, folder, batch=batch), precision), folder)

    @cached_property
    def _cache(self) -> GraphCache:
        return GraphCache([digest(self.model), self.pipeline.size, str(merged_tokens(self.model))])

    def _convert(self, module: Any, folder: Path) -> None:
        self.reference  # noqa: B018 - the first pass builds tables of positions, which must not happen while tracing
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # converters warn about their own internals
                module.convert(self.model, self.pipeline.size, folder)
        except OSError:  # the disk, not the model
            raise
        except Exception as error:  # converters raise anything
            raise UnfitError(f"cannot convert this model ({type(error).__name__}: {first_line(error)})") from error

    def _checked(self, start: Callable[[Precision], Engine], precision: Precision) -> Engine:
        """Start an engine, and check that it agrees with the reference and computes in this precision."""
        try:
            engine = start(precision)
            difference = agreement(engine, self.images, self.reference, self.temperature, self.rule)
        except Exception as error:  # engines raise anything
            raise UnfitError(f"cannot run this model ({type(error).__name__}: {first_line(error)})") from error
        if engine.precision != precision:
            raise UnfitError(f"computes in {engine.precision} on this processor")
        bound = CHECKED[precision]
        if not difference.within(bound):
            raise UnfitError(f"disagrees with torch in float32 on the check images ({difference}; at most {bound})")
        return engine

    def _agrees_in_float32(self, start: Callable[[Precision], Engine]) -> bool:
        try:
            self._checked(start, "float32")
        except UnfitError:
            return False
        return True


def installed(name: str) -> bool:
    """Return whether all packages that an engine needs are installed."""
    return all(importlib.util.find_spec(package) is not None for package in CONVERTERS[name])
