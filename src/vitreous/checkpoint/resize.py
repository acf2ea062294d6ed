"""Adapts a model to another image or patch size: position embeddings and the patch kernel are resampled once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.checkpoint.adapters.common import State
from vitreous.checkpoint.adapters.shapes import plain_size
from vitreous.errors import ConfigError
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.positions.resample import Resample

__all__ = ["Resample", "resample_patch_kernel", "resize_model"]


def resize_model(
    config: ViTConfig, state: State, image_size: Size2d | None, patch_size: Size2d | None, method: Resample | None
) -> tuple[ViTConfig, State, dict[str, Any]]:
    """Return the configuration and tensors at another size, and a record of what was resampled for the provenance.

    Sizes are in pixels (height, width); None keeps the current one. `method` is the library whose interpolation resizes
    positions, and is stored in the configuration; None keeps the configured one. The given tensors are not changed.
    """
    if patch_size is not None and not config.stem.has_patch_kernel and pair(patch_size) != pair(config.patch_size):
        raise ConfigError(f"a {config.stem.kind} stem has no single patch kernel to resize: patch_size cannot change")
    new = replace(
        config,
        image_size=plain_size(pair(image_size or config.image_size)),
        patch_size=plain_size(pair(patch_size or config.patch_size)),
    )
    if method:
        if not (hasattr(new.position, "resample") and new.position.has_embedding):
            raise ConfigError(f"position {new.position.kind} has nothing to resample: leave --resample out")
        new = new.with_options({"position": {"resample": method}})
    state = dict(state)
    record: dict[str, Any] = {}
    if new.grid != config.grid:
        state |= new.position.resized(state, config, new)
        method = getattr(new.position, "resample", None) if new.position.has_embedding else None
        record["positions"] = {"from": list(config.grid), "to": list(new.grid), "method": method or new.position.kind}
    if pair(new.patch_size) != pair(config.patch_size):
        kernel = state["patch_embed.proj.weight"]
        state["patch_embed.proj.weight"] = resample_patch_kernel(kernel, pair(new.patch_size))
        record["patches"] = {"from": list(pair(config.patch_size)), "to": list(pair(new.patch_size))}
    return new, state, record


def resample_patch_kernel(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a patch kernel D x C x h x w to h' x w' so that equally resized patches give nearly the same tokens.

    FlexiViT's pseudo-inverse resize (arXiv 2212.08013, section 3.4) with timm's antialiased bicubic interpolation,
    computed in float64.
    """
    height, width = kernel.shape[2:]
    if (height, width) == size:
        return kernel
    basis = torch.eye(height * width, dtype=torch.float64).view(-1, 1, height, width)
    matrix = F.interpolate(basis, size, mode="bicubic", antialias=True, align_corners=False).flatten(
        1
    )  # (h * w, h' * w')
    inverse = torch.linalg.pinv(matrix)  # (h' * w', h * w)
    flat = kernel.to(torch.float64).flatten(2) @ inverse.t()  # (D, C, h' * w')
    return flat.unflatten(2, size).to(kernel.dtype)
