"""How the outputs of a model with several labels become probabilities and labels. N images, K labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from vitreous.evaluate.trust.stored import Stored

__all__ = ["UNFITTED", "LabelRule"]

UNFITTED = 0.5
"""Threshold of a label before it is fitted."""


_NEVER = 1e-7  # probabilities nearer to 0 or 1 would have logits that float32 cannot hold


@dataclass(frozen=True)
class LabelRule(Stored):
    """A sigmoid and a threshold for each label; a model file stores it as `multilabel`.

    Label k of an image has the probability ``sigmoid(slopes[k] * logit[k] + offsets[k])``, and the image has the label
    if that is at least ``thresholds[k]``. A slope below 1 is a temperature above 1.

    Args:
        thresholds: In [0, 1], one for each label.
        slopes: Above 0.
        offsets: Added to the scaled logits.
    """

    thresholds: tuple[float, ...]
    slopes: tuple[float, ...]
    offsets: tuple[float, ...]

    def problems(self) -> Iterator[str]:
        """Yield what is out of range."""
        lengths = {len(self.thresholds), len(self.slopes), len(self.offsets)}
        if len(lengths) > 1 or 0 in lengths:
            yield "thresholds, slopes and offsets must be one for each label"
        if not all(0 <= value <= 1 for value in self.thresholds):
            yield "every threshold must be in [0, 1]"
        if not all(value > 0 for value in self.slopes):
            yield "every slope must be above 0"

    @classmethod
    def plain(cls, labels: int) -> Self:
        """Return the rule before anything is fitted."""
        return cls((UNFITTED,) * labels, (1.0,) * labels, (0.0,) * labels)

    @property
    def labels(self) -> int:
        """Number of labels K."""
        return len(self.thresholds)

    @property
    def calibration(self) -> str:
        """What was fitted to the logits: `none`, `temperature`, which all labels share, or `per label`."""
        if any(self.offsets) or len(set(self.slopes)) > 1:
            return "per label"
        return "none" if self.slopes[0] == 1 else "temperature"

    def without_thresholds(self) -> LabelRule:
        """Return the same probabilities with the thresholds of :meth:`plain`."""
        return LabelRule((UNFITTED,) * self.labels, self.slopes, self.offsets)

    def calibrated(self, logits: Tensor) -> Tensor:
        """Return the logits (..., K) after slope and offset, in their dtype; their sigmoid is the probability."""
        slopes, offsets = (torch.tensor(each, dtype=logits.dtype, device=logits.device) for each in self._linear)
        return logits * slopes + offsets

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each label, (..., K), of logits (..., K)."""
        return self.calibrated(logits).sigmoid()

    def uncalibrated(self, probabilities: Tensor) -> Tensor:
        """Return the logits (..., K) that have these probabilities."""
        slopes, offsets = (torch.tensor(each, dtype=probabilities.dtype) for each in self._linear)
        device = probabilities.device
        return (probabilities.logit(_NEVER) - offsets.to(device)) / slopes.to(device)

    def present(self, logits: Tensor) -> Tensor:
        """Return which labels images with logits (..., K) have, bool (..., K), computed in float64."""
        probabilities = self.probabilities(logits.double())
        return probabilities >= torch.tensor(self.thresholds, dtype=torch.float64, device=logits.device)

    @property
    def _linear(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.slopes, self.offsets
