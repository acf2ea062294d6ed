"""Contents of a model file other than the weights and the model's configuration.

:mod:`vitreous.checkpoint.model_file` writes and reads them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.evaluate.trust.abstention import AbstentionRule
from vitreous.evaluate.trust.conformal import ConformalSets

__all__ = ["FORMAT_VERSION", "NEWEST_VERSION", "ModelInfo"]

FORMAT_VERSION = 2
"""Of the files that are written. Version 1, whose model configuration was flat, is read too."""
MULTILABEL_VERSION = 3
"""Of files of models with several labels, to which older versions of this package would apply a softmax."""
NEWEST_VERSION = MULTILABEL_VERSION
"""The newest version of the model file's metadata that this package reads."""

_SHOWN = 5  # class names that an error lists
# Lone surrogates, without those by which os.fsdecode represents bytes that are not UTF-8.
_LONE_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


@dataclass(frozen=True)
class ModelInfo:
    """Contents of a model file other than the weights and the model's configuration.

    Args:
        classes: Class names, in the order of the logits.
        pipeline: Turns an image into the model's input.
        temperature: Divides the logits before the softmax; above 0, and 1 without calibration.
        provenance: Origin of the model: recipe, data fingerprint, seed, versions, date, machine.
        scores: Metrics by split. Non-finite numbers are stored as null.
        format_version: Version of the file format.
        abstention: Marks a prediction as unsure; None without `vitreous calibrate --precision`.
        conformal: Gives sets of classes; None without `vitreous calibrate --coverage`.
        multilabel: Gives an image several labels or none, by a sigmoid and a threshold for each; None for a softmax,
            which gives it one class. With it, temperature, abstention and conformal have no meaning.

    Raises:
        ConfigError: If a class name occurs twice or is not valid text, the temperature is not above 0, or the sets or
            labels are those of another number of classes.
    """

    classes: tuple[str, ...]
    pipeline: EvalPipeline
    temperature: float = 1.0
    provenance: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    abstention: AbstentionRule | None = None
    conformal: ConformalSets | None = None
    multilabel: LabelRule | None = None

    def __post_init__(self) -> None:
        """Check class names, temperature and the number of classes of the sets."""
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(set(self.classes)) != len(self.classes):
            twice = sorted(name for name, count in Counter(self.classes).items() if count > 1)
            raise ConfigError(f"class names must be unique, these occur twice: {', '.join(twice[:_SHOWN])}")
        if (invalid := next((name for name in self.classes if _LONE_SURROGATE.search(name)), None)) is not None:
            raise ConfigError(f"the class name {invalid!a:.100} is not valid text: it has a lone UTF-16 surrogate")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(f"temperature is {self.temperature}, it must be above 0")
        if self.conformal is not None and self.conformal.classes != len(self.classes):
            raise ConfigError(f"conformal.classes is {self.conformal.classes}, the model has {len(self.classes)}")
        if self.multilabel is None:
            return
        if self.multilabel.labels != len(self.classes):
            raise ConfigError(f"multilabel is for {self.multilabel.labels} labels, the model has {len(self.classes)}")
        if self.temperature != 1 or self.abstention is not None or self.conformal is not None:
            raise ConfigError(
                "a model with several labels has slopes and thresholds, not a temperature, abstention or sets"
            )
        object.__setattr__(self, "format_version", MULTILABEL_VERSION)

    def without_thresholds(self) -> ModelInfo:
        """Return the same without thresholds, whose promises hold only for the model that they were fitted on."""
        multilabel = None if self.multilabel is None else self.multilabel.without_thresholds()
        return dataclasses.replace(self, abstention=None, conformal=None, multilabel=multilabel)

    def require_one_class(self, what: str) -> None:
        """Raise ConfigError if the model gives several labels, for work that needs one class; ``what`` names it."""
        if self.multilabel is not None:
            raise ConfigError(
                f"{what} needs a model that gives each image one class, and this one gives several labels or none"
            )

    def calibrated(self, logits: Tensor) -> Tensor:
        """Return logits (..., K) after temperature, or after slopes and offsets."""
        return logits / self.temperature if self.multilabel is None else self.multilabel.calibrated(logits)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities (..., K) of logits (..., K): they sum to 1 unless an image has several labels."""
        calibrated = self.calibrated(logits)
        return calibrated.softmax(-1) if self.multilabel is None else calibrated.sigmoid()
