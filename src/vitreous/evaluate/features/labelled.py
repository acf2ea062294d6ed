"""Checked features and labels, the input of every probe. n images, D features, K classes or labels.

Labels (n,) are the one class of each image; labels (n, K) of 0 and 1 are several of an image, or none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vitreous.errors import DataError, NonFiniteError

__all__ = ["Labelled", "accuracy", "labelled"]


class Labelled(NamedTuple):
    """Features and labels of the same images, checked by :func:`labelled`."""

    features: npt.NDArray[np.float32]  # (n, D) float32, finite
    labels: npt.NDArray[np.int64]  # (n,) int64 in [0, K), or (n, K) of 0 and 1

    @property
    def several(self) -> bool:
        """Whether an image may have several labels."""
        return self.labels.ndim == 2

    def subset(self, rows: npt.NDArray[np.int64]) -> Labelled:
        """Return the given rows."""
        return Labelled(self.features[rows], self.labels[rows])


def labelled(features: npt.ArrayLike, labels: npt.ArrayLike, name: str) -> Labelled:
    """Check features (n, D) and labels (n,) or (n, K), n, D >= 1, and convert them; errors call them `name`."""
    x: npt.NDArray[Any] = np.asarray(features)
    y: npt.NDArray[Any] = np.asarray(labels)
    if x.ndim != 2 or y.ndim not in (1, 2) or len(x) != len(y):
        raise DataError(
            f"{name} features {x.shape} and labels {y.shape} do not match: they must be (n, D) and (n,) or (n, K)"
        )
    if not x.size:
        raise DataError(f"{name} features are empty, {x.shape}: a probe needs at least one image and one feature")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise DataError(f"{name} labels must be class indices: integers of at least 0")
    if y.ndim == 2 and y.max() > 1:
        raise DataError(f"{name} labels must be 0 or 1 for each image and label")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are reported below
        x = np.ascontiguousarray(x, dtype=np.float32)
    if invalid := int((~np.isfinite(x)).any(axis=1).sum()):
        raise NonFiniteError(
            f"the {name} features of {invalid:,} of {len(x):,} images are NaN or infinite: "
            "the model's weights are corrupt, or its precision is too low"
        )
    return Labelled(x, y.astype(np.int64))


def accuracy(predicted: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> float:
    """Return the share of correct predictions (n,), in [0, 1]."""
    return float((predicted == labels).mean())
