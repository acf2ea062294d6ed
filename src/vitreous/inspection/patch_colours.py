"""Patch features as colours: their first three principal components as red, green and blue (arXiv 2304.07193, fig. 1).

Shapes: n images, (h, w) patches down and across, N = h w patches, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.errors import ConfigError
from vitreous.inspection.passes import BATCH_SIZE, Images, passes
from vitreous.inspection.principal_components import Floats, principal_components

__all__ = ["PatchColours", "patch_colours", "patch_features"]

COLOURS = 3


@dataclass(frozen=True, eq=False)
class PatchColours:
    """Colours of the patches of several images. Equal colours mean similar features, also across images.

    Attributes:
        colours: Red, green and blue in [0, 1], (n, h, w, 3). Each spans its whole range over all images together;
            background is black.
        foreground: Which patches the colours were computed from, (n, h, w).
        explained: Share of the variance of these patches along each colour, (3,), in [0, 1].
    """

    colours: Floats
    foreground: npt.NDArray[np.bool_]
    explained: Floats

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name).tolist() for name in ("colours", "foreground", "explained")}


def patch_colours(
    model: Any,
    images: Images,
    *,
    layer: int | None = None,
    foreground: bool = False,
    threshold: float = 0.5,
    batch_size: int = BATCH_SIZE,
) -> PatchColours:
    """Colour the patches of one image, or of several jointly.

    With ``foreground``, there are two steps, as in DINOv2: the first component of all patches separates foreground from
    background, and the components of the foreground alone become colours. The paper chooses the side by eye. Here
    foreground is the side that has the smaller share of the patches at the border of the images.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (n, C, H, W), or batches of them.
        layer: Number of the block after which features are taken, from 0; negative ones count from the end. None: after
            the final norm.
        foreground: Whether to separate the background first.
        threshold: Where the first component is cut, as a fraction of its range over all patches, in (0, 1).
        batch_size: Images per pass. The result does not depend on it.

    Raises:
        ConfigError: If the threshold is out of range, the layer does not exist, the model is in training mode or has a
            width below 3, or fewer than 3 patches are left to colour.
        DataError: If there are no images.
    """
    if not 0 < threshold < 1:
        raise ConfigError(f"threshold is {threshold}, it must be between 0 and 1")
    features, (h, w) = patch_features(model, images, layer=layer, batch_size=batch_size)  # (n, N, D)
    n, N, _ = features.shape
    rows = features.reshape(n * N, -1).astype(np.float64)
    chosen = np.ones(n * N, np.bool_)
    if foreground:
        first = principal_components(rows, 1).project(rows)[:, 0]
        high = first > first.min() + threshold * np.ptp(first)
        chosen = _foreground(high.reshape(n, h, w)).ravel()
    if min(chosen.sum(), rows.shape[1]) < COLOURS:
        raise ConfigError(
            f"{chosen.sum()} patches of width {rows.shape[1]} are left to colour, {COLOURS} are needed: "
            "use another threshold, more images, or no foreground"
        )
    found = principal_components(rows[chosen], COLOURS)
    values = found.project(rows[chosen])
    low, span = values.min(0), np.ptp(values, axis=0)
    colours = np.zeros((n * N, COLOURS))
    colours[chosen] = (values - low) / np.where(span > 0, span, 1)
    return PatchColours(colours.reshape(n, h, w, COLOURS), chosen.reshape(n, h, w), found.explained)


def patch_features(
    model: Any, images: Images, *, layer: int | None = None, batch_size: int = BATCH_SIZE
) -> tuple[npt.NDArray[np.float32], tuple[int, int]]:
    """Return the patch tokens of images, (n, N, D) in float32 and raster order, and the grid (h, w).

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (n, C, H, W), or batches of them.
        layer: Number of a block, whose output is returned; None: after the final norm.
        batch_size: Images per pass.

    Raises:
        ConfigError: If the layer does not exist, or the model is in training mode or merges tokens.
        DataError: If there are no images.
    """
    found = []
    for values in passes(model, images, batch_size, layers=[] if layer is None else [layer]):
        tokens = values.tokens if layer is None else values.layers[0].after
        found.append(tokens[:, values.prefix_tokens :].float().cpu().numpy())
        grid = values.grid
    return np.concatenate(found), grid


def _foreground(high: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which patches (n, h, w) are foreground: those above the cut or those below."""
    border = np.ones(high.shape[1:], np.bool_)
    border[1:-1, 1:-1] = False
    return ~high if high[:, border].mean() > 0.5 else high
