"""The faithfulness of map methods on a sample of images, as large as a time allows.

Shapes: N images, C channels, H x W pixels, (h, w) patches, K classes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.scoring.intervals import Interval
from vitreous.inspection.faithfulness.randomisation import randomisation
from vitreous.inspection.faithfulness.table import RANDOM, faithfulness_table, mean_interval, sample_size
from vitreous.inspection.maps.attention import RawAttention
from vitreous.inspection.maps.base import MapMethod, method_options
from vitreous.inspection.maps.rollout import Rollout
from vitreous.model.vit import VisionTransformer
from vitreous.predictor import Classifier
from vitreous.report.inspection.results import Comparison

__all__ = ["FEWEST", "affordable", "compare", "compared_methods", "seconds_per_image"]

FEWEST = 10
"""Images below which a comparison has no verdict."""

_MOST = 2000
_RANDOMISED = 32  # images of the randomisation check
_GROUPS = 10  # of patches; fewer where there are fewer patches


def compared_methods(methods: Sequence[MapMethod]) -> list[MapMethod]:
    """Return the methods that are compared: the given ones, attention and rollout; random maps are always added."""
    found = {method.kind: method for method in (RawAttention(), Rollout())} | {each.kind: each for each in methods}
    chosen = [each.kind for each in methods if each.kind != Rollout.kind]
    order = [*chosen, RawAttention.kind, Rollout.kind]
    return [found[kind] for kind in dict.fromkeys(order) if kind != RANDOM]


def seconds_per_image(classifier: Classifier, batch_size: int) -> float:
    """Return the time of a forward pass per image: the median of three passes after one to warm up."""
    model, (height, width) = classifier.model, classifier.pipeline.size
    batch = torch.zeros(batch_size, classifier.pipeline.channels, height, width, device=classifier.device)
    times = []
    with torch.inference_mode():
        for _ in range(4):
            start = time.perf_counter()
            model(batch).sum().item()  # waits for an asynchronous device
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:]) / batch_size


def affordable(
    classifier: Classifier, methods: Sequence[MapMethod], example: Tensor, seconds: float, batch_size: int
) -> int:
    """Return how many images the methods can be compared on in a time.

    Args:
        classifier: The model.
        methods: Of :func:`compared_methods`.
        example: One image, (1, C, H, W), whose maps are timed.
        seconds: The budget.
        batch_size: Images per forward pass.

    Raises:
        ConfigError: If the time does not pay for the fewest images of a verdict.
    """
    per_pass = seconds_per_image(classifier, batch_size)
    batch = example.expand(min(batch_size, 8), -1, -1, -1).contiguous()
    for method in methods:  # warm up
        method(classifier.model, batch[:1])
    start = time.perf_counter()
    for method in methods:
        method(classifier.model, batch)
    maps = (time.perf_counter() - start) / len(batch)
    groups = _groups(classifier.model)
    scored = 1e9 * per_pass / sample_size(1e9 * per_pass, per_pass, len(methods), groups)  # of an image, without maps
    checked = 2 * maps * _RANDOMISED
    count = int((seconds - checked) / (scored + maps)) if seconds > checked else 0
    if count < FEWEST:
        needed = checked + FEWEST * (scored + maps)
        raise ConfigError(
            f"--budget is {seconds:g} s, but {len(methods)} methods on {FEWEST} images take about {needed:.0f} s: "
            "allow more time, or compare fewer methods"
        )
    return min(count, _MOST)


def compare(
    classifier: Classifier, methods: Sequence[MapMethod], images: Tensor, source: str, batch_size: int
) -> Comparison:
    """Compare methods by the class that the model predicts for each image.

    Args:
        classifier: The model; probabilities are calibrated if it has a temperature.
        methods: Of :func:`compared_methods`.
        images: Normalised, (N, C, H, W), on the device of the model.
        source: Where the images are from, for people.
        batch_size: Images per forward pass.

    Raises:
        DataError: If there are fewer than 10 images.
    """
    if len(images) < FEWEST:
        raise DataError(f"faithfulness is compared on at least {FEWEST} images, there are {len(images)}")
    start = time.perf_counter()
    model, info = classifier.model, classifier.info

    def predict(batch: Tensor) -> Tensor:
        return info.probabilities(model(batch))  # B K

    with torch.no_grad():
        targets = torch.cat([info.calibrated(model(part)).argmax(1) for part in images.split(batch_size)])
    maps = {each.kind: _maps(each, model, images, targets, batch_size) for each in methods}
    rows = faithfulness_table(predict, images, targets, maps, groups=_groups(model), batch_size=batch_size)
    again: dict[str, Interval] = {}
    for each in methods:
        correlation = randomisation(
            lambda m, x, t, each=each: _maps(each, m, x, t, batch_size),  # type: ignore[misc]
            model,
            images[:_RANDOMISED],
            targets[:_RANDOMISED],
        )
        again[each.kind] = mean_interval(correlation)
    options = {each.kind: method_options(each) for each in methods}
    return Comparison(tuple(rows), again, source, time.perf_counter() - start, options)


def _maps(method: MapMethod, model: VisionTransformer, images: Tensor, targets: Tensor, batch_size: int) -> Tensor:
    """Return the maps of images, (N, h, w)."""
    parts = zip(images.split(batch_size), targets.split(batch_size), strict=True)
    return torch.cat([method(model, part, classes).values.float().cpu() for part, classes in parts])


def _groups(model: VisionTransformer) -> int:
    h, w = model.config.grid
    return min(_GROUPS, h * w)
