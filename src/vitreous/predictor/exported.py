"""A classifier whose outputs an exported graph computes, with the interface of one made from a model file.

The evaluation pipeline resizes images by Pillow, as in training; the graph finds nothing left to resize. That gives the
result of the whole image in the graph wherever the graph's resize is exact, and there nothing else is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.engines.base import Engine
from vitreous.engines.names import EngineName, Precision
from vitreous.errors import CheckpointError, ConfigError
from vitreous.export.reading import ExportedFile
from vitreous.predictor.classifier import Classifier, Floats

__all__ = ["ExportedClassifier"]


@dataclass(frozen=True)
class _Graph:
    """What computes, for those who report it."""

    name: str
    precision: Precision

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse: the graph takes pixels, not normalised images."""
        raise ConfigError("an exported graph takes pixels, not normalised images")


class ExportedClassifier(Classifier):
    """A classifier opened from a .onnx, .xml or .pt2 file of `vitreous export`; made by :func:`vitreous.load`."""

    def __init__(self, exported: ExportedFile, *, ignore_thresholds: bool = False) -> None:
        self.device = torch.device("cpu")
        self.exported = exported
        self.info = exported.info.without_thresholds() if ignore_thresholds else exported.info
        self.tta = False
        self.engine = cast(EngineName, exported.engine)
        self._num_computed = 0
        self._features: int | None = None

    @property
    def model(self) -> Any:  # type: ignore[override]
        """An exported file has no model to look into.

        Raises:
            ConfigError: Always; it names the remedy.
        """
        raise ConfigError(
            f"'{self.exported.file}' is an exported graph, without weights and gradients to look into: "
            "give the model file that it was made from"
        )

    @property
    def features(self) -> int:
        """Length F of an embedding."""
        if self._features is None:
            height, width = self.pipeline.size
            blank = np.zeros((1, height, width, self.pipeline.channels), np.uint8)
            self._features = self.exported.run_prepared(blank)["features"].shape[1]
        return self._features

    def prepare(self, num_images: int, batch_size: int = 32) -> Engine:
        """Return the runtime's name and precision; the graph is open already."""
        return _Graph(self.exported.engine, cast(Precision, self.exported.precision))

    def _run(self, engine: Engine, pixels: npt.NDArray[np.uint8], select: Callable[[Tensor, Tensor], Tensor]) -> Floats:
        """Compute a row per image for pixels (B, H, W, C)."""
        found = self.exported.run_prepared(pixels)
        features = torch.from_numpy(found["features"])  # B F
        logits = torch.from_numpy(found["logits"]) if "logits" in found else features  # B K
        if logits.shape != (len(pixels), len(self.classes) or features.shape[1]):
            expected = (len(pixels), len(self.classes))
            raise CheckpointError(f"'{self.exported.file}' gives logits {tuple(logits.shape)}, expected {expected}")
        rows: Floats = select(logits, features).float().numpy()
        if not np.isfinite(rows).all():
            raise CheckpointError(f"the outputs of '{self.exported.file}' are not finite: export the model again")
        return rows
