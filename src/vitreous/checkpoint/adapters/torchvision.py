"""torchvision's ``vit_b_16`` and its siblings: state dicts, of today's names and of those before 0.13."""

from __future__ import annotations

import re
from typing import Any

from vitreous.checkpoint.adapters.common import Foreign, Hints, Imported, Outgoing, State, Written, refuse
from vitreous.checkpoint.adapters.pipelines import pipeline_from_torchvision
from vitreous.checkpoint.adapters.shapes import config_from
from vitreous.checkpoint.adapters.sidecar import read_sidecar, sidecar
from vitreous.model.config import ViTConfig, pair

__all__ = ["LAYOUT", "adopt", "read", "recognise", "write"]

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
_OLD = {"mlp.0": "mlp.linear_1", "mlp.3": "mlp.linear_2"}

LAYOUT = {"names": ("index", "linear")}
"""What a layout says, with the values that it may have."""


def recognise(tensors: State) -> str | None:
    """Say why these are torchvision's names, or None."""
    if "conv_proj.weight" in tensors and any(name.startswith("encoder.layers.encoder_layer_") for name in tensors):
        return "torchvision's names (conv_proj, encoder.layers.encoder_layer_0)"
    return None


def read(source: Foreign, hints: Hints) -> Imported:
    """Take a state dict.

    Raises:
        CheckpointError: If the shapes make no Vision Transformer.
    """
    old = any(".mlp.linear_1." in name for name in source.tensors)
    state = {_ours(name, old): tensor for name, tensor in source.tensors.items()}
    beside = read_sidecar(source)
    reasons: list[str] = []
    if hints.image_size is None and beside.pipeline is not None:
        hints = Hints(hints.heads, beside.pipeline.size)
    config = config_from(
        state,
        source.name,
        Hints(hints.heads or beside.heads, hints.image_size),
        reasons,
        norm_eps=1e-6,
        activation="gelu",
        resample="torchvision",
        init="torchvision",
    )
    pipeline = beside.pipeline
    if pipeline is None:
        pipeline = pipeline_from_torchvision(config, source.name)
        reasons.append("pictures are prepared as for torchvision's ImageNet weights: nothing beside the weights says")
    layout = {"family": "torchvision", "names": "linear" if old else "index"}
    return Imported("torchvision", config, state, layout, reasons, beside.classes, pipeline)


def _ours(name: str, old: bool) -> str:
    match = re.match(r"encoder\.layers\.encoder_layer_(\d+)\.(.*)", name)
    if match is None:
        return _swap(name, _OUTSIDE)
    inside = _INSIDE if not old else {_OLD.get(theirs, theirs): ours for theirs, ours in _INSIDE.items()}
    return f"blocks.{match[1]}.{_swap(match[2], inside)}"


def _theirs(name: str, old: bool) -> str:
    match = re.match(r"blocks\.(\d+)\.(.*)", name)
    if match is None:
        return _swap(name, {ours: theirs for theirs, ours in _OUTSIDE.items()})
    inside = {ours: _OLD.get(theirs, theirs) if old else theirs for theirs, ours in _INSIDE.items()}
    return _BLOCK.format(match[1]) + _swap(match[2], inside)


def _swap(name: str, table: dict[str, str]) -> str:
    """Replace the front of a name by the table's entry for it; a name that none fits stays."""
    for front, other in table.items():
        if name == front or name.startswith(front if front.endswith(("_", ".")) else f"{front}."):
            return other + name[len(front) :]
    return name


def adopt(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the constants that torchvision cannot be told and replaces by its own, and lines for people."""
    if config.norm_eps == 1e-6:
        return {}, []
    return {"norm_eps": 1e-6}, [f"torchvision normalises with epsilon 1e-06, this model with {config.norm_eps:g}"]


def write(model: Outgoing) -> Written:
    """Give a state dict that ``torchvision.models.VisionTransformer`` loads, and the rest as a JSON file.

    Raises:
        CheckpointError: If torchvision has no such model: everything that it cannot express, in one error.
    """
    refuse("torchvision", _problems(model.config, model.kept))
    old = model.layout.get("names") == "linear"
    tensors = {_theirs(name, old): tensor for name, tensor in model.state.items()}
    return Written(tensors, {"sidecar": sidecar(model.config, model.classes, model.pipeline)})


def _problems(c: ViTConfig, kept: State) -> list[str]:
    """Everything that torchvision's VisionTransformer has no argument for."""
    height, width = pair(c.image_size)
    odd = {
        f"stem {c.stem}": c.stem not in ("patch", "linear"),
        f"patch_activation {c.patch_activation}": c.patch_activation != "none",
        f"position {c.position}": c.position != "learned",
        "a class token without a position (--add cls_position writes one of zeros)": c.position_prefix == "none",
        f"pool {c.pool}": c.pool != "cls",
        f"{c.registers} registers": c.registers > 0,
        f"final_norm {c.final_norm}": c.final_norm != "tokens",
        f"activation {c.activation} (--activation gelu takes it)": c.activation != "gelu",
        "no biases on queries, keys and values": not c.qkv_bias,
        "QK-norm": c.qk_norm,
        "LayerScale": c.layer_scale is not None,
        f"a picture of {height} x {width}, no square": height != width,
        f"a patch of {c.patch_size}, no square": len(set(pair(c.patch_size))) > 1,
        f"{c.in_channels} channels": c.in_channels != 3,
        "a model without a head (it has no classes)": c.num_classes == 0,
        f"head activation {c.head_activation}": c.head == "mlp" and c.head_activation != "tanh",
    }
    problems = [what for what, is_odd in odd.items() if is_odd]
    return problems + [f"{name} (--drop {name} leaves it out)" for name in kept]
