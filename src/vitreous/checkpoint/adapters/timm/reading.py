"""Reads timm's Vision Transformers. Tensor names are the same as here, so most of the work is config.json.

Also reads files of facebookresearch/dinov2, which differ in two names, and those that another adapter translated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitreous.checkpoint.adapters import pipelines
from vitreous.checkpoint.adapters.common import (
    ForeignCheckpoint,
    Hints,
    ImportedModel,
    State,
    join_first,
)
from vitreous.checkpoint.adapters.releases import from_dinov2, is_cropped
from vitreous.checkpoint.adapters.shapes import config_from, is_gated
from vitreous.checkpoint.adapters.sidecar import Sidecar, is_sidecar, read_sidecar
from vitreous.checkpoint.adapters.timm.entries import entry_arguments, other_kind, refusal, rope_of
from vitreous.checkpoint.adapters.timm.forms import to_ours
from vitreous.errors import CheckpointError

__all__ = ["ACTIVATIONS", "BARE_STEM", "POOLS", "read", "read_translated", "recognise"]

_HARMLESS = {  # arguments of timm's constructors that evaluation does not use, that tensor shapes show, or read below
    *("img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "qkv_bias", "qk_norm", "init_values", "class_token", "no_embed_class", "reg_tokens", "final_norm"),
    *("fc_norm", "pool_include_prefix", "dynamic_img_size", "dynamic_img_pad", "strict_img_size", "act_layer"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "pos_embed", "proj_bias", "exportable", "scriptable", "pre_norm", "scale_attn_norm"),
    *(
        "scale_mlp_norm",
        "num_reg_tokens",
        "qkv_fused",
        "swiglu_mlp",
        "swiglu_align_to",
        "scale_mlp",
        "scale_attn_inner",
    ),
    *("attn_type", "use_abs_pos_emb", "use_rot_pos_emb", "rope_type", "rope_grid_offset", "rope_grid_indexing"),
    *("rope_temperature", "rope_rotate_half", "rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords"),
    *("ref_feat_shape", "use_pre_transformer_norm", "use_post_transformer_norm", "use_fc_norm", "attn_pool_num_heads"),
    *("attn_pool_mlp_ratio", "head_init_scale", "use_rel_pos_bias", "use_shared_rel_pos_bias", "rel_pos_dim"),
    *("shared_rel_pos", "norm_eps", "rope_rounding", "pos_embed_interp_mode", "pos_embed_grid_size"),
}
_OFF = (None, False, "layernorm")  # values by which any other argument is off
_EXPECTED = {"norm_layer": ("rmsnorm",), "block_fn": ("norm-after",), "rel_pos_type": ("mlp",), "attn_layer": ("",)}
"""Further values that an argument may have: those that tensors show, or that only this package's own table has."""
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu-tanh", "relu": "relu", "quick_gelu": "quick-gelu", "silu": "silu"}
"""Our names of activations, by timm's."""
POOLS = {"token": "cls", "avg": "mean", "map": "map"}
"""Our names of pools, by timm's."""
BARE_STEM = "patch_embed.backbone."
"""What the names of a ResNet stem without stages begin with: timm omits the level ``stem.``."""

_FIRST = tuple(f"blocks.0.{name}.weight" for name in ("attn.qkv", "attn.q_proj", "in_proj", "attns.0.attn.qkv"))
"""Tensors of the first block, one of which every class of timm's has."""


def recognise(tensors: State) -> str | None:
    """Return the reason why these are timm's names, or None."""
    stem = next((name for name in ("patch_embed.proj.weight", "embeds.proj.weight") if name in tensors), None)
    first = next((name for name in _FIRST if name in tensors), None)
    if stem and first:
        origin = "facebookresearch/dinov2's" if "register_tokens" in tensors or "mask_token" in tensors else "timm's"
        return f"{origin} names ({stem.removesuffix('.weight')}, {first.removesuffix('.weight')})"
    return None


def read(source: ForeignCheckpoint, hints: Hints) -> ImportedModel:
    """Convert timm's tensors and config.json."""
    return read_translated(source, hints, {}, None)


def read_translated(
    source: ForeignCheckpoint, hints: Hints, of_release: Mapping[str, Any], images: Mapping[str, Any] | None
) -> ImportedModel:
    """Convert tensors under timm's names.

    Args:
        source: The tensors, and the documents beside them.
        hints: Facts that the user supplies.
        of_release: Arguments of timm's constructor that the release of the weights implies; config.json has precedence.
        images: How facebookresearch prepares them, in fields of PreprocessConfig; assumed if no document says it. None:
            only if the name of the file or of a tensor is facebookresearch's.
    """
    document = source.documents.get("config.json") or {}
    pretrained = document.get("pretrained_cfg") or document
    architecture, stated = str(document.get("architecture", "")), dict(document.get("model_args") or {})
    if why := refusal(architecture) or other_kind(source.tensors):
        raise CheckpointError(f"'{source.name}' is a timm model that vitreous does not support: {why}")
    tensors, reasons = source.tensors, list[str]()
    sidecar = read_sidecar(source) if is_sidecar(source.documents.get("sidecar")) else Sidecar()
    if sidecar.pipeline is not None:
        hints = replace(hints, image_size=hints.image_size or sidecar.pipeline.size)
    hints = replace(hints, heads=hints.heads or sidecar.heads)
    arguments = entry_arguments(architecture) | dict(of_release) | stated
    dinov2 = "mask_token" in tensors or "register_tokens" in tensors
    if images is None and (dinov2 or is_cropped(source.name)):
        images = {"crop_ratio": 0.875 if is_cropped(source.name) else 1.0}
    state, forms, biases = to_ours({_ours(name, tensors): t for name, t in tensors.items()})
    layout: dict[str, Any] = {"family": "timm", "names": "dinov2" if dinov2 else "timm", **forms}
    kept = {name: state.pop(name) for name in ("mask_token",) if name in state}
    kept |= {} if biases is None else {"distilled_bias": biases}
    known = _conventions(state, document, arguments, forms | {"dinov2": dinov2}, source.name)
    size = None if forms["embeds"] else arguments.get("img_size") or (pretrained.get("input_size") or [None, None])[1:]
    if isinstance(size, int) or (isinstance(size, list | tuple) and len(size) == 2 and all(size)):
        known["image_size"] = size if isinstance(size, int) else (int(size[0]), int(size[1]))
    if isinstance(arguments.get("num_heads"), int) and ("num_heads" in stated or hints.heads is None):
        known["heads"] = arguments["num_heads"]
        origin = "config.json, model_args" if "num_heads" in stated else f"timm's {architecture}"
        origin = "the periods of the rotary positions" if "num_heads" in of_release and not document else origin
        reasons.append(f"{known['heads']} heads: {origin}")
    config = config_from(state, source.name, hints, reasons, **known)
    if not document:
        reasons.append(
            "no config.json: exact GELU (--activation sets it) and norms before the residual branches are assumed"
        )
    if architecture:
        layout |= {"architecture": architecture, "arguments": stated}
        reasons.insert(0, f"timm architecture {architecture}: config.json")
    names = document.get("label_names") or pretrained.get("label_names")
    names = sidecar.classes if names is None else names
    classes = tuple(map(str, names)) if isinstance(names, list | tuple) and len(names) == config.num_classes else None
    pipeline = sidecar.pipeline
    if pretrained:
        pipeline = pipelines.from_timm(pretrained, config, source.name, reasons)
    elif pipeline is None and images is not None:
        pipeline = pipelines.of_facebookresearch(config, source.name, images)
        reasons.append("images are prepared as facebookresearch does: nothing beside the weights says")
    return ImportedModel("timm", config, state, layout, reasons, classes or None, pipeline, kept)


def _ours(name: str, tensors: State) -> str:
    if name in ("patch_embed.backbone.conv.weight", *(f"{BARE_STEM}norm.{part}" for part in ("weight", "bias"))):
        return name.replace(BARE_STEM, f"{BARE_STEM}stem.") if f"{BARE_STEM}conv.weight" in tensors else name
    return from_dinov2(name)


def _conventions(
    state: State, document: dict[str, Any], arguments: dict[str, Any], forms: dict[str, object], name: str
) -> dict[str, Any]:
    """Return the fields that tensor shapes do not determine."""
    activation = "silu" if is_gated(state) else arguments.get("act_layer") or "gelu"
    pool = document.get("global_pool") or arguments.get("global_pool")
    if pool is None:
        is_mean = "fc_norm.weight" in state or "cls_token" not in state
        pool = "map" if "attn_pool.latent" in state else "avg" if is_mean else "token"
    problems = [f"activation {activation}"] * (activation not in ACTIVATIONS)
    problems += [f"pooling {pool}"] * (pool not in POOLS)
    problems += [key for key in state if key.startswith(("head_dist.", "dist_token", "rope.", "pos_embed_x"))]
    problems += [
        f"{key} {value}"
        for key, value in arguments.items()
        if key not in _HARMLESS and value not in (*_OFF, *_EXPECTED.get(key, ()))
    ]
    problems += ["norms with biases, not norm_layer rmsnorm"] * (
        arguments.get("norm_layer") == "rmsnorm" and "blocks.0.norm1.bias" in state
    )
    apart = forms["qkv"] != "fused" or forms["scale"] == "gamma"  # as in timm's Eva, most of which rotate
    problems += ["a model whose rotary positions and epsilon no tensor shows: give the folder with its config.json"] * (
        not (document.get("architecture") or "norm_eps" in arguments)
        and ("norm_pre.weight" in state or (apart and "blocks.0.attn.relative_bias" not in state))
    )
    if problems:
        raise CheckpointError(f"'{name}' is a timm model that vitreous does not support: {join_first(problems)}")
    known: dict[str, Any] = {
        "mlp": {"activation": ACTIVATIONS[activation]},
        "pool": {"kind": POOLS[pool]},
        "norm_eps": arguments.get("norm_eps", 1e-6),
        "init": "timm",
        "position": rope_of(arguments, name),
    }
    if "pos_embed" in state:
        bilinear = arguments.get("pos_embed_interp_mode") == "bilinear"
        dinov2 = forms["dinov2"] and "reg_token" not in state  # with registers, its authors resample as timm does
        known["position"]["resample"] = "dinov2" if dinov2 else "siglip2" if bilinear else "timm"
    if any(key.startswith("patch_embed.backbone.") for key in state):
        known["stem"] = {"norm": "timm"}
    if arguments.get("block_fn") == "norm-after":
        known["block"] = {"kind": "norm-after"}
    if pool == "token" and "head.weight" in state and state["head.weight"].shape[1] > state["cls_token"].shape[2]:
        known["pool"]["kind"] = "prefix"  # two heads, which were joined
    elif pool != "token" and ("reg_token" in state or "cls_token" in state):
        eva = "attn_pool_num_heads" in arguments  # timm's Eva class pools all tokens by attention
        known["pool"]["prefix"] = bool(arguments.get("pool_include_prefix", pool == "map" and eva))
    if pool == "map" and arguments.get("attn_pool_num_heads"):
        known["pool"]["heads"] = arguments["attn_pool_num_heads"]
    return known
