"""Which engine computes: the one that was named, or the fastest that is installed, agrees and pays.

Opening an engine costs time, converting a graph for it costs more, and comparing costs a forward pass in float32. So
`auto` decides by how many images there are: PyTorch for few, and another engine where PyTorch would be busy for longer
than the other costs to have. All engines give the same numbers to the tolerance of their precision
(:mod:`vitreous.engines.check`), and the precision is float32 unless another is asked for: how many images there are
never changes it. The constants were measured (docs/benchmarks.md). A quantised graph will be one more precision here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import get_args

import torch

from vitreous.checkpoint.memory_check import check_batch
from vitreous.data.preprocess import EvalPipeline
from vitreous.engines.base import Engine
from vitreous.engines.cache import remember_speed, remembered_speed
from vitreous.engines.check import TOLERANCE
from vitreous.engines.names import EngineName, Precision, PrecisionName
from vitreous.engines.opening import CONVERTED, Opener, UnfitError, installed
from vitreous.errors import ConfigError, MissingExtraError, OutputError, did_you_mean
from vitreous.machine.device import computes_bf16, describe_machine
from vitreous.model.vit import VisionTransformer

__all__ = ["EngineChoice"]

_EXTRA = {"openvino": "openvino", "onnxruntime": "onnx"}
_OPENING, _CONVERTING = 0.6, 6.0  # seconds that a graph costs: one that is there, one that has to be made
_SAVED = {"bf16": 0.3, "float32": 0.5}  # share of PyTorch's time in a precision that another engine saves
_RACED = 4  # pictures in a race's batch
_ROUNDS = 3


class EngineChoice:
    """Decides which engine computes for one model, again whenever more pictures come.

    Args:
        model: On its device, float32, in evaluation mode.
        pipeline: Its images' size and constants.
        temperature: Of its probabilities.
        engine: `auto`, or the one to use.
        precision: The one to use, or `auto`: bf16 where the device computes it in hardware and it agrees, else float32.
        tell: Is told, in a line, of conversions, of engines that are passed over, and of bf16 with its tolerance.

    Raises:
        ConfigError: If a name is unknown, or the engine does not run on the device or in the precision.
        MissingExtraError: If the engine that is named is not installed.
    """

    def __init__(
        self,
        model: VisionTransformer,
        pipeline: EvalPipeline,
        temperature: float,
        *,
        engine: EngineName = "auto",
        precision: PrecisionName = "float32",
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._tell = tell or (lambda line: None)
        self._open = Opener(model, pipeline, temperature, self._tell)
        self._asked, self._precision = engine, precision
        self._passed_over: set[str] = set()
        self._check_names()
        self._best: Engine | None = None

    def engine(self, pictures: int, batch_size: int) -> Engine:
        """Return what computes this many pictures.

        Args:
            pictures: How many there are in all, as far as is known.
            batch_size: How many are computed at a time.

        Raises:
            ConfigError: If an engine or a precision was named that fails, or disagrees with PyTorch in float32.
            ConfigError: If so many at a time do not fit into the memory.
            OutputError: If an engine was named whose graph cannot be kept.
        """
        if self._open.device.type == "cpu" and pictures:
            model = self._open.model
            merged = getattr(model.merging, "count", 0)  # none: no tokens are joined
            check_batch(model.config, self._open.pipeline, min(pictures, batch_size), merged)
        if self._best is None:
            self._best = self._first_that_agrees("torch" if self._asked == "auto" else self._asked, batch_size)
            self._seconds = self._open.seconds(self._best) if self._asked == "auto" else 0.0  # that an image takes
            if self._best.precision == "bf16":
                bound = TOLERANCE["bf16"]
                self._tell(
                    f"computing in bf16, as asked: probabilities may differ from those in float32 by "
                    f"{bound.probabilities:g}, features by {bound.features:.0%} of the largest"
                )
        if self._asked == "auto":
            for name in self._candidates(self._best.precision):
                if self._best.name == "torch":
                    self._consider(name, self._best, pictures, batch_size)
        return self._best

    def _check_names(self) -> None:
        """Refuse what cannot be meant, before any work."""
        for what, value, kind in (
            ("engine", self._asked, EngineName),
            ("precision", self._precision, PrecisionName),
        ):
            if value not in get_args(kind):
                known = get_args(kind)
                raise ConfigError(f"{what} is '{value}', it can be {', '.join(known)}.{did_you_mean(value, known)}")
        if self._asked not in CONVERTED:
            return
        if self._open.device.type != "cpu":
            raise ConfigError(f"engine {self._asked} runs on the CPU, not on {self._open.device}: use --device cpu")
        if self._asked == "onnxruntime" and self._precision == "bf16":
            raise ConfigError(
                "engine onnxruntime has no bf16 on the CPU: use --precision float32, or --engine openvino"
            )
        if not installed(self._asked):
            extra = _EXTRA[self._asked]
            raise MissingExtraError(f"engine {self._asked} is not installed: pip install 'vitreous[{extra}]'")

    def _first_that_agrees(self, name: str, batch_size: int) -> Engine:
        """Open an engine in the first precision that agrees.

        Raises:
            ConfigError: If none of those that may be used does.
        """
        precisions: list[Precision] = ["float32"] if self._precision == "auto" else [self._precision]
        if self._precision == "auto" and name != "onnxruntime" and computes_bf16(self._open.device):
            precisions = ["bf16", "float32"]
        for precision in precisions:
            try:
                return self._opened(name, precision, batch_size)
            except UnfitError as reason:
                if precision == precisions[-1]:
                    other = "--precision float32" if precision == "bf16" else "--engine torch"
                    raise ConfigError(f"{name} in {precision} {reason}: use {other}") from reason
                self._tell(f"{name} in {precision} {reason}: float32 is used")
        raise AssertionError("there is a last precision")

    def _opened(self, name: str, precision: Precision, batch_size: int) -> Engine:
        """Open an engine, and convert the model for it where that was not done yet."""
        if name == "torch":
            return self._open.torch(precision)
        opened = self._open.graph(name, precision, batch_size, convert=True)
        assert opened is not None  # what is not there is converted
        return opened.engine

    def _candidates(self, precision: Precision) -> list[str]:
        """The engines that `auto` has yet to compare with PyTorch; one that was faster ends the search."""
        if self._open.device.type != "cpu" or (self._best and self._best.name != "torch"):
            return []
        able = [name for name in CONVERTED if precision == "float32" or name != "onnxruntime"]
        return [name for name in able if name not in self._passed_over and installed(name)]

    def _consider(self, name: str, best: Engine, pictures: int, batch_size: int) -> None:
        """Take an engine in the place of the best so far if having it pays, it agrees, and it is faster."""
        saved = pictures * self._seconds * _SAVED[best.precision]
        if saved < _OPENING:
            return
        try:
            opened = self._open.graph(name, best.precision, batch_size, convert=saved >= _CONVERTING)
        except (UnfitError, OutputError) as reason:
            self._tell(f"{name} {reason}: {best.name} is used")
            self._passed_over.add(name)
            return
        if opened is None:
            return
        self._passed_over.add(name)
        count = min(_RACED, batch_size)
        cpu, threads = describe_machine(self._open.device).cpu, torch.get_num_threads()
        place = f"{cpu}, {threads} threads, {best.name}, {best.precision}, batch {count}"
        speed = remembered_speed(opened.folder, place)
        if speed is None:
            speed = self._race(opened.engine, best, count)
            remember_speed(opened.folder, place, speed)
        if speed > 1:
            self._best = opened.engine

    def _race(self, engine: Engine, other: Engine, count: int) -> float:
        """Return how many times as fast as another an engine computes a batch, measured in turn."""
        images = self._open.images[:1].expand(count, -1, -1, -1).contiguous()
        times: dict[str, list[float]] = {engine.name: [], other.name: []}
        for _ in range(1 + _ROUNDS):
            for each in (engine, other):
                start = time.perf_counter()
                each(images)
                times[each.name].append(time.perf_counter() - start)
        fastest = {name: min(seconds[1:]) for name, seconds in times.items()}  # the first round allocates
        return fastest[other.name] / fastest[engine.name]
