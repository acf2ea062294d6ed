"""Recovers a model's configuration from the names and shapes of its tensors, under this package's names."""

from __future__ import annotations

import math
import re
from typing import Any

from torch import Tensor

from vitreous.checkpoint.adapters.common import Hints, State
from vitreous.checkpoint.model_config import invalid_fields
from vitreous.errors import CheckpointError, ConfigError, pluralize
from vitreous.model.config import ViTConfig, pair
from vitreous.model.stems import ResNetStem

__all__ = ["config_from", "is_gated", "plain_size"]

_ODD_HEADS = {(32, 1): 2, (1280, 32): 16, (1408, 40): 16, (1664, 48): 16, (1152, 27): 16}
"""Heads by (width, depth) of the published sizes without 64 channels per head: mu, H, g, G and So400m."""


def config_from(state: State, name: str, hints: Hints, reasons: list[str], **known: Any) -> ViTConfig:
    """Return the configuration that the tensors imply, and append the conclusions to `reasons`.

    `name` is the checkpoint's in messages. The user's `hints` take precedence over the fields `known` from the family's
    documents or conventions; its ``image_size`` is used only if it fits the number of positions, ``heads`` may be None.
    """
    proj = _require(state, "patch_embed.proj.weight", 4, name)
    width, depth = proj.shape[0], _block_count(state, name)
    fields: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "num_classes": _require(state, "head.weight", 2, name).shape[0] if "head.weight" in state else 0,
        "registers": _require(state, "reg_token", 3, name).shape[1] if "reg_token" in state else 0,
        "norm": "layer" if "blocks.0.norm1.bias" in state else "rms",
        "input_norm": "norm_pre.weight" in state,
        "final_norm": "tokens" if "norm.weight" in state else "pooled" if "fc_norm.weight" in state else "none",
        **_block(state, width, name),
        **_stem(state, proj, name),
        **_head(state, name),
    }
    for field, value in known.items():
        fields[field] = {**fields.get(field, {}), **value} if isinstance(value, dict) else value
    fields["heads"] = hints.heads or known.get("heads") or _heads(state, width, depth, reasons)
    if width % fields["heads"]:
        raise CheckpointError(f"'{name}' has width {width}, which {fields['heads']} heads do not divide")
    has_cls = "cls_token" in state
    fields.setdefault("pool", {"kind": "map" if "attn_pool.latent" in state else "cls" if has_cls else "mean"})
    if fields["pool"]["kind"] == "map" and "attn_pool.mlp.fc2.weight" in state:
        hidden = _require(state, "attn_pool.mlp.fc2.weight", 2, name).shape[1]
        fields["pool"].setdefault("mlp_dim", None if hidden == fields["mlp_dim"] else hidden)
    fields["class_token"] = None if has_cls == (fields["pool"]["kind"] == "cls") else has_cls
    stated = hints.image_size or known.get("image_size")
    fields |= _positions(state, fields, None if stated is None else pair(stated), name, reasons)
    if invalid := list(invalid_fields(fields)):  # from a document beside the weights
        raise CheckpointError(f"'{name}' has an invalid configuration: {', '.join(invalid)}")
    try:
        config = ViTConfig(**fields)
    except ConfigError as error:
        raise CheckpointError(f"the shapes in '{name}' are not those of a Vision Transformer: {error}") from error
    reasons.append(_describe(config))
    return config


def _block(state: State, width: int, name: str) -> dict[str, Any]:
    """Return the fields that the first block shows."""
    mlp_dim = _require(state, "blocks.0.mlp.fc2.weight", 2, name).shape[1]
    _require(state, "blocks.0.mlp.fc1.weight", 2, name)
    bias = state.get("blocks.0.attn.qkv.bias")
    return {
        "mlp_dim": mlp_dim,
        "mlp": {"kind": "gated" if is_gated(state) else "dense", "norm": "blocks.0.mlp.norm.weight" in state},
        "attention": {
            "qkv_bias": bias is not None,
            "key_bias": bias is None or bias.numel() != 2 * width,
            "qk_norm": "blocks.0.attn.q_norm.weight" in state,
            "out_norm": "blocks.0.attn.norm.weight" in state,
        },
        "block": {
            "kind": "pre-norm" if "blocks.0.norm2.weight" in state else "parallel",
            "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in state else None,
        },
    }


def is_gated(state: State) -> bool:
    """Return whether the first matrix of the MLPs has twice the rows that the second has columns."""
    first, second = (state.get(f"blocks.0.mlp.fc{layer}.weight") for layer in (1, 2))
    known = first is not None and second is not None and first.ndim == second.ndim == 2
    return known and first.shape[0] == 2 * second.shape[1]  # type: ignore[union-attr]


def _block_count(state: State, name: str) -> int:
    """Return the number of encoder blocks, which must be numbered from 0 without gaps."""
    numbers = {int(match[1]) for key in state if (match := re.match(r"blocks\.(\d{1,4})\.", key))}
    if not numbers or numbers != set(range(len(numbers))):
        found = f"blocks {sorted(numbers)[:5]} ..." if numbers else "no encoder blocks"
        raise CheckpointError(f"'{name}' has {found}, expected blocks 0, 1, 2 ... without gaps: tensors are missing")
    return len(numbers)


def _heads(state: State, width: int, depth: int, reasons: list[str]) -> int:
    """Return the number of heads: from QK-norm's shape, else from width and depth."""
    if "blocks.0.attn.q_norm.weight" in state:
        return width // max(1, len(state["blocks.0.attn.q_norm.weight"]))
    heads = _ODD_HEADS.get((width, depth)) or max(1, width // 64)
    why = "the published size of this width and depth" if (width, depth) in _ODD_HEADS else "64 channels per head"
    reasons.append(f"{heads} heads assumed, from {why} (--heads sets the number)")
    return heads


def _require(state: State, key: str, dimensions: int, name: str) -> Tensor:
    """Return a tensor that must exist, be non-empty and have the given number of dimensions."""
    if key not in state:
        raise CheckpointError(f"'{name}' has no tensor for {key}: it is incomplete or not a Vision Transformer")
    if state[key].ndim != dimensions or not state[key].numel():
        raise CheckpointError(f"'{name}': {key} has shape {list(state[key].shape)}, expected {dimensions} dimensions")
    return state[key]


def _stem(state: State, proj: Tensor, name: str) -> dict[str, Any]:
    kernel = (proj.shape[2], proj.shape[3])
    root = "patch_embed.backbone.stem.conv.weight"
    others = [key for key in state if key.startswith("patch_embed.backbone.")]
    if root not in state and others:
        raise CheckpointError(
            f"'{name}' has a stem that vitreous does not support ({others[0]}); the only backbone is BiT's ResNet"
        )
    if root not in state:
        stem = {} if "patch_embed.proj.bias" in state else {"stem": {"kind": "patch", "bias": False}}
        return {"in_channels": proj.shape[1], "patch_size": plain_size(kernel), **stem}
    conv = _require(state, root, 4, name)
    blocks = {
        (int(m[1]), int(m[2]))
        for key in state
        if (m := re.match(r"patch_embed\.backbone\.stages\.(\d)\.blocks\.(\d{1,3})\.", key))
    }
    layers = tuple(len({j for i, j in blocks if i == stage}) for stage in range(len({i for i, _ in blocks})))
    cell = 4 << max(0, len(layers) - 1)
    return {
        "stem": {"kind": "resnet", "layers": layers, "width": conv.shape[0]},
        "in_channels": conv.shape[1],
        "patch_size": plain_size((kernel[0] * cell, kernel[1] * cell)),
    }


def _head(state: State, name: str) -> dict[str, Any]:
    if "pre_logits.fc.weight" not in state:
        return {}
    hidden, width = _require(state, "pre_logits.fc.weight", 2, name).shape
    bias = "pre_logits.fc.bias" in state
    return {"head": {"kind": "mlp", "hidden": None if hidden == width else hidden, "bias": bias}}


def _positions(
    state: State, fields: dict[str, Any], stated: tuple[int, int] | None, name: str, reasons: list[str]
) -> dict[str, Any]:
    """Return the fields of the position embeddings: the image size they are for, and which prefix tokens have one.

    The stated size is used if it fits the number of positions, without the pixels behind the last whole patch, which
    other libraries leave out. Else the size is that of a square of patches.
    """
    patch, has_cls = pair(fields["patch_size"]), "cls_token" in state
    in_attention = _position_in_attention(state) | fields.get("position", {})
    if "pos_embed" not in state:
        default = (max(1, 224 // patch[0]) * patch[0], max(1, 224 // patch[1]) * patch[1])
        if in_attention.get("kind", "learned") == "learned":
            in_attention = {"kind": "none"}
        size = stated or _size_of_offsets(state, patch, has_cls) or default
        return {"position": in_attention, "image_size": plain_size(size)}
    position = {"kind": "learned", **in_attention}

    def with_prefix(prefix: str, count: int) -> dict[str, Any]:
        if position["kind"] != "learned":
            return {**position, "absolute": prefix if count else "patches"}
        return {**position, "prefix": prefix if count or has_cls else "cls"}

    count = _require(state, "pos_embed", 3, name).shape[1]
    prefixes = {"cls": int(has_cls), "all": int(has_cls) + fields["registers"], "none": 0}
    if fields["registers"] == 0:
        prefixes.pop("all")
    if stated is not None:
        rows, columns = stated[0] // patch[0], stated[1] // patch[1]
        size = rows * patch[0], columns * patch[1]
        for prefix, num_prefix in prefixes.items():
            if count == rows * columns + num_prefix:
                if size != stated:
                    reasons.append(
                        f"images have {size[0]} x {size[1]} pixels: of the stated {stated[0]} x {stated[1]}, patches "
                        "leave out the last rows and columns"
                    )
                return {"image_size": plain_size(size), "position": with_prefix(prefix, num_prefix)}
        reasons.append(f"the stated image size {stated[0]} x {stated[1]} does not fit the {count} positions: ignored")
    for prefix, num_prefix in prefixes.items():
        side = math.isqrt(max(0, count - num_prefix))
        if side and side * side == count - num_prefix:
            size = (side * patch[0], side * patch[1])
            return {"image_size": plain_size(size), "position": with_prefix(prefix, num_prefix)}
    raise CheckpointError(
        f"'{name}' has {count} positions, which are not a square grid of patches plus {int(has_cls)} class token and "
        f"{fields['registers']} registers: give the image size that they are for, such as --source-size 224x288"
    )


def _position_in_attention(state: State) -> dict[str, Any]:
    """Return the kind and options of the positions whose tensors the attention of the first block has, or the model."""
    if "blocks.0.attn.rope_frequencies" in state:
        return {"kind": "rope-mixed"}
    for name, options in (
        ("blocks.0.attn.relative_bias", {"kind": "relative-bias"}),
        ("pos_embed_relative", {"kind": "relative-bias", "shared": True}),
        ("blocks.0.attn.relative_weight1", {"kind": "relative-mlp"}),
        ("pos_embed_weight1", {"kind": "relative-mlp", "shared": True}),
    ):
        if name in state:
            return options | ({"hidden": state[name].shape[0]} if options["kind"] == "relative-mlp" else {})
    return {}


def _size_of_offsets(state: State, patch: tuple[int, int], has_cls: bool) -> tuple[int, int] | None:
    """Return the image size in pixels that a table of relative biases is for, if the grid of patches is square."""
    table = state.get("blocks.0.attn.relative_bias", state.get("pos_embed_relative"))
    if table is None:
        return None
    side = (math.isqrt(max(0, table.shape[0] - 3 * has_cls)) + 1) // 2
    return side * patch[0], side * patch[1]


def plain_size(size: tuple[int, ...]) -> int | tuple[int, int]:
    """Return one number for a square."""
    return size[0] if size[0] == size[1] else (size[0], size[1])


def _describe(c: ViTConfig) -> str:
    """Describe the recovered configuration in one line."""
    (height, width), (ph, pw) = pair(c.image_size), pair(c.patch_size)
    parts = [
        f"width {c.width}, {pluralize(c.depth, 'block')}, {pluralize(c.heads, 'head')}, MLP {c.mlp_dim}",
        f"patch {ph}x{pw} on {height}x{width} px",
        f"pool {c.pool.kind}",
    ]
    parts += [pluralize(c.registers, "register")] * bool(c.registers) + ["LayerScale"] * (
        c.block.layer_scale is not None
    )
    parts += ["QK-norm"] * c.attention.qk_norm + ["pre_logits"] * (c.head.kind == "mlp")
    if isinstance(c.stem, ResNetStem):
        parts.append(f"ResNet stem {c.stem.layers}")
    return f"{', '.join(parts)}, {pluralize(c.num_classes, 'class', 'classes')}: the tensors' shapes"
