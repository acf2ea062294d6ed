"""How similar the representations of two depths are: linear CKA (arXiv 1905.00414).

Centred kernel alignment is HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y)), where HSIC compares the matrices of inner products
X Xᵀ and Y Yᵀ. The estimator of HSIC is unbiased (Song et al., Feature Selection via Dependence Maximization, 2012), and
averaged over parts of the images (arXiv 2010.15327, equations 2 and 3), so memory does not grow with their number.

Shapes: n images, m images of a part, F and G features, J and K stacks of features, L blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.inspection.layer_features import Token, layer_features
from vitreous.inspection.passes import BATCH_SIZE, Images
from vitreous.inspection.principal_components import Floats

__all__ = ["PART", "LayerSimilarity", "layer_similarity", "linear_cka"]

PART = 256
"""Images of a part, over which HSIC is averaged."""

_MIN_IMAGES = 4  # of the unbiased estimator, which divides by n - 3


@dataclass(frozen=True, eq=False)
class LayerSimilarity:
    """Linear CKA between all depths of one model, or between those of two.

    Attributes:
        patches: Similarity of the mean patch tokens of two depths, (L + 1, L' + 1). Depth 0 is the input of the first
            block. 1 is equality up to rotation and scale, and 0 is what unrelated features have on average; single
            values may be slightly negative. NaN where features do not vary at all.
        class_token: Likewise of the class token; None if a model has none.
        images: Number of images.
    """

    patches: Floats
    class_token: Floats | None
    images: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with None for NaN."""
        return {
            "patches": _plain(self.patches),
            "class_token": None if self.class_token is None else _plain(self.class_token),
            "images": self.images,
        }


def layer_similarity(
    model: Any, images: Images, other: Any | None = None, batch_size: int = BATCH_SIZE, part: int = PART
) -> LayerSimilarity:
    """Measure the similarity of all depths of a model, or of the depths of two models on the same images.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (n, C, H, W), or a list of batches, with n of at least 4.
        other: A second model, whose depths are the columns. None: the same model.
        batch_size: Images per pass. The result does not depend on it.
        part: As in :func:`linear_cka`.

    Raises:
        ConfigError: If a model is in training mode or merges tokens, or the images do not fit.
        DataError: If there are fewer than 4 images.
    """
    images = images if isinstance(images, Tensor) or other is None else list(images)
    rows = layer_features(model, images, batch_size)
    columns = rows if other is None else layer_features(other, images, batch_size)

    def compare(token: Token) -> Floats:
        return linear_cka(rows.of(token), columns.of(token), part)

    both = rows.class_token is not None and columns.class_token is not None
    return LayerSimilarity(compare("patches"), compare("class") if both else None, rows.mean_patch.shape[1])


def linear_cka(x: npt.ArrayLike, y: npt.ArrayLike, part: int = PART) -> Floats:
    """Return the linear CKA of every x with every y, (J, K), in float64.

    Args:
        x: Features of the same images, (J, n, F), with n of at least 4.
        y: Likewise, (K, n, G).
        part: Images over which HSIC is computed at once, at least 4; HSIC is averaged over parts of this size, and a
            remainder joins the last. It sets the memory, (J + K) part² numbers, and hardly changes the result.

    Raises:
        ConfigError: If the part is too small.
        DataError: If there are too few images, or their numbers differ.
    """
    first, second = np.asarray(x), np.asarray(y)
    n, same = first.shape[1], x is y
    if part < _MIN_IMAGES:
        raise ConfigError(f"part is {part} images, it must be at least {_MIN_IMAGES}")
    if n != second.shape[1] or n < _MIN_IMAGES:
        raise DataError(f"CKA compares features of the same images, at least {_MIN_IMAGES}: {n} and {second.shape[1]}")
    cross = np.zeros((len(first), len(second)))
    own_x, own_y = np.zeros(len(first)), np.zeros(len(second))
    for rows in _parts(n, part):
        of_x = _kernels(first[:, rows])
        of_y = of_x if same else _kernels(second[:, rows])
        weight = (rows.stop - rows.start) / n
        cross += weight * _hsic(of_x, of_y)
        own_x += weight * of_x.own_hsic()
        own_y += weight * of_y.own_hsic()
    with np.errstate(invalid="ignore", divide="ignore"):
        return cross / np.sqrt(np.outer(np.where(own_x > 0, own_x, np.nan), np.where(own_y > 0, own_y, np.nan)))


def _parts(n: int, part: int) -> Iterator[slice]:
    """Yield slices of the images of ``part`` each; the last has the remainder too."""
    count = max(1, n // part)
    for index in range(count):
        yield slice(index * part, n if index == count - 1 else (index + 1) * part)


class _Kernels(NamedTuple):
    """Inner products of the features of m images without their diagonal."""

    entries: Floats  # (J, m²)
    row_sums: Floats  # (J, m)

    def own_hsic(self) -> Floats:
        """Return the unbiased HSIC of each kernel with itself, (J,)."""
        each = (_Kernels(e[None], r[None]) for e, r in zip(self.entries, self.row_sums, strict=True))
        return np.array([_hsic(kernel, kernel)[0, 0] for kernel in each])


def _kernels(features: npt.NDArray[Any]) -> _Kernels:
    """Return the kernels of features (J, m, F).

    Subtracting the mean of the features changes no HSIC, but keeps digits where the mean is large.
    """
    z = features.astype(np.float64)
    z -= z.mean(1, keepdims=True)
    kernels = z @ z.transpose(0, 2, 1)  # (J, m, m)
    diagonal = np.arange(z.shape[1])
    kernels[:, diagonal, diagonal] = 0
    return _Kernels(kernels.reshape(len(z), -1), kernels.sum(2))


def _hsic(first: _Kernels, second: _Kernels) -> Floats:
    """Return the unbiased HSIC of every pair of J and K kernels, (J, K)."""
    m = first.row_sums.shape[1]
    totals = np.outer(first.row_sums.sum(1), second.row_sums.sum(1)) / ((m - 1) * (m - 2))
    products = first.entries @ second.entries.T - 2 / (m - 2) * (first.row_sums @ second.row_sums.T)
    return (products + totals) / (m * (m - 3))


def _plain(values: Floats) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in values]
