"""Opening an engine for a model: on a graph that was kept or is converted now, and only if it agrees with PyTorch."""

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

from vitreous.data.preprocess import EvalPipeline
from vitreous.engines import onnxruntime_engine, openvino_engine
from vitreous.engines.base import Engine
from vitreous.engines.cache import GraphCache, digest
from vitreous.engines.check import CHECKED, agreement, check_images
from vitreous.engines.names import Precision
from vitreous.engines.torch_engine import TorchEngine
from vitreous.model.vit import VisionTransformer

__all__ = ["CONVERTED", "Opened", "Opener", "UnfitError", "installed"]

CONVERTED = {"openvino": openvino_engine, "onnxruntime": onnxruntime_engine}
"""Engines beside PyTorch, each a module that converts a model and runs what it converted; the faster one first."""


class UnfitError(Exception):
    """Why an engine cannot be used for a model, to be read after its name."""


@dataclass(frozen=True)
class Opened:
    """An engine that agrees, and the folder of its graph."""

    engine: Engine
    folder: Path


class Opener:
    """Opens engines for one model.

    Args:
        model: On its device, float32, in evaluation mode.
        pipeline: Its images' size and constants.
        temperature: Of its probabilities.
        tell: Is told, in a line, that a graph is converted.
    """

    def __init__(
        self,
        model: VisionTransformer,
        pipeline: EvalPipeline,
        temperature: float,
        tell: Callable[[str], None],
    ) -> None:
        self.model, self.pipeline, self.temperature = model, pipeline, temperature
        self.device = next(model.parameters()).device
        self.plain = TorchEngine(model, "float32")
        self._tell = tell

    @cached_property
    def images(self) -> Tensor:
        """The check images, normalised, 3 x C x H x W."""
        return self.pipeline.normalise(check_images(self.pipeline.channels, self.pipeline.size).to(self.device))

    @cached_property
    def reference(self) -> tuple[Tensor, Tensor]:
        """Their logits and features by PyTorch in float32."""
        return self.plain(self.images)

    def seconds(self, engine: Engine) -> float:
        """Return what one image takes an engine: the shorter of two times, as another program may hold up one."""
        times = []
        for _ in range(2):
            start = time.perf_counter()
            engine(self.images[:1])
            times.append(time.perf_counter() - start)
        return min(times)

    def torch(self, precision: Precision) -> Engine:
        """Open PyTorch.

        Raises:
            UnfitError: If the results disagree with those in float32.
        """
        return self.plain if precision == "float32" else self._agreeing(partial(TorchEngine, self.model), precision)

    def graph(self, name: str, precision: Precision, batch: int, convert: bool) -> Opened | None:
        """Open an engine on its graph; one that is damaged or wrong is converted again.

        Args:
            name: One of `CONVERTED`.
            precision: What it multiplies in.
            batch: Pictures that will come at a time.
            convert: Whether a graph that is not there yet is converted; if not, None is returned.

        Raises:
            UnfitError: If the model cannot be converted, or the engine fails or disagrees.
            OutputError: If the graph cannot be kept.
        """
        module: Any = CONVERTED[name]
        folder = self._cache.find(name, module.PACKAGES)
        if folder is not None:
            start = partial(module.Graph, folder, batch=batch)
            try:
                return Opened(self._agreeing(start, precision), folder)
            except UnfitError:
                if precision != "float32" and self._is_sound(start):
                    raise  # the precision is at fault, not the graph
        if not convert:
            return None
        if folder is not None:
            self._cache.discard(folder)
        self._tell(f"converting the model for {name}, once")
        folder = self._cache.write(name, module.PACKAGES, lambda to: self._convert(module, to))
        return Opened(self._agreeing(partial(module.Graph, folder, batch=batch), precision), folder)

    @cached_property
    def _cache(self) -> GraphCache:
        return GraphCache([digest(self.model), self.pipeline.size, repr(self.model.merging)])

    def _convert(self, module: Any, folder: Path) -> None:
        """Have a module convert the model."""
        self.reference  # noqa: B018 - tables of positions are made by a first pass, not while the graph is traced
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of converters, about their own insides
                module.convert(self.model, self.pipeline.size, folder)
        except OSError:  # the disk, which is not the model's fault
            raise
        except Exception as error:  # converters raise anything
            raise UnfitError(f"cannot convert this model ({_in_short(error)})") from error

    def _agreeing(self, start: Callable[[Precision], Engine], precision: Precision) -> Engine:
        """Start an engine, and see that it computes in this precision what the reference does."""
        try:
            engine = start(precision)
            found = agreement(engine, self.images, self.reference, self.temperature)
        except Exception as error:  # engines too
            raise UnfitError(f"cannot run this model ({_in_short(error)})") from error
        if engine.precision != precision:
            raise UnfitError(f"computes in {engine.precision} on this processor")
        bound = CHECKED[precision]
        if not found.within(bound):
            raise UnfitError(f"disagrees with torch in float32 on the check images ({found}; at most {bound})")
        return engine

    def _is_sound(self, start: Callable[[Precision], Engine]) -> bool:
        """Whether a graph agrees in float32."""
        try:
            self._agreeing(start, "float32")
        except UnfitError:
            return False
        return True


def installed(name: str) -> bool:
    """Whether all that an engine needs is installed."""
    packages: tuple[str, ...] = CONVERTED[name].PACKAGES
    return all(importlib.util.find_spec(package) is not None for package in packages)


def _in_short(error: Exception) -> str:
    """An error of somebody's library in a few words."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return f"{type(error).__name__}: {lines[0][:160]}"
