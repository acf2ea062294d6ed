"""Recovering a model's architecture from the shapes of its tensors, once they have this package's names.

Shapes: D width, K classes, N positions.
"""

from __future__ import annotations

import math
import re
import typing
from typing import Any

from torch import Tensor

from vitreous.checkpoint.adapters.common import Hints, State
from vitreous.checkpoint.untrusted.documents import fits
from vitreous.errors import CheckpointError, ConfigError
from vitreous.model.config import ViTConfig, pair

__all__ = ["block_count", "config_from", "heads_of"]

_ODD_HEADS = {(32, 1): 2, (1280, 32): 16, (1408, 40): 16, (1664, 48): 16, (1152, 27): 16}
"""Heads of the published sizes (width, depth) whose heads are not 64 wide: mu, H, g, G and So400m."""


def config_from(state: State, name: str, hints: Hints, reasons: list[str], **known: Any) -> ViTConfig:
    """Return the configuration of tensors in this package's names.

    Args:
        state: The tensors.
        name: The checkpoint, for messages.
        hints: What the user says.
        reasons: Lines for people; what was concluded is appended.
        **known: Fields that the family's own documents or conventions settle; ``image_size`` is checked against the
            number of positions, and ``heads`` may be None.

    Raises:
        CheckpointError: If a tensor that shapes the model is missing or has the wrong number of dimensions, or the
            shapes contradict each other.
    """
    proj = _need(state, "patch_embed.proj.weight", 4, name)
    width, depth = proj.shape[0], block_count(state, name)
    fields: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_dim": _need(state, "blocks.0.mlp.fc1.weight", 2, name).shape[0],
        "num_classes": _need(state, "head.weight", 2, name).shape[0] if "head.weight" in state else 0,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in state else None,
        "registers": _need(state, "reg_token", 3, name).shape[1] if "reg_token" in state else 0,
        "final_norm": "tokens" if "norm.weight" in state else "pooled" if "fc_norm.weight" in state else "none",
        **_stem(state, proj, name),
        **_head(state, name),
        **known,
    }
    fields["heads"] = hints.heads or known.get("heads") or heads_of(state, width, depth, reasons)
    if width % fields["heads"]:
        raise CheckpointError(f"'{name}' has width {width}, which {fields['heads']} heads do not divide")
    has_cls = "cls_token" in state
    fields.setdefault("pool", "map" if "attn_pool.latent" in state else "cls" if has_cls else "mean")
    fields["class_token"] = None if has_cls == (fields["pool"] == "cls") else has_cls
    asked = hints.image_size or known.get("image_size")
    fields |= _places(state, fields, None if asked is None else pair(asked), name, reasons)
    kinds = typing.get_type_hints(ViTConfig)
    odd = [f"{field} is {value!r:.60}" for field, value in fields.items() if not fits(value, kinds[field])]
    if odd:  # said by a document beside the weights
        raise CheckpointError(f"'{name}' has a configuration that cannot be meant: {', '.join(odd)}")
    try:
        config = ViTConfig(**fields)
    except ConfigError as error:
        raise CheckpointError(f"the shapes in '{name}' make no Vision Transformer: {error}") from error
    reasons.append(_sentence(config))
    return config


def block_count(state: State, name: str) -> int:
    """Return the number of encoder blocks; they must be numbered from 0 without a gap."""
    numbers = {int(match[1]) for key in state if (match := re.match(r"blocks\.(\d{1,4})\.", key))}
    if not numbers or numbers != set(range(len(numbers))):
        found = f"blocks {sorted(numbers)[:5]} ..." if numbers else "no encoder blocks"
        raise CheckpointError(f"'{name}' has {found}, expected blocks 0, 1, 2 ... without a gap; tensors are missing")
    return len(numbers)


def heads_of(state: State, width: int, depth: int, reasons: list[str]) -> int:
    """Return the number of heads, which no shape shows unless queries are normalised per head."""
    if "blocks.0.attn.q_norm.weight" in state:
        return width // max(1, len(state["blocks.0.attn.q_norm.weight"]))
    heads = _ODD_HEADS.get((width, depth)) or max(1, width // 64)
    why = "the published size of this width and depth" if (width, depth) in _ODD_HEADS else "64 channels a head"
    reasons.append(f"{heads} heads, by {why}: nothing beside the weights says; --heads sets it")
    return heads


def _need(state: State, key: str, dimensions: int, name: str) -> Tensor:
    if key not in state:
        raise CheckpointError(f"'{name}' has no tensor for {key}: it is incomplete, or no Vision Transformer")
    if state[key].ndim != dimensions or not state[key].numel():
        raise CheckpointError(f"'{name}': {key} has shape {list(state[key].shape)}, expected {dimensions} dimensions")
    return state[key]


def _stem(state: State, proj: Tensor, name: str) -> dict[str, Any]:
    """Fields of the way from pixels to patches."""
    kernel = (proj.shape[2], proj.shape[3])
    root = "patch_embed.backbone.stem.conv.weight"
    others = [key for key in state if key.startswith("patch_embed.backbone.")]
    if root not in state and others:
        raise CheckpointError(
            f"'{name}' has a stem of another kind than BiT's ResNet ({others[0]}), which vitreous has not"
        )
    if root not in state:
        return {"in_channels": proj.shape[1], "patch_size": _plain(kernel)}
    conv = _need(state, root, 4, name)
    found = {
        (int(m[1]), int(m[2]))
        for key in state
        if (m := re.match(r"patch_embed\.backbone\.stages\.(\d)\.blocks\.(\d{1,3})\.", key))
    }
    layers = tuple(len({j for i, j in found if i == stage}) for stage in range(len({i for i, _ in found})))
    cell = 4 << max(0, len(layers) - 1)
    return {
        "stem": "resnet",
        "resnet_layers": layers,
        "resnet_width": conv.shape[0],
        "in_channels": conv.shape[1],
        "patch_size": _plain((kernel[0] * cell, kernel[1] * cell)),
    }


def _head(state: State, name: str) -> dict[str, Any]:
    """Fields of the paper's MLP head, where there is one."""
    if "pre_logits.fc.weight" not in state:
        return {}
    hidden, width = _need(state, "pre_logits.fc.weight", 2, name).shape
    return {"head": "mlp", "head_hidden": None if hidden == width else hidden}


def _places(
    state: State, fields: dict[str, Any], wanted: tuple[int, int] | None, name: str, reasons: list[str]
) -> dict[str, Any]:
    """Fields of positions: for which picture they are laid out, and which prefix tokens have one."""
    patch, has_cls = pair(fields["patch_size"]), "cls_token" in state
    if "pos_embed" not in state:
        usual = (max(1, 224 // patch[0]) * patch[0], max(1, 224 // patch[1]) * patch[1])
        return {"position": fields.get("position", "none"), "image_size": _plain(wanted or usual)}
    count = _need(state, "pos_embed", 3, name).shape[1]
    prefixes = {"cls": int(has_cls), "all": int(has_cls) + fields["registers"], "none": 0}
    if fields["registers"] == 0:
        prefixes.pop("all")
    if wanted is not None:
        patches = (wanted[0] // patch[0]) * (wanted[1] // patch[1])
        for prefix, own in prefixes.items():
            if count == patches + own:
                return {"image_size": _plain(wanted), "position_prefix": prefix if own or has_cls else "cls"}
        reasons.append(
            f"{count} positions do not fit {wanted[0]} x {wanted[1]} pixels, which are named beside the weights: "
            "the positions count"
        )
    for prefix, own in prefixes.items():
        side = math.isqrt(max(0, count - own))
        if side and side * side == count - own:
            size = (side * patch[0], side * patch[1])
            return {"image_size": _plain(size), "position_prefix": prefix if own or has_cls else "cls"}
    raise CheckpointError(
        f"'{name}' has {count} positions, which are no square of patches with {int(has_cls)} class token and "
        f"{fields['registers']} registers: say which picture they are laid out for, as in --source-size 224x288"
    )


def _plain(size: tuple[int, ...]) -> int | tuple[int, int]:
    """One number for a square, as configurations are written by hand."""
    return size[0] if size[0] == size[1] else (size[0], size[1])


def _sentence(c: ViTConfig) -> str:
    """Say in one line what the shapes mean."""
    (height, width), (ph, pw) = pair(c.image_size), pair(c.patch_size)
    parts = [
        f"width {c.width}, {c.depth} blocks, {c.heads} heads, MLP {c.mlp_dim}, patch {ph}x{pw} on {height}x{width} px",
        f"pool {c.pool}",
    ]
    parts += [f"{c.registers} registers"] * bool(c.registers) + ["LayerScale"] * (c.layer_scale is not None)
    parts += ["QK-norm"] * c.qk_norm + ["pre_logits"] * (c.head == "mlp")
    parts += [f"ResNet stem {c.resnet_layers}"] * (c.stem == "resnet")
    return f"{', '.join(parts)}, {c.num_classes} classes: by the shapes of the tensors"
