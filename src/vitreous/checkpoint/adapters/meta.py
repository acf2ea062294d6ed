"""Files of facebookresearch, in the names and arguments of timm. Those of DINOv3 and MAE are only read.

DINOv3 stores a mask of biases beside them, which is zero for keys; the periods of its rotary positions, in bfloat16;
and three matrices of gated MLPs. MAE stores its decoder, which is left out. DINOv2 is so close to timm that
:mod:`timm` reads and writes it, under other names of registers and of gated MLPs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import torch

from vitreous.checkpoint.adapters.common import State
from vitreous.errors import CheckpointError

__all__ = ["from_dinov2", "is_cropped", "licence_of_file", "to_dinov2", "to_timm"]

_RELEASES = (  # beginnings of file names, the licence, and whether images are cropped (of a .pth)
    (r"vit_[blh]_1[46]_(lc_)?swag", "CC-BY-NC-4.0", False),  # which torchvision publishes
    (r"mae_(pretrain|finetuned|visualize)_vit_", "CC-BY-NC-4.0", True),
    (r"dinov3_vit\w+_pretrain", "DINOv3", False),
    (r"dinov2_vit[\w-]+\.pth", "Apache-2.0", False),
    (r"(deit_|dino_deit|dino_vit)[\w-]+\.pth", "Apache-2.0", True),
)
_GATED = {"mlp.w1.": "mlp.fc1_g.", "mlp.w2.": "mlp.fc1_x.", "mlp.w3.": "mlp.fc2."}
_DINOV2 = {"register_tokens": "reg_token"}
_DINOV2_GATED = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}
_PERIODS = "rope_embed.periods"


def to_timm(tensors: Mapping[str, torch.Tensor], name: str) -> tuple[State, dict[str, Any], list[str]]:
    """Return the tensors under timm's names, arguments of timm's constructor, and lines for the user.

    Files that are neither of DINOv3 nor of MAE stay as they are. `name` is the checkpoint's in messages.
    """
    if _PERIODS in tensors and "storage_tokens" in tensors:
        return _dinov3(dict(tensors), name)
    if any(key.startswith("decoder_blocks.") for key in tensors):
        encoder = {key: t for key, t in tensors.items() if not key.startswith("decoder_") and key != "mask_token"}
        return encoder, {}, ["facebookresearch/mae: the decoder is left out"]
    return dict(tensors), {}, []


def is_cropped(name: str) -> bool:
    """Return whether a file has the name of facebookresearch's MAE, DeiT or DINO, which crop 224 of 256 pixels."""
    return name.endswith(".pth") and any(crops for _, crops in _releases(name))


def licence_of_file(name: str) -> str | None:
    """Return the licence of a file with the name of one of facebookresearch's, or None."""
    return next((licence for licence, _ in _releases(name)), None)


def _releases(name: str) -> list[tuple[str, bool]]:
    return [row[1:] for row in _RELEASES if re.match(row[0], os.path.basename(name))]


def from_dinov2(name: str) -> str:
    """Return the name of a tensor here; others than DINOv2's stay as they are."""
    for theirs, ours in _DINOV2_GATED.items():
        name = name.replace(theirs, ours)
    return _DINOV2.get(name, name)


def to_dinov2(name: str, gated: bool) -> str:
    """Invert :func:`from_dinov2`; `gated` is whether the MLPs are."""
    for theirs, ours in _DINOV2_GATED.items() if gated else ():
        name = name.replace(ours, theirs)
    return {ours: theirs for theirs, ours in _DINOV2.items()}.get(name, name)


def _dinov3(state: State, name: str) -> tuple[State, dict[str, Any], list[str]]:
    periods = state.pop(_PERIODS).to(torch.float32)
    exact = 100.0 ** (torch.arange(len(periods), dtype=torch.float64) / len(periods))
    if torch.equal(periods, exact.to(torch.bfloat16).to(torch.float32)):
        rounding = "bfloat16"
    elif torch.allclose(periods, exact.to(torch.float32), rtol=1e-6):
        rounding = "none"
    else:
        raise CheckpointError(f"'{name}' has rotary periods other than DINOv3's, which vitreous does not support")
    state["reg_token"] = state.pop("storage_tokens")
    state.pop("mask_token", None)
    for key in [key for key in state if key.endswith(".attn.qkv.bias_mask")]:
        state.pop(key)
        attn = key.removesuffix("qkv.bias_mask")
        state[f"{attn}q_bias"], _, state[f"{attn}v_bias"] = state.pop(f"{attn}qkv.bias").chunk(3)
    width = state["reg_token"].shape[-1]
    renamed: State = {}
    for key, tensor in state.items():
        for theirs, ours in _GATED.items():
            key = key.replace(theirs, ours)  # noqa: PLW2901
        renamed[key] = tensor
    arguments = {
        "num_heads": max(1, width // (4 * max(1, len(periods)))),  # a head turns rows and columns, in pairs
        "use_rot_pos_emb": True,
        "rope_type": "dinov3",
        "rope_temperature": 100.0,
        "rope_rotate_half": True,
        "rope_rounding": rounding,
        "norm_eps": 1e-5,
        "global_pool": "token",
    }
    return renamed, arguments, ["facebookresearch/dinov3: its names; the mask token is left out"]
