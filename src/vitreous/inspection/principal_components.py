"""Principal components of the rows of a matrix, with signs that do not depend on the solver.

Shapes: n rows, F columns, k components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vitreous.errors import ConfigError

__all__ = ["Floats", "PrincipalComponents", "principal_components"]

Floats = npt.NDArray[np.float64]
"""Numbers in float64."""


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """The directions of largest variance.

    Attributes:
        mean: The mean row, (F,).
        components: Orthonormal rows, largest variance first, (k, F). The entry of largest magnitude is positive.
        explained: Share of the total variance along each component, (k,), in [0, 1]; zeros if nothing varies.
    """

    mean: Floats
    components: Floats
    explained: Floats

    def project(self, rows: npt.ArrayLike) -> Floats:
        """Return the coordinates (n, k) of rows (n, F)."""
        return (np.asarray(rows, np.float64) - self.mean) @ self.components.T


def principal_components(rows: npt.ArrayLike, count: int) -> PrincipalComponents:
    """Return the first principal components of rows (n, F), computed in float64.

    Args:
        rows: The rows; their mean is subtracted.
        count: Number of components k, from 1 to min(n, F).

    Raises:
        ConfigError: If there are not that many components.
    """
    x = np.asarray(rows, np.float64)
    if not 1 <= count <= min(x.shape):
        raise ConfigError(
            f"{count} principal components of {x.shape[0]} rows of {x.shape[1]} numbers do not exist: "
            f"use 1 to {min(x.shape)}"
        )
    mean = x.mean(0)
    x = x - mean
    if x.shape[0] > x.shape[1]:  # the smaller of the two matrices of products is cheaper than an SVD of the rows
        variances, vectors = np.linalg.eigh(x.T @ x)
        components, spectrum = vectors.T[::-1][:count], np.maximum(variances[::-1], 0)
    else:
        _, singular, components = np.linalg.svd(x, full_matrices=False)
        components, spectrum = components[:count], np.square(singular)
    largest = np.take_along_axis(components, np.abs(components).argmax(1)[:, None], 1)  # (k, 1)
    total = spectrum.sum()
    explained = spectrum[:count] / total if total > 0 else np.zeros(count)
    return PrincipalComponents(mean, components * np.where(largest < 0, -1.0, 1.0), explained)
