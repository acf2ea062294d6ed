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
    join_first,
)
from vitreous.checkpoint.adapters.shapes import config_from, plain_size
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair
from vitreous.model.positions import Learned
from vitreous.model.stems import ResNetStem

__all__ = ["LAYOUT", "fixed_constants", "read", "recognise", "write"]

_TANH_GELU = (  # timm.models.vision_transformer: entry points that set act_layer='gelu_tanh'
    "vit_base_patch32_siglip_",
    "vit_large_patch16_siglip_512",
    "vit_large_patch16_siglip_gap_512",
    "vit_so400m_patch16_siglip_",
    "vit_giantopt_patch16_siglip_",
)
_HEADS = {
    **{"vit_base_patch16_gap_224": 16, "test_vit": 2, "test_vit2": 2, "test_vit3": 3},
    **{f"vit_giantopt_patch16_siglip_{kind}": 16 for kind in ("256", "384", "gap_256", "gap_384")},
}
"""Heads of entry points that do not have 64 channels per head and that width and depth do not identify."""
_POOLS_PREFIX = ("test_vit3",)  # entry points that set pool_include_prefix=True
_HARMLESS = {  # arguments of timm's VisionTransformer that evaluation does not use or that tensor shapes show
    *("img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "qkv_bias", "qk_norm", "init_values", "class_token", "no_embed_class", "reg_tokens", "final_norm"),
    *("fc_norm", "pool_include_prefix", "dynamic_img_size", "dynamic_img_pad", "strict_img_size", "act_layer"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "pos_embed", "proj_bias", "exportable", "scriptable"),
}
_OFF = (None, False, "layernorm")  # values by which any other argument is off
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu-tanh", "relu": "relu"}
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
_RENAMED = {"register_tokens": "reg_token", "mask_token": "mask_token"}  # facebookresearch/dinov2
_BARE_STEM = "patch_embed.backbone."  # a stem without stages; timm omits the level ``stem.``

LAYOUT = {"names": ("timm", "dinov2")}
"""Entries of a layout and their allowed values."""


def recognise(tensors: State) -> str | None:
    """Return the reason why these are timm's names, or None."""
    if "patch_embed.proj.weight" in tensors and any(name.startswith("blocks.0.attn.qkv.") for name in tensors):
        origin = "facebookresearch/dinov2's" if "register_tokens" in tensors or "mask_token" in tensors else "timm's"
        return f"{origin} names (patch_embed.proj, blocks.0.attn.qkv)"
    return None


def read(source: ForeignCheckpoint, hints: Hints) -> ImportedModel:
    """Convert timm's tensors and config.json."""
    document = source.documents.get("config.json") or {}
    arguments = document.get("model_args") or {}
    pretrained = document.get("pretrained_cfg") or document
    architecture = str(document.get("architecture", ""))
    dinov2 = "mask_token" in source.tensors or "register_tokens" in source.tensors
    layout: dict[str, Any] = {"family": "timm", "names": "dinov2" if dinov2 else "timm"}
    state = {_ours(name, source.tensors): tensor for name, tensor in source.tensors.items()}
    kept = {name: state.pop(name) for name in ("mask_token",) if name in state}
    reasons: list[str] = []
    known = _conventions(state, document, dinov2, source.name)
    size = arguments.get("img_size") or (pretrained.get("input_size") or [None, None])[1:]
    if isinstance(size, int) or (isinstance(size, list | tuple) and len(size) == 2 and all(size)):
        known["image_size"] = size if isinstance(size, int) else (int(size[0]), int(size[1]))
    if isinstance(arguments.get("num_heads"), int):
        known["heads"] = arguments["num_heads"]
        reasons.append(f"{known['heads']} heads: config.json, model_args")
    elif architecture in _HEADS and hints.heads is None:
        known["heads"] = _HEADS[architecture]
        reasons.append(f"{known['heads']} heads: timm's {architecture}")
    config = config_from(state, source.name, hints, reasons, **known)
    if not document:
        reasons.append(
            "no config.json: exact GELU (--activation sets it) and norms before the residual branches are assumed"
        )
    if architecture:
        layout["architecture"] = architecture
        reasons.insert(0, f"timm architecture {architecture}: config.json")
    names = document.get("label_names") or pretrained.get("label_names")
    classes = tuple(map(str, names)) if isinstance(names, list) and len(names) == config.num_classes else None
    pipeline = pipelines.from_timm(pretrained, config, source.name) if pretrained else None
    return ImportedModel("timm", config, state, layout, reasons, classes or None, pipeline, kept)


def _ours(name: str, tensors: State) -> str:
    if name in ("patch_embed.backbone.conv.weight", *(f"{_BARE_STEM}norm.{part}" for part in ("weight", "bias"))):
        return name.replace(_BARE_STEM, f"{_BARE_STEM}stem.") if f"{_BARE_STEM}conv.weight" in tensors else name
    return _RENAMED.get(name, name)


def _conventions(state: State, document: dict[str, Any], dinov2: bool, name: str) -> dict[str, Any]:
    """Return the fields that tensor shapes do not determine."""
    arguments, architecture = document.get("model_args") or {}, str(document.get("architecture", ""))
    activation = arguments.get("act_layer") or ("gelu_tanh" if architecture.startswith(_TANH_GELU) else "gelu")
    pool = document.get("global_pool") or arguments.get("global_pool")
    if pool is None:
        is_mean = "fc_norm.weight" in state or "cls_token" not in state
        pool = "map" if "attn_pool.latent" in state else "avg" if is_mean else "token"
    problems = [f"activation {activation}"] * (activation not in _ACTIVATIONS)
    problems += [f"pooling {pool}"] * (pool not in _POOLS)
    problems += [key for key in state if key.startswith(("norm_pre.", "head_dist.", "dist_token", "rope."))]
    problems += [f"{key} {value}" for key, value in arguments.items() if key not in _HARMLESS and value not in _OFF]
    problems += ["norms after the residual branches"] * ("_rpn_" in architecture)
    if problems:
        raise CheckpointError(f"'{name}' is a timm model that vitreous does not support: {join_first(problems)}")
    known: dict[str, Any] = {
        "mlp": {"activation": _ACTIVATIONS[activation]},
        "pool": {"kind": _POOLS[pool]},
        "norm_eps": 1e-6,
        "init": "timm",
    }
    if "pos_embed" in state:
        known["position"] = {"resample": "dinov2" if dinov2 else "timm"}
    if any(key.startswith("patch_embed.backbone.") for key in state):
        known["stem"] = {"norm": "timm"}
    if pool != "token" and ("reg_token" in state or "cls_token" in state):
        known["pool"]["prefix"] = bool(arguments.get("pool_include_prefix", architecture in _POOLS_PREFIX))
    return known


def fixed_constants(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that timm fixes at other values, and one line for the user on each."""
    changes: dict[str, Any] = {}
    notes = []
    if config.norm_eps != 1e-6:
        changes["norm_eps"] = 1e-6
        notes.append(f"timm normalises with epsilon 1e-06, this model with {config.norm_eps:g}")
    if isinstance(config.stem, ResNetStem) and config.stem.norm != "timm":
        changes["stem"] = replace(config.stem, norm="timm")
        notes.append("timm's ResNet stem standardises with epsilons 1e-8 and 1e-5")
    return changes, notes


def write(model: OutgoingModel) -> ForeignCheckpoint:
    """Return timm's tensors and the config.json for ``timm.create_model("local-dir:...")``."""
    config, layout, kept = model.config, model.layout, model.kept
    dinov2 = layout.get("names") == "dinov2"
    if not dinov2:
        model.raise_if_unsupported("timm", _unsupported(config))
    back = {ours: theirs for theirs, ours in _RENAMED.items()} if dinov2 else {}
    tensors = {back.get(name, name): tensor for name, tensor in model.state.items()}
    if _is_bare(config):
        tensors = {name.replace(f"{_BARE_STEM}stem.", _BARE_STEM): tensor for name, tensor in tensors.items()}
    tensors |= kept
    return ForeignCheckpoint(tensors, {"config.json": _document(model)})


def _is_bare(config: ViTConfig) -> bool:
    return isinstance(config.stem, ResNetStem) and not config.stem.layers


def _unsupported(c: ViTConfig) -> dict[str, bool]:
    return {
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
    pool = {ours: theirs for theirs, ours in _POOLS.items()}[config.pool.kind]
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
        "architecture": _entry(config, model.layout),
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": pool,
        "model_args": _arguments(config, pool),
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
    if architecture.startswith(("vit_", "deit_")):
        return architecture
    entry = f"vit_{_SIZES.get(config.width)}_patch{pair(config.patch_size)[0]}_224"
    return entry if entry in _ENTRIES else "vit_base_patch16_224"


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
        "pool_include_prefix": getattr(c.pool, "prefix", False),
    }
    if not c.prefix_tokens:
        del arguments["pool_include_prefix"]
    return arguments
