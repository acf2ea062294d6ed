"""timm's Vision Transformers. Tensor names are the same as here, so most of the work is config.json and its defaults.

Also reads files of facebookresearch/dinov2, which differ in two names. Follows timm 1.0.20 to 1.0.31.
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
    OutgoingModel,
    State,
    beyond_the_paper,
    join_first,
)
from vitreous.checkpoint.adapters.meta import from_dinov2, is_cropped, to_dinov2, to_timm
from vitreous.checkpoint.adapters.shapes import config_from, is_gated, plain_size
from vitreous.checkpoint.adapters.timm_entries import entry_arguments, other_kind, refusal, rope_of
from vitreous.checkpoint.adapters.timm_forms import FORMS, from_ours, to_ours
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair
from vitreous.model.positions import Learned
from vitreous.model.stems import ResNetStem

__all__ = ["LAYOUT", "fixed_constants", "read", "recognise", "write"]

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
_ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_tanh": "gelu-tanh", "relu": "relu", "quick_gelu": "quick-gelu", "silu": "silu"},
}
_BACK = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
_POOLS = {"token": "cls", "avg": "mean", "map": "map"}
_SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge", 1408: "giant", 1664: "gigantic"}
_ENTRIES = {  # entry points that every timm version has; other sizes are written as base/16 with arguments
    *("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_small_patch32_224", "vit_base_patch8_224"),
    *("vit_base_patch16_224", "vit_base_patch32_224", "vit_large_patch16_224", "vit_large_patch32_224"),
    *("vit_huge_patch14_224", "vit_giant_patch14_224", "vit_gigantic_patch14_224"),
}
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_BARE_STEM = "patch_embed.backbone."  # a stem without stages; timm omits the level ``stem.``

_FIRST = tuple(f"blocks.0.{name}.weight" for name in ("attn.qkv", "attn.q_proj", "in_proj", "attns.0.attn.qkv"))
"""Tensors of the first block, one of which every class of timm's has."""

LAYOUT = {"names": ("timm", "dinov2"), **FORMS}
"""Entries of a layout and their allowed values."""


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
    document = source.documents.get("config.json") or {}
    pretrained = document.get("pretrained_cfg") or document
    architecture, stated = str(document.get("architecture", "")), dict(document.get("model_args") or {})
    if why := refusal(architecture) or other_kind(source.tensors):
        raise CheckpointError(f"'{source.name}' is a timm model that vitreous does not support: {why}")
    tensors, of_meta, reasons = to_timm(source.tensors, source.name)
    arguments = entry_arguments(architecture) | of_meta | stated
    dinov2 = "mask_token" in tensors or "register_tokens" in tensors
    crops = (bool(reasons) and not of_meta) or is_cropped(source.name)
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
        origin = "the periods of the rotary positions" if "num_heads" in of_meta and not document else origin
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
    classes = tuple(map(str, names)) if isinstance(names, list) and len(names) == config.num_classes else None
    pipeline = None
    if pretrained:
        pipeline = pipelines.from_timm(pretrained, config, source.name)
    elif dinov2 or of_meta or crops:
        pipeline = pipelines.of_facebookresearch(config, source.name, crop_ratio=0.875 if crops else 1.0)
        reasons.append("images are prepared as facebookresearch does: nothing beside the weights says")
    return ImportedModel("timm", config, state, layout, reasons, classes or None, pipeline, kept)


def _ours(name: str, tensors: State) -> str:
    if name in ("patch_embed.backbone.conv.weight", *(f"{_BARE_STEM}norm.{part}" for part in ("weight", "bias"))):
        return name.replace(_BARE_STEM, f"{_BARE_STEM}stem.") if f"{_BARE_STEM}conv.weight" in tensors else name
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
    problems = [f"activation {activation}"] * (activation not in _ACTIVATIONS)
    problems += [f"pooling {pool}"] * (pool not in _POOLS)
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
        "mlp": {"activation": _ACTIVATIONS[activation]},
        "pool": {"kind": _POOLS[pool]},
        "norm_eps": arguments.get("norm_eps", 1e-6),
        "init": "timm",
        "position": rope_of(arguments, name),
    }
    if "pos_embed" in state:
        bilinear = arguments.get("pos_embed_interp_mode") == "bilinear"
        known["position"]["resample"] = "dinov2" if forms["dinov2"] else "siglip2" if bilinear else "timm"
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


def fixed_constants(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that timm fixes at other values, and one line for the user on each."""
    changes: dict[str, Any] = {}
    notes = []
    if config.norm_eps not in (1e-6, 1e-5):
        changes["norm_eps"] = 1e-6
        notes.append(f"timm normalises with epsilon 1e-06, this model with {config.norm_eps:g}")
    if isinstance(config.stem, ResNetStem) and config.stem.norm != "timm":
        changes["stem"] = replace(config.stem, norm="timm")
        notes.append("timm's ResNet stem standardises with epsilons 1e-8 and 1e-5")
    return changes, notes


def write(model: OutgoingModel) -> ForeignCheckpoint:
    """Return timm's tensors and the config.json for ``timm.create_model("local-dir:...")``."""
    config, layout, kept = model.config, model.layout, dict(model.kept)
    dinov2 = layout.get("names") == "dinov2"
    known = bool(layout.get("architecture"))
    if not dinov2:
        unsupported = _unsupported(config)
        if _needs_entry(model):  # which then has all but these
            unsupported = {feature: used for feature, used in unsupported.items() if "--drop" in feature}
        model.raise_if_unsupported("timm", unsupported)
    forms = {name: layout.get(name) for name in FORMS} if known else {}
    tensors = from_ours(model.state, forms, kept.pop("distilled_bias", None), config.grid)
    if dinov2:
        tensors = {to_dinov2(name, is_gated(tensors)): tensor for name, tensor in tensors.items()}
    if _is_bare(config):
        tensors = {name.replace(f"{_BARE_STEM}stem.", _BARE_STEM): tensor for name, tensor in tensors.items()}
    tensors |= kept
    return ForeignCheckpoint(tensors, {"config.json": _document(model)})


def _is_bare(config: ViTConfig) -> bool:
    return isinstance(config.stem, ResNetStem) and not config.stem.layers


def _unsupported(c: ViTConfig) -> dict[str, bool]:
    uncommon = beyond_the_paper(c)
    for name in ("a norm in the MLP", "a norm of attention's output", f"activation {c.mlp.activation}"):
        uncommon.pop(name)
    if c.input_norm and getattr(c.stem, "bias", True) is False:  # timm has either both or none
        uncommon |= {"a norm before the blocks": False, "a patch projection without bias": False}
    return {
        **uncommon,
        f"stem {c.stem.kind}": not (c.stem.has_patch_kernel or isinstance(c.stem, ResNetStem)),
        f"stem.activation {c.stem.activation}": c.stem.activation != "none",
        f"position {c.position.kind}": c.position.kind not in ("learned", "none"),
        f"pool {c.pool.kind}": c.pool.kind not in _POOLS.values(),
        "a ResNet stem of other stages or width than timm's": isinstance(c.stem, ResNetStem)
        and (c.stem.layers not in _HYBRIDS or c.stem.width != 64),
        "pre_logits (--drop pre_logits leaves it out)": c.head.kind == "mlp",
        "a class token with a position beside registers without (--drop cls_position adds it to the token)": (
            isinstance(c.position, Learned) and c.position.prefix == "cls" and c.registers > 0 and c.has_class_token
        ),
    }


def _document(model: OutgoingModel) -> dict[str, Any]:
    """Return config.json: the entry point, all of its arguments, the evaluation pipeline and the labels."""
    config, classes = model.config, model.classes
    pool = {ours: theirs for theirs, ours in _POOLS.items()}.get(config.pool.kind, "token")
    pretrained = {
        "input_size": [config.in_channels, *pair(config.image_size)],
        "fixed_input_size": True,
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": "patch_embed.backbone.stem.conv" if isinstance(config.stem, ResNetStem) else "patch_embed.proj",
        "classifier": "head",
        **pipelines.to_timm(model.pipeline),
    }
    if _is_bare(config):
        pretrained["first_conv"] = "patch_embed.backbone.conv"
    document: dict[str, Any] = {
        "architecture": model.layout["architecture"] if _needs_entry(model) else _entry(config, model.layout),
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": pool,
        "model_args": _stated(config, model.layout) if _needs_entry(model) else _arguments(config, pool),
        "pretrained_cfg": pretrained,
    }
    if classes:
        document["label_names"] = list(classes)
    return document


def _entry(config: ViTConfig, layout: Mapping[str, Any]) -> str:
    """Return the name of the timm function that builds the model when given all arguments."""
    if isinstance(config.stem, ResNetStem):
        return _HYBRIDS[config.stem.layers]
    architecture = str(layout.get("architecture", ""))
    if architecture.startswith(("vit_", "deit", "beit3_", "flexivit_")):
        return architecture
    if config.norm_eps == 1e-5:
        return (
            "vit_base_patch16_clip_quickgelu_224"
            if config.mlp.activation == "quick-gelu"
            else "vit_base_patch16_clip_224"
        )
    entry = f"vit_{_SIZES.get(config.width)}_patch{pair(config.patch_size)[0]}_224"
    return entry if entry in _ENTRIES else "vit_base_patch16_224"


def _needs_entry(model: OutgoingModel) -> bool:
    """Return whether only the entry point that the model came from can build it, not arguments of VisionTransformer."""
    of_class = [used for feature, used in _unsupported(model.config).items() if "--drop" not in feature]
    return bool(model.layout.get("architecture")) and (bool(model.layout.get("embeds")) or any(of_class))


def _stated(c: ViTConfig, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the file that the model was read from, with what the user may have changed since."""
    arguments = dict(layout.get("arguments") or {})
    entry = entry_arguments(str(layout["architecture"]))
    size = plain_size(pair(c.image_size))
    plain = list(size) if isinstance(size, tuple) else size
    table = {"pos_embed_grid_size": list(c.grid)} if layout.get("embeds") else {"img_size": plain}
    patch = plain_size(pair(c.patch_size))
    arguments |= {**table, "in_chans": c.in_channels, "patch_size": list(patch) if isinstance(patch, tuple) else patch}
    activation = arguments.get("act_layer") or entry.get("act_layer") or "gelu"
    if c.mlp.kind == "dense" and _ACTIVATIONS.get(activation) != c.mlp.activation:
        arguments["act_layer"] = _BACK[c.mlp.activation]
    return arguments


def _arguments(c: ViTConfig, pool: str) -> dict[str, Any]:
    """Return every argument of timm's VisionTransformer that determines the model."""
    ratio = c.mlp_dim / c.width
    if int(c.width * ratio) != c.mlp_dim:  # timm truncates
        ratio = (c.mlp_dim + 0.5) / c.width
    cell = c.stem.reduction if isinstance(c.stem, ResNetStem) else 1
    patch = tuple(side // cell for side in pair(c.patch_size))
    arguments: dict[str, Any] = {
        "img_size": list(pair(c.image_size)),
        "patch_size": plain_size(patch),
        "in_chans": c.in_channels,
        "global_pool": pool,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": ratio,
        "qkv_bias": c.attention.qkv_bias,
        "qk_norm": c.attention.qk_norm,
        "init_values": 1e-5 if c.block.layer_scale is not None else None,
        "class_token": c.has_class_token,
        "no_embed_class": not (isinstance(c.position, Learned) and c.position.prefix_positions(c)),
        "reg_tokens": c.registers,
        "pos_embed": "learn" if c.position.kind == "learned" else "none",
        "final_norm": c.final_norm != "none",
        "fc_norm": c.final_norm == "pooled",
        "act_layer": _BACK[c.mlp.activation],
        "pre_norm": c.input_norm,
        "scale_attn_norm": c.attention.out_norm,
        "scale_mlp_norm": c.mlp.norm,
        "pool_include_prefix": getattr(c.pool, "prefix", False),
    }
    if not c.prefix_tokens:
        del arguments["pool_include_prefix"]
    return arguments
