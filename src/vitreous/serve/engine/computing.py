"""The work of an engine process: predictions, features, logits and class maps of images, by one loaded model.

This is the only file of the service that knows :func:`vitreous.load`. Shapes: B batch, H x W pixels, C channels.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitreous.checkpoint.licence import recorded_licence
from vitreous.data.images.reading import read_image
from vitreous.engines.names import PrecisionName
from vitreous.engines.opening import CONVERTERS, installed
from vitreous.errors import CheckpointError, ConfigError, DataError, UsageError
from vitreous.machine.allocator import keep_freed_memory
from vitreous.predictions import Embedding, Failure, Prediction
from vitreous.predictor import Classifier, load
from vitreous.serve.engine.effort import AT_ONCE, CONVERT, Effort

if TYPE_CHECKING:
    from vitreous.inspection.explanation import Explanation

__all__ = ["Computing", "Refused"]

_MANY = 1_000_000  # images that a service expects: converting the model pays off
# The engine splits batches of this size between threads, as it does offline. Its threads then need not wait for each
# other, which costs more than it saves on cores that HTTP and decoding use too.
_USUAL_BATCH = 32
_MAX_MAP_SIDE = 1024  # pixels of a class map drawn over its image

Answer = tuple[dict[str, Any], bytes]


class Refused(Exception):  # noqa: N818 - an answer, not a mistake
    """A request that cannot be answered: the reason, the status of HTTP that fits it, and whether the image is why."""

    def __init__(self, reason: str, status: int = 422, about_image: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.status, self.about_image = reason, status, about_image


class _WouldConvert(Exception):  # noqa: N818 - a state, not a mistake
    """Raised by the notice that a model is about to be converted."""


class Computing:
    """A loaded model that answers.

    Args:
        path: What :func:`vitreous.load` takes.
        options: Its further arguments.
        effort: What the engine `auto` takes time for (:mod:`vitreous.serve.engine.effort`). Attributes tell afterwards
            whether more of it `can_improve` the engine, and whether the model `has_converted`.
        tell: Receives notices.
    """

    def __init__(
        self, path: str, options: Mapping[str, Any], effort: Effort, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        keep_freed_memory()
        self.options = dict(options)
        self.can_improve = self.has_converted = False
        self._tell, self._may_convert = tell, True
        self.source = load(path, tell=self._hear, **self.options)
        self.engine = self._choose_engine(effort)
        self.computing = _without_resizing(self.source)
        self.seconds = self._time_of_one()

    def _choose_engine(self, effort: Effort) -> dict[str, str]:
        """Choose the engine once, and return its name, precision and device."""
        is_auto = self.options.get("engine", "auto") == "auto" and self.source.device.type == "cpu"
        self._may_convert = effort == CONVERT or not is_auto
        if effort == AT_ONCE and is_auto and self.has_maps:
            self.can_improve = any(installed(name) for name in CONVERTERS)
            self.source = self._with_torch(self.options.get("precision", "float32"))
        try:
            engine = self.source.prepare(_MANY, _USUAL_BATCH)
        except _WouldConvert:
            engine = self.source.prepare(1, _USUAL_BATCH)
            self.can_improve = True
        if is_auto and engine.name == "torch" and self.source.engine == "auto":
            # `auto` would convert the model later, in the middle of a request.
            self.source = self._with_torch(engine.precision)
            engine = self.source.prepare(1, _USUAL_BATCH)
        return {"engine": engine.name, "precision": engine.precision, "device": str(self.source.device)}

    def _with_torch(self, precision: PrecisionName) -> Classifier:
        """Return the model computed by PyTorch."""
        model, info, device, tta = self.source.model, self.source.info, self.source.device, self.source.tta
        return Classifier(model, info, device, engine="torch", precision=precision, tta=tta, tell=self._hear)

    def _hear(self, line: str) -> None:
        """Pass a notice on, unless it says that the model is about to be converted and there is no time for that."""
        if line.startswith("converting"):
            if not self._may_convert:
                raise _WouldConvert
            self.has_converted = True
        self._tell(line)

    def _time_of_one(self) -> float:
        """Return the seconds for one image, the shorter of two."""
        (height, width), channels = self.source.pipeline.size, self.source.pipeline.channels
        image, times = np.zeros((height, width, channels), np.uint8), []
        for _ in range(2):
            start = time.perf_counter()
            list(self.computing.embed_stream([image]))
            times.append(time.perf_counter() - start)
        return min(times)

    @property
    def has_maps(self) -> bool:
        """Whether the model has weights to look into, unlike an exported graph."""
        return getattr(self.source, "exported", None) is None

    def describe(self) -> dict[str, Any]:
        """Return what `GET /v1/model` says of the model, as JSON types."""
        info, pipeline = self.source.info, self.source.pipeline
        rules = {"abstention": info.abstention, "conformal": info.conformal, "multilabel": info.multilabel}
        return {
            "classes": list(self.source.classes),
            "features": int(self.source.features),
            "pipeline": pipeline.to_dict(),
            "temperature": float(info.temperature),
            **{name: rule.to_dict() if rule is not None else None for name, rule in rules.items()},
            "scores": dict(info.scores),
            "license": recorded_licence(info.provenance),
            "maps": self.has_maps,
            "blocks": self.source.model.config.depth if self.has_maps else 0,
            **self.engine,
        }

    def decode(self, content: bytes) -> Any:
        """Return an image in the form that :meth:`compute` takes; may be called from several threads.

        Raises:
            Refused: If it cannot be read.
        """
        try:
            return self.source.pipeline.pixels(read_image(content))
        except DataError as error:
            raise _unreadable(error) from error

    def compute(self, work: str, items: Sequence[Any], top_k: int = 5) -> list[Answer | Refused]:
        """Return an answer for each of a batch of decoded images; `work` is `predict`, `embed` or `logits`."""
        stream = {
            "predict": lambda: self.computing.predict_stream(items, top_k, len(items)),
            "embed": lambda: self.computing.embed_stream(items, len(items)),
            "logits": lambda: self.computing.logits_stream(items, len(items)),
        }[work]
        if work != "embed" and not self.source.classes:
            return [Refused("this model has no classification head: POST /v1/embed gives its features")] * len(items)
        return [
            Refused(result.reason, about_image=True) if isinstance(result, Failure) else _answer(result)
            for result in stream()
        ]

    def explain(self, content: bytes, options: Mapping[str, Any]) -> Answer:
        """Return the class map of one image as a PNG file.

        Raises:
            Refused: If the image cannot be read, or the model, the method or the class has no map.
        """
        from vitreous.inspection.explain import ModelInMemory, explain  # only when asked: the service starts sooner

        given, source = dict(options), self.source
        render, target = given.pop("render"), given.pop("target", None)
        if isinstance(target, str) and target not in source.classes and target.isdecimal():
            target = int(target)
        try:
            image = read_image(content)
            # By PyTorch, whatever engine predicts, and from the weights in memory: the file may be another one by now.
            found = explain(ModelInMemory(source.model, source.info, source.device), image, target, **given)
        except DataError as error:
            raise _unreadable(error) from error
        except (CheckpointError, ConfigError, UsageError) as error:
            raise Refused(str(error)) from error
        said = {"label": found.label, "probability": found.probability, "method": found.method, "grid": found.grid}
        said |= {"low": float(np.nanmin(found.patches)), "high": float(np.nanmax(found.patches))}
        return said, self._drawn(found, image, render)

    def _drawn(self, found: Explanation, image: Image.Image, render: str) -> bytes:
        """Draw a map: over the image, alone in the image's shape, or as one grey pixel per patch."""
        from vitreous.report.drawing import magnitude_colours, overlaid, png, reduced, scaled

        if render == "patches":
            return png(Image.fromarray((255 * scaled(found.patches)).round().astype(np.uint8)))
        scale = min(1.0, _MAX_MAP_SIDE / max(found.image_size))
        height, width = (max(1, round(side * scale)) for side in found.image_size)
        placement = self.source.pipeline.placement(height, width)
        values = replace(found, image_size=(height, width), placement=placement).image_map()
        if render == "map":
            return png(magnitude_colours(values))
        return png(overlaid(reduced(image, _MAX_MAP_SIDE).resize((width, height)), values))


def _unreadable(error: DataError) -> Refused:
    return Refused(str(error).removeprefix("image: "), about_image=True)


def _without_resizing(classifier: Classifier) -> Classifier:
    """Return a classifier that takes pixels (H, W, C) of the model's size as they are: threads have resized them."""
    other = copy.copy(classifier)
    pipeline = classifier.pipeline
    same_size = replace(pipeline, config=replace(pipeline.config, fit="squash"))
    other.info = replace(classifier.info, pipeline=same_size)
    return other


def _answer(result: Any) -> Answer:
    if isinstance(result, Prediction):
        top = [{"label": label, "probability": probability} for label, probability in result.top]
        record: dict[str, Any] = {"label": result.label, "probability": result.probability, "top": top}
        if result.unsure is not None:
            record["unsure"] = result.unsure
        if result.set is not None:
            record |= {"set": list(result.set), "set_coverage": result.set_coverage}
        if result.labels is not None:
            record["labels"] = list(result.labels)
        return record, b""
    vector = result.vector if isinstance(result, Embedding) else result
    return {}, np.ascontiguousarray(vector, dtype="<f4").tobytes()
