"""A model for another picture or patch size: positions and the patch kernel are resampled once, and it is recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.checkpoint.adapters.common import State
from vitreous.errors import ConfigError
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.embeddings import resample

Resample = Literal["google", "timm", "huggingface", "torchvision", "dinov2"]

__all__ = ["resample_patch_kernel", "resized"]


def resized(
    config: ViTConfig, state: State, image_size: Size2d | None, patch_size: Size2d | None, method: Resample | None
) -> tuple[ViTConfig, State, dict[str, Any]]:
    """Return configuration and tensors for another size, and what was done, for the model's provenance.

    Args:
        config: Of the model as it is.
        state: Its tensors.
        image_size: Height and width in pixels; None leaves them.
        patch_size: Height and width of a patch in pixels; None leaves them.
        method: Whose function resizes positions; None takes the configuration's. It is kept in the configuration.

    Raises:
        ConfigError: If the patches do not tile the picture, or the stem's patches cannot be resized.
    """
    if patch_size is not None and config.stem in ("conv", "resnet") and pair(patch_size) != pair(config.patch_size):
        raise ConfigError(f"the patches of a {config.stem} stem are no plain kernel: patch_size cannot be changed")
    new = replace(
        config,
        image_size=_plain(image_size or config.image_size),
        patch_size=_plain(patch_size or config.patch_size),
        resample=method or config.resample,
    )
    state = dict(state)
    record: dict[str, Any] = {}
    if new.grid != config.grid:
        _resample_positions(config, new, state)
        record["positions"] = {"from": list(config.grid), "to": list(new.grid), "method": new.resample}
    if pair(new.patch_size) != pair(config.patch_size):
        kernel = state["patch_embed.proj.weight"]
        state["patch_embed.proj.weight"] = resample_patch_kernel(kernel, pair(new.patch_size))
        record["patches"] = {"from": list(pair(config.patch_size)), "to": list(pair(new.patch_size))}
    return new, state, record


def _plain(size: Size2d) -> Size2d:
    return pair(size)[0] if len(set(pair(size))) == 1 else pair(size)


def _resample_positions(old: ViTConfig, new: ViTConfig, state: State) -> None:
    """Resample learned positions in place; those of prefix tokens stay, fixed and rotary ones have no tensor."""
    if "pos_embed" in state:
        table = state["pos_embed"]
        own = table.shape[1] - old.grid[0] * old.grid[1]
        patches = resample(table[:, own:], old.grid, new.grid, new.resample)
        state["pos_embed"] = torch.cat((table[:, :own], patches), 1)
    for name, axis in (("pos_embed_row", 0), ("pos_embed_column", 1)):
        if name in state:
            lengths = [(c.grid[axis], 1) if axis == 0 else (1, c.grid[axis]) for c in (old, new)]
            state[name] = resample(state[name], lengths[0], lengths[1], new.resample)
    for name in [name for name in state if name.endswith("attn.relative")]:
        length = 2 * new.grid[0] * new.grid[1] - 1
        table = state[name].t()[None]
        state[name] = F.interpolate(table, size=length, mode="linear", align_corners=True)[0].t().contiguous()


def resample_patch_kernel(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a patch kernel so that patches resized alike give the same tokens as nearly as possible.

    FlexiViT's pseudo-inverse resize (arXiv 2212.08013, section 3.4), with the antialiased bicubic resize of timm.

    Args:
        kernel: Weights, D x C x h x w.
        size: Height and width wanted, in pixels.

    Returns:
        D x C x h' x w', in the kernel's dtype; computed in float64.
    """
    height, width = kernel.shape[2:]
    if (height, width) == size:
        return kernel
    basis = torch.eye(height * width, dtype=torch.float64).view(-1, 1, height, width)
    matrix = F.interpolate(basis, size, mode="bicubic", antialias=True, align_corners=False).flatten(1)  # hw h'w'
    inverse = torch.linalg.pinv(matrix)  # h'w' hw
    flat = kernel.to(torch.float64).flatten(2) @ inverse.t()  # D C h'w'
    return flat.unflatten(2, size).to(kernel.dtype)
