"""State dicts of torchvision's ``vit_b_16`` and its siblings, with today's names and those before 0.13."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from vitreous.checkpoint.adapters import pipelines
from vitreous.checkpoint.adapters.common import (
    ForeignCheckpoint,
    Hints,
    ImportedModel,
    OutgoingModel,
    State,
    beyond_the_paper,
    note_on_epsilon,
)
from vitreous.checkpoint.adapters.shapes import config_from
from vitreous.checkpoint.adapters.sidecar import make_sidecar, read_sidecar
from vitreous.model.config import ViTConfig, pair
from vitreous.model.heads import MlpHead
from vitreous.model.positions import Learned

__all__ = ["LAYOUT", "fixed_constants", "read", "recognise", "write"]

_BLOCK = "encoder.layers.encoder_layer_{}."
_OUTSIDE = {
    "class_token": "cls_token",
    "conv_proj": "patch_embed.proj",
    "encoder.pos_embedding": "pos_embed",
    "encoder.ln": "norm",
    "heads.pre_logits": "pre_logits.fc",
    "heads.head": "head",
}
_INSIDE = {
    "ln_1": "norm1",
    "self_attention.in_proj_": "attn.qkv.",
    "self_attention.out_proj": "attn.proj",
    "ln_2": "norm2",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
}
_BEFORE_013 = {"mlp.0": "mlp.linear_1", "mlp.3": "mlp.linear_2"}

LAYOUT = {"names": ("index", "linear")}
"""Entries of a layout and their allowed values."""


def recognise(tensors: State) -> str | None:
    """Return the reason why these are torchvision's names, or None."""
    if "conv_proj.weight" in tensors and any(name.startswith("encoder.layers.encoder_layer_") for name in tensors):
        return "torchvision's names (conv_proj, encoder.layers.encoder_layer_0)"
    return None


def read(source: ForeignCheckpoint, hints: Hints) -> ImportedModel:
    """Convert a state dict, and the JSON file beside it if there is one."""
    old = any(".mlp.linear_1." in name for name in source.tensors)
    state = {_ours(name, old): tensor for name, tensor in source.tensors.items()}
    sidecar = read_sidecar(source)
    reasons: list[str] = []
    if hints.image_size is None and sidecar.pipeline is not None:
        hints = replace(hints, image_size=sidecar.pipeline.size)
    config = config_from(
        state,
        source.name,
        replace(hints, heads=hints.heads or sidecar.heads),
        reasons,
        norm_eps=1e-6,
        mlp={"activation": "gelu"},
        position={"resample": "torchvision"},
        init="torchvision",
    )
    pipeline = sidecar.pipeline
    if pipeline is None:
        pipeline = pipelines.from_torchvision(config, source.name)
        reasons.append("images are prepared as for torchvision's ImageNet weights: nothing beside the weights says")
    layout = {"family": "torchvision", "names": "linear" if old else "index"}
    return ImportedModel("torchvision", config, state, layout, reasons, sidecar.classes, pipeline)


def _ours(name: str, old: bool) -> str:
    """Return this package's name of a tensor; `old` are the names before torchvision 0.13."""
    match = re.match(r"encoder\.layers\.encoder_layer_(\d+)\.(.*)", name)
    if match is None:
        return _replace_prefix(name, _OUTSIDE)
    inside = _INSIDE if not old else {_BEFORE_013.get(theirs, theirs): ours for theirs, ours in _INSIDE.items()}
    return f"blocks.{match[1]}.{_replace_prefix(match[2], inside)}"


def _theirs(name: str, old: bool) -> str:
    """Invert :func:`_ours`."""
    match = re.match(r"blocks\.(\d+)\.(.*)", name)
    if match is None:
        return _replace_prefix(name, {ours: theirs for theirs, ours in _OUTSIDE.items()})
    inside = {ours: _BEFORE_013.get(theirs, theirs) if old else theirs for theirs, ours in _INSIDE.items()}
    return _BLOCK.format(match[1]) + _replace_prefix(match[2], inside)


def _replace_prefix(name: str, table: dict[str, str]) -> str:
    """Replace the prefix of a name as the table says; a name without an entry is unchanged."""
    for prefix, replacement in table.items():
        if name == prefix or name.startswith(prefix if prefix.endswith(("_", ".")) else f"{prefix}."):
            return replacement + name.removeprefix(prefix)
    return name


def fixed_constants(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that torchvision fixes at other values, and one line for the user on each."""
    if config.norm_eps == 1e-6:
        return {}, []
    return {"norm_eps": 1e-6}, [note_on_epsilon("torchvision", 1e-6, config)]


def write(model: OutgoingModel) -> ForeignCheckpoint:
    """Return a state dict for ``torchvision.models.VisionTransformer``, and a JSON file with everything else."""
    model.raise_if_unsupported("torchvision", _unsupported(model.config))
    old = model.layout.get("names") == "linear"
    tensors = {_theirs(name, old): tensor for name, tensor in model.state.items()}
    return ForeignCheckpoint(tensors, {"sidecar": make_sidecar(model.config, model.classes, model.pipeline)})


def _unsupported(c: ViTConfig) -> dict[str, bool]:
    height, width = pair(c.image_size)
    return {
        **beyond_the_paper(c),
        f"stem {c.stem.kind}": not c.stem.has_patch_kernel,
        f"stem.activation {c.stem.activation}": c.stem.activation != "none",
        f"position {c.position.kind}": c.position.kind != "learned",
        "a class token without a position (--add cls_position writes one of zeros)": (
            isinstance(c.position, Learned) and c.position.prefix == "none"
        ),
        f"pool {c.pool.kind}": c.pool.kind != "cls",
        f"{c.registers} registers": c.registers > 0,
        f"final_norm {c.final_norm}": c.final_norm != "tokens",
        f"activation {c.mlp.activation} (--activation gelu takes it)": c.mlp.activation != "gelu",
        "no biases on queries, keys and values": not c.attention.qkv_bias,
        "QK-norm": c.attention.qk_norm,
        "LayerScale": c.block.layer_scale is not None,
        f"images of {height} x {width}, not square": height != width,
        f"patches of {c.patch_size}, not square": len(set(pair(c.patch_size))) > 1,
        f"{c.in_channels} channels": c.in_channels != 3,
        "a model without a head": c.num_classes == 0,
        "a head activation other than tanh": isinstance(c.head, MlpHead) and c.head.activation != "tanh",
    }
