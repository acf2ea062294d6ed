"""Resizes learned positions for another image size (section 3.2), as each of several libraries does it.

Shapes: (h, w) patches down and across, D width; a prime marks the new grid.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import ConfigError

__all__ = ["Resample", "resample"]

Resample = Literal["google", "timm", "huggingface", "torchvision", "dinov2", "siglip2"]
"""The libraries whose interpolation of position embeddings can be matched."""


def resample(table: Tensor, old: tuple[int, int], new: tuple[int, int], method: str) -> Tensor:
    """Resize learned patch positions to another grid.

    Args:
        table: Patch positions in raster order, (1, h w, D), without prefix tokens.
        old: The grid (h, w) of the table.
        new: The grid (h', w') of the result.
        method: The library whose interpolation to use. `google`: bilinear with aligned corners (the paper's code calls
            scipy.ndimage.zoom with order 1). `timm`: bicubic with antialiasing. `huggingface`: bicubic. `torchvision`:
            bicubic with aligned corners. `dinov2`: bicubic; its code adds 0.1 to the new size when it computes the
            scale. `siglip2`: bilinear with antialiasing.

    Returns:
        The resized positions, (1, h' w', D), in the dtype of the table.

    Raises:
        ConfigError: If the method is unknown.
    """
    if old == new:
        return table
    # Interpolate in float32 or better, because bfloat16 would round every product.
    grid = table.to(torch.promote_types(table.dtype, torch.float32))
    grid = grid.unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, h, w)
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
    elif method == "siglip2":
        grid = F.interpolate(grid, new, mode="bilinear", antialias=True)
    else:
        raise ConfigError(f"resample '{method}' is unknown: use {', '.join(get_args(Resample))}")
    return grid.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)
