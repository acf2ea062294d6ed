"""Explain one image: which patches speak for a class. Methods are in ``maps/``.

Shapes: B batch, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.opening import open_checkpoint
from vitreous.data.images.inputs import ImageInput, to_source
from vitreous.data.images.reading import read_image
from vitreous.errors import ConfigError, UsageError, did_you_mean, pluralize
from vitreous.files.text import visible
from vitreous.inspection.explanation import Explanation
from vitreous.inspection.maps import MAPS
from vitreous.inspection.maps.base import MapMethod, method_options
from vitreous.model.part import choose
from vitreous.model.vit import VisionTransformer
from vitreous.predictions import input_name

__all__ = ["Explainable", "ModelInMemory", "explain", "map_method"]


class Explainable(Protocol):
    """What is explained: :class:`vitreous.Classifier`, or anything with the same four attributes."""

    @property
    def model(self) -> VisionTransformer:
        """The model, in evaluation mode."""

    @property
    def info(self) -> ModelInfo:
        """Class names, evaluation pipeline and temperature."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""

    @property
    def engine(self) -> str:
        """The engine that was asked for."""


@dataclass(frozen=True, eq=False)
class ModelInMemory:
    """A model that is in no file, such as one in training, as :func:`explain` takes it."""

    model: VisionTransformer
    info: ModelInfo
    device: torch.device
    engine: str = "torch"


def explain(
    classifier: Explainable | str | os.PathLike[str],
    image: ImageInput,
    target: int | str | None = None,
    method: str | MapMethod = "gradient-attention",
    **options: Any,
) -> Explanation:
    """Show which patches of an image speak for a class.

    The map is computed by PyTorch in float32, whatever the precision of predictions, and without test-time
    augmentation.

    Args:
        classifier: A loaded classifier, or the path or hub id of a model.
        image: One image, as :meth:`vitreous.Classifier.predict` takes it.
        target: Name or number of the class. None: the predicted class.
        method: `gradient-attention`, `legrad`, `grad-cam`, `integrated-gradients`, `occlusion`, `rollout`, `attention`
            or `random` (:mod:`vitreous.inspection.maps`), or a method with its options.
        **options: Options of the method, such as ``steps=64``.

    Raises:
        UsageError: If there is no such class.
        ConfigError: If the method or an option is unknown or out of range, the method needs a class and the model has
            none, the model merges tokens, or the classifier uses another engine than PyTorch.
        DataError: If the image cannot be read.
        CheckpointError: If the model cannot be opened.
    """
    chosen = map_method(method, **options)
    model, info, device = _opened(classifier)
    number = None if target is None else _class_number(target, info.classes)
    pixels = read_image(to_source(image))
    images = info.pipeline(pixels)[None].to(device)  # 1 C H W
    if number is None and info.multilabel is not None:  # slopes and offsets change which label is the most probable
        with torch.no_grad():
            number = int(info.calibrated(model(images))[0].argmax())
    maps = chosen(model, images, None if number is None else torch.tensor([number]))
    logits, number = maps.logits[0].float().cpu(), int(maps.targets[0])
    return Explanation(
        patches=maps.values[0].float().cpu().numpy(),
        method=chosen.kind,
        target=number,
        label=info.classes[number] if info.classes else "",
        probability=float(info.probabilities(logits)[number]) if info.classes else 0.0,
        logits=logits.numpy(),
        name=input_name(image, 0),
        image_size=(pixels.height, pixels.width),
        input_size=info.pipeline.size,
        placement=info.pipeline.placement(pixels.height, pixels.width),
        uses_class=chosen.uses_class,
        options=method_options(chosen),
    )


def map_method(method: str | MapMethod, **options: Any) -> MapMethod:
    """Return a method by its name with options, or one with some options changed.

    Raises:
        ConfigError: If the method or an option is unknown; the nearest one is suggested.
    """
    if isinstance(method, MapMethod):
        return choose("method", MAPS, options, method) if options else method
    current = next((kind for kind in MAPS if kind.kind == method), MAPS[0])()
    return choose("method", MAPS, {"kind": method, **options}, current)


def _opened(classifier: Explainable | str | os.PathLike[str]) -> tuple[VisionTransformer, ModelInfo, torch.device]:
    if isinstance(classifier, str | os.PathLike):
        model, info = open_checkpoint(classifier)
        return model, info, torch.device("cpu")
    plain = classifier.model  # an exported file has none, and says what to give instead
    if classifier.engine not in ("auto", "torch"):
        raise ConfigError(
            f"engine {classifier.engine} computes logits alone, a map needs values inside the model: "
            'load the model with engine="torch"'
        )
    return plain, classifier.info, classifier.device


def _class_number(target: int | str, classes: tuple[str, ...]) -> int:
    """Return the number of a class given by name or number."""
    if not classes:
        raise ConfigError("the model has no classes, so there is no class to explain: use a model with a head")
    if isinstance(target, str):
        if target not in classes:
            near, count = did_you_mean(target, classes), pluralize(len(classes), "class", "classes")
            raise UsageError(f"the model has no class '{visible(target)}'.{near} It has {count}")
        return classes.index(target)
    if isinstance(target, bool) or not hasattr(target, "__index__") or not 0 <= int(target) < len(classes):
        raise UsageError(f"target is {target!r}, it must be a class name or a number from 0 to {len(classes) - 1}")
    return int(target)
