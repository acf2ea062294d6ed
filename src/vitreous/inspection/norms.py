"""Norms of tokens after every block, and tokens whose norm is an outlier (arXiv 2309.16588).

Shapes: n images, (h, w) patches down and across, N = h w patches, P prefix tokens ([CLS] and registers), T = P + N
tokens, L blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.errors import ConfigError
from vitreous.inspection.passes import BATCH_SIZE, Images, passes
from vitreous.inspection.principal_components import Floats

__all__ = ["RATIO", "SPREADS", "Outliers", "TokenNorms", "token_norms"]

SPREADS = 6.0
"""Robust standard deviations above the median of the log norms."""

RATIO = 3.0
"""Multiple of the median norm."""

_MAD_TO_SD = 1.4826  # of a normal distribution
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class Outliers:
    """Patch tokens whose norm is far above that of the others.

    Attributes:
        mask: Which patches are outliers, (L, n, N), in raster order.
        threshold: The norm that outliers exceed, (L,).
        share: Share of the patches that are outliers, (L,), in [0, 1].
    """

    mask: npt.NDArray[np.bool_]
    threshold: Floats
    share: Floats

    @property
    def any(self) -> bool:
        """Whether there is an outlier after any block."""
        return bool(self.mask.any())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. An outlier is (block, image, patch)."""
        return {
            "outliers": np.argwhere(self.mask).tolist(),
            "threshold": self.threshold.tolist(),
            "share": self.share.tolist(),
        }


@dataclass(frozen=True, eq=False)
class TokenNorms:
    """Euclidean norms of the tokens after every block. Those of the last block are not normalised yet.

    Attributes:
        norms: (L, n, T): [CLS], registers, then patches in raster order.
        grid: Patches down and across, (h, w).
        prefix_tokens: Leading tokens that are no patches (P).
    """

    norms: Floats
    grid: tuple[int, int]
    prefix_tokens: int

    @property
    def patches(self) -> Floats:
        """Norms of the patches, (L, n, N)."""
        return self.norms[:, :, self.prefix_tokens :]

    def outliers(self, spreads: float = SPREADS, ratio: float = RATIO) -> Outliers:
        """Find outliers among the patches of all images, separately after each block.

        A patch is an outlier if both rules hold. Its log norm lies more than ``spreads`` robust standard deviations
        above the median, which adapts to how much norms vary. And its norm exceeds ``ratio`` times the median, since in
        a layer where all norms are nearly equal even a tiny excess is many deviations. The robust standard deviation is
        1.4826 times the median absolute deviation (MAD). Neither the median nor the MAD moves much while outliers are a
        few per cent, as in arXiv 2309.16588.

        Args:
            spreads: Robust standard deviations, above 0.
            ratio: Multiple of the median norm, above 1.

        Raises:
            ConfigError: If a value is out of range.
        """
        if not spreads > 0 or not ratio > 1:
            raise ConfigError(f"spreads is {spreads} and ratio {ratio}: they must be above 0 and above 1")
        log = np.log(np.maximum(self.patches, _TINY))
        median = np.median(log, axis=(1, 2), keepdims=True)  # (L, 1, 1)
        spread = _MAD_TO_SD * np.median(np.abs(log - median), axis=(1, 2), keepdims=True)
        threshold = median + np.maximum(spreads * spread, np.log(ratio))
        mask = log > threshold
        return Outliers(mask, np.exp(threshold[:, 0, 0]), mask.mean((1, 2)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"norms": self.norms.tolist(), "grid": list(self.grid), "prefix_tokens": self.prefix_tokens}


def token_norms(model: Any, images: Images, batch_size: int = BATCH_SIZE) -> TokenNorms:
    """Measure the norm of every token after every block, before the final norm.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (n, C, H, W), or batches of them.
        batch_size: Images per pass. The result does not depend on it.

    Raises:
        ConfigError: If the model is in training mode or merges tokens, or the images do not fit.
        DataError: If there are no images.
    """
    found: list[npt.NDArray[np.float64]] = []
    for values in passes(model, images, batch_size):
        found.append(np.stack([layer.after.double().norm(dim=-1).cpu().numpy() for layer in values.layers]))
        grid, prefix = values.grid, values.prefix_tokens
    return TokenNorms(np.concatenate(found, 1), grid, prefix)
