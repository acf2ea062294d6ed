"""Principal components of the patch projection E (figure 7, left, of arXiv 2010.11929).

Shapes: D width, C channels, P_h x P_w pixels of a patch, k components.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitreous.errors import ConfigError
from vitreous.inspection.principal_components import Floats, principal_components

__all__ = ["FILTERS", "Filters", "patch_filters"]

FILTERS = 28
"""Number of components in the paper's figure."""


@dataclass(frozen=True, eq=False)
class Filters:
    """The directions in which the D kernels of the patch projection differ most.

    Attributes:
        images: Components with norm 1, largest variance first, (k, P_h, P_w, C). The value of largest magnitude is
            positive. Values are weights, not colours; a figure scales each to its own range.
        explained: Share of the variance of the kernels along each component, (k,), in [0, 1].
    """

    images: Floats
    explained: Floats

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"images": self.images.tolist(), "explained": self.explained.tolist()}


def patch_filters(model: Any, count: int = FILTERS) -> Filters:
    """Return the principal components of the kernels of the patch projection.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast.
        count: Number of components k, at least 1. There are at most min(D, C P_h P_w).

    Raises:
        ConfigError: If the stem has several layers, so that no single kernel projects patches; or count is below 1.
    """
    stem = model.config.stem
    if not stem.has_patch_kernel:
        raise ConfigError(
            f"stem {stem.kind} has no patch kernel: several layers make its tokens. Filters need stem patch or linear"
        )
    kernels = model.patch_embed.proj.weight.detach().double().cpu()  # (D, C, P_h, P_w)
    rows = kernels.permute(0, 2, 3, 1).flatten(1).numpy()  # (D, P_h P_w C)
    found = principal_components(rows, min(count, *rows.shape))
    ph, pw, channels = kernels.shape[2], kernels.shape[3], kernels.shape[1]
    return Filters(found.components.reshape(-1, ph, pw, channels), found.explained)
