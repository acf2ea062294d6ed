"""Chooses the engine that computes: the one the user named, or the fastest that is installed, agrees and pays off.

Opening a graph costs time, and converting a model costs more. So `auto` decides by the number of images: PyTorch for
few, another engine once it saves more time than it costs. All engines give the same numbers, to the tolerance of their
precision (`check.py`). The precision is float32 unless the user asks for another; it never depends on the number of
images. The constants were measured (docs/explanation/benchmarks.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import get_args

import torch

from vitreous.accelerate.merging import merged_tokens
from vitreous.checkpoint.memory_check import check_batch
from vitreous.data.preprocess import EvalPipeline
from vitreous.engines.base import Engine
from vitreous.engines.cache import remember_speed, remembered_speed
from vitreous.engines.check import TOLERANCE
from vitreous.engines.names import EngineName, Precision, PrecisionName
from vitreous.engines.opening import CONVERTERS, Opener, UnfitError, installed
from vitreous.errors import ConfigError, MissingExtraError, OutputError, did_you_mean
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.machine.device import computes_bf16, describe_machine
from vitreous.model.vit import VisionTransformer

__all__ = ["EngineChoice"]

_EXTRA = {"openvino": "openvino", "onnxruntime": "onnx"}  # the optional dependency that installs an engine
_OPENING, _CONVERTING = 0.6, 6.0  # seconds that it costs to open a stored graph, and to convert a model
_SAVED = {"bf16": 0.3, "float32": 0.5}  # share of PyTorch's time that another engine saves
_RACE_BATCH, _RACE_ROUNDS = 4, 3


class EngineChoice:
    """Chooses the engine for one model, again whenever more images arrive.

    The model is on its device, float32, in evaluation mode; :class:`~vitreous.predictor.Classifier` has the options.
    """

    def __init__(
        self,
        model: VisionTransformer,
        pipeline: EvalPipeline,
        temperature: float,
        *,
        engine: EngineName = "auto",
        precision: PrecisionName = "float32",
        rule: LabelRule | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._notify = tell or (lambda line: None)
        self._opener = Opener(model, pipeline, temperature, self._notify, rule)
        self._requested, self._precision = engine, precision
        self._skipped: set[str] = set()
        self._check_names()
        self._best: Engine | None = None

    def engine(self, num_images: int, batch_size: int) -> Engine:
        """Return the engine for this many images, as far as their number is known; refuse batches beyond the memory."""
        if self._opener.device.type == "cpu" and num_images:
            model = self._opener.model
            merged = merged_tokens(model)
            check_batch(model.config, self._opener.pipeline, min(num_images, batch_size), merged)
        is_auto = self._requested == "auto"
        if self._best is None:
            self._best = self._open("torch" if is_auto else self._requested, batch_size)
            self._seconds = self._opener.seconds(self._best) if is_auto else 0.0  # per image
            if self._best.precision == "bf16":
                bound = TOLERANCE["bf16"]
                self._notify(
                    f"computing in bf16, as asked: probabilities may differ from those in float32 by "
                    f"{bound.probabilities:g}, features by {bound.features:.0%} of the largest"
                )
        if is_auto and self._opener.device.type == "cpu":
            for name in CONVERTERS:
                if self._best.name == "torch" and name not in self._skipped and installed(name):
                    self._try(name, self._best, num_images, batch_size)
        return self._best

    def _check_names(self) -> None:
        """Refuse names and combinations that cannot work, before any work is done."""
        names = {"engine": (self._requested, EngineName), "precision": (self._precision, PrecisionName)}
        for what, (value, kind) in names.items():
            if value not in get_args(kind):
                known = get_args(kind)
                raise ConfigError(f"{what} is '{value}', it can be {', '.join(known)}.{did_you_mean(value, known)}")
        if self._requested not in CONVERTERS:
            return
        if self._opener.device.type != "cpu":
            device = self._opener.device
            raise ConfigError(f"engine {self._requested} runs on the CPU, not on {device}: use --device cpu")
        if self._requested == "onnxruntime" and self._precision == "bf16":
            remedy = "use --precision float32, or --engine openvino"
            raise ConfigError(f"engine onnxruntime has no bf16 on the CPU: {remedy}")
        if not installed(self._requested):
            extra = _EXTRA[self._requested]
            raise MissingExtraError(f"engine {self._requested} is not installed: pip install 'vitreous[{extra}]'")

    def _open(self, name: str, batch_size: int) -> Engine:
        """Open an engine in the requested precision, or for `auto` in the first that agrees."""
        precisions: list[Precision] = ["float32"] if self._precision == "auto" else [self._precision]
        if self._precision == "auto" and name != "onnxruntime" and computes_bf16(self._opener.device):
            precisions = ["bf16", "float32"]
        for precision in precisions:
            try:
                if name == "torch":
                    return self._opener.torch(precision)
                opened = self._opener.graph(name, precision, batch_size, convert=True)
                assert opened is not None  # a missing graph is converted
                return opened.engine
            except UnfitError as reason:
                if precision == precisions[-1]:
                    other = "--precision float32" if precision == "bf16" else "--engine torch"
                    raise ConfigError(f"{name} in {precision} {reason}: use {other}") from reason
                self._notify(f"{name} in {precision} {reason}: float32 is used")
        raise AssertionError("the last precision returns or raises")

    def _try(self, name: str, best: Engine, num_images: int, batch_size: int) -> None:
        """Replace the best engine by another if opening that pays off, it agrees, and it is faster."""
        if best.precision == "bf16" and name == "onnxruntime":
            return
        saved = num_images * self._seconds * _SAVED[best.precision]
        if saved < _OPENING:
            return
        try:
            opened = self._opener.graph(name, best.precision, batch_size, convert=saved >= _CONVERTING)
        except (UnfitError, OutputError) as reason:
            self._notify(f"{name} {reason}: {best.name} is used")
            self._skipped.add(name)
            return
        if opened is None:
            return
        self._skipped.add(name)
        count = min(_RACE_BATCH, batch_size)
        cpu, threads = describe_machine(self._opener.device).cpu, torch.get_num_threads()
        machine = f"{cpu}, {threads} threads, {best.name}, {best.precision}, batch {count}"
        if (speed := remembered_speed(opened.folder, machine)) is None:
            speed = self._race(opened.engine, best, count)
            remember_speed(opened.folder, machine, speed)
        if speed > 1:
            self._best = opened.engine

    def _race(self, engine: Engine, other: Engine, count: int) -> float:
        """Measure how many times as fast as another an engine computes a batch; the two take turns."""
        images = self._opener.images[:1].expand(count, -1, -1, -1).contiguous()
        times: dict[str, list[float]] = {engine.name: [], other.name: []}
        for _ in range(1 + _RACE_ROUNDS):
            for each in (engine, other):
                start = time.perf_counter()
                each(images)
                times[each.name].append(time.perf_counter() - start)
        fastest = {name: min(seconds[1:]) for name, seconds in times.items()}  # the first round is a warm-up
        return fastest[other.name] / fastest[engine.name]
