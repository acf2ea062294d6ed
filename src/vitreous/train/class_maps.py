"""The class maps of the images in a run's report, and the part of a budget that they may take."""

from __future__ import annotations

import contextlib
import copy
import math
import time

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.sources.opening import Split
from vitreous.errors import ConfigError, VitreousError
from vitreous.inspection.explain import ModelInMemory, explain
from vitreous.inspection.explanation import Explanation
from vitreous.model.vit import VisionTransformer
from vitreous.report.evaluation.thumbnails import ClassMap
from vitreous.train.finetune.trainable import merge_adapters
from vitreous.train.setup import Setup, one_thread_if_tiny

__all__ = ["class_map", "class_map_seconds"]

_MAPS = 72  # most images with a map: three sheets of 24
_MARGIN = 1.5  # time reserved over the estimate; where it is too short, the report has fewer maps
_SHARE = 0.05  # of a budget that maps may take


def class_map(model: VisionTransformer, info: ModelInfo, split: Split, seconds: float = math.inf) -> ClassMap:
    """Return the maps of a split's images; so many seconds after the first one it raises ConfigError."""
    model = merge_adapters(model).eval()
    trained = ModelInMemory(model, info, next(model.parameters()).device)
    ends: float | None = None

    def mapped(n: int, label: int) -> Explanation:
        nonlocal ends
        ends = time.monotonic() + seconds if ends is None else ends
        if time.monotonic() >= ends:
            raise ConfigError(
                "the budget leaves no time for more; `vitreous evaluate` with --report on this model shows all"
            )
        return explain(trained, split.image(n), label)

    return mapped


def class_map_seconds(setup: Setup, budget: float = math.inf) -> float:
    """Estimate the seconds that the maps of a report take on this machine, at most a twentieth of the budget.

    Computes one map with the untrained model twice: first to import what it needs, then to measure.
    """
    info, took = ModelInfo(setup.data.classes, setup.pipeline), 0.0
    # Suppressed: a model without maps, or an unreadable image, which the run reports when it needs it.
    with one_thread_if_tiny(setup), contextlib.suppress(VitreousError):
        mapped = class_map(copy.deepcopy(setup.model), info, setup.data.splits["val"])
        for _ in range(2):
            started = time.monotonic()
            mapped(0, 0)
            took = time.monotonic() - started
    return min(_MARGIN * took * min(_MAPS, 3 * len(setup.data.splits["val"])), _SHARE * budget)
