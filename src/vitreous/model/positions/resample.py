"""Learned positions at another resolution (section 3.2), as each library resizes them."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import ConfigError

__all__ = ["Resample", "resample"]

Resample = Literal["google", "timm", "huggingface", "torchvision", "dinov2"]


def resample(table: Tensor, old: tuple[int, int], new: tuple[int, int], method: str) -> Tensor:
    """Resize learned patch positions to another grid, as the named library does.

    Args:
        table: Patch positions in raster order, 1 x (h w) x D, without prefix tokens.
        old: The grid (h, w) of the table.
        new: The grid (h', w') of the result.
        method: `google`: bilinear, corners aligned (scipy.ndimage.zoom of order 1 in the paper's code). `timm`:
            bicubic, antialiased. `huggingface`: bicubic. `torchvision`: bicubic, corners aligned. `dinov2`: bicubic,
            with 0.1 added to the new size before the scale is taken, as in its code.

    Returns:
        1 x (h' w') x D, in the table's dtype.

    Raises:
        ConfigError: If the method is unknown.
    """
    if old == new:
        return table
    # Interpolate in float32 at least: bfloat16 would round at every tap.
    grid = table.to(torch.promote_types(table.dtype, torch.float32)).unflatten(1, old).permute(0, 3, 1, 2)  # 1 D h w
    if method == "google":
        grid = F.interpolate(grid, new, mode="bilinear", align_corners=True)
    elif method == "timm":
        grid = F.interpolate(grid, new, mode="bicubic", antialias=True)
    elif method == "huggingface":
        grid = F.interpolate(grid, new, mode="bicubic")
    elif method == "torchvision":
        grid = F.interpolate(grid, new, mode="bicubic", align_corners=True)
    elif method == "dinov2":
        scale = tuple((n + 0.1) / o for n, o in zip(new, old, strict=True))
        grid = F.interpolate(grid, scale_factor=scale, mode="bicubic")
    else:
        raise ConfigError(f"resample '{method}' is unknown: use google, timm, huggingface, torchvision or dinov2")
    return grid.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)
