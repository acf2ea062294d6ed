"""Features with their labels, checked: what every probe takes in. n pictures, D features, K classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vitreous.errors import DataError, NonFiniteError

__all__ = ["Labelled", "accuracy", "labelled"]


class Labelled(NamedTuple):
    """Features and labels that fit each other; made by :func:`labelled`.

    Attributes:
        features: (n, D) float32, finite.
        labels: (n,) int64 in [0, K).
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def chosen(self, rows: npt.NDArray[np.int64]) -> Labelled:
        """Return the pictures of these rows."""
        return Labelled(self.features[rows], self.labels[rows])


def labelled(features: npt.ArrayLike, labels: npt.ArrayLike, name: str) -> Labelled:
    """Check features and labels.

    Args:
        features: (n, D) numbers; n, D >= 1.
        labels: (n,) classes, whole numbers of at least 0.
        name: What to call them in errors, such as ``train``.

    Raises:
        DataError: If the shapes do not fit, there is no picture or feature, or a label is no class.
        NonFiniteError: If a feature is NaN or infinite.
    """
    x: npt.NDArray[Any] = np.asarray(features)
    y: npt.NDArray[Any] = np.asarray(labels)
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise DataError(f"{name} features {x.shape} and labels {y.shape} do not fit: they must be (n, D) and (n,)")
    if not x.size:
        raise DataError(f"{name} features are empty, {x.shape}: a probe needs at least one picture and one feature")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise DataError(f"{name} labels must be whole numbers of at least 0, the positions of the classes")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and reported so
        x = np.ascontiguousarray(x, dtype=np.float32)
    broken = int((~np.isfinite(x)).any(axis=1).sum())
    if broken:
        raise NonFiniteError(
            f"the {name} features of {broken:,} of {len(x):,} pictures are NaN or infinite: "
            "the model's weights are broken, or it computes in too low a precision"
        )
    return Labelled(x, y.astype(np.int64))


def accuracy(predicted: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> float:
    """Return the share of right predictions (n,), in [0, 1]."""
    return float((predicted == labels).mean())
