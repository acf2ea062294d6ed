"""timm's Vision Transformers: this package's names are timm's, so the work is in config.json and its conventions.

Also the files of facebookresearch/dinov2, which differ by two names. Read against timm 1.0.20 to 1.0.31.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitreous.checkpoint.adapters.common import Foreign, Hints, Imported, Outgoing, State, Written, few, refuse
from vitreous.checkpoint.adapters.pipelines import pipeline_from_timm, pipeline_to_timm
from vitreous.checkpoint.adapters.shapes import config_from
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair

__all__ = ["LAYOUT", "adopt", "read", "recognise", "write"]

_TANH = (  # timm.models.vision_transformer: entries with act_layer='gelu_tanh' of their own
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
"""Heads of entries whose heads are not 64 wide and whose width and depth others share."""
_POOLS_PREFIX = ("test_vit3",)  # entries with pool_include_prefix=True of their own
_HARMLESS = {  # arguments of timm's VisionTransformer that no forward pass in evaluation reads, or that shapes show
    *("img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "qkv_bias", "qk_norm", "init_values", "class_token", "no_embed_class", "reg_tokens", "final_norm"),
    *("fc_norm", "pool_include_prefix", "dynamic_img_size", "dynamic_img_pad", "strict_img_size", "act_layer"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "pos_embed", "proj_bias", "exportable", "scriptable"),
}
_OFF = (None, False, "layernorm")  # the value of an argument that changes nothing
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu-tanh", "relu": "relu"}
_BACK = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
_POOLS = {"token": "cls", "avg": "mean", "map": "map"}
_SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge", 1408: "giant", 1664: "gigantic"}
_ENTRIES = {  # entry points that exist in every timm for the plain sizes; others are base/16 with arguments
    "vit_tiny_patch16_224",
    "vit_small_patch16_224",
    "vit_small_patch32_224",
    "vit_base_patch8_224",
    "vit_base_patch16_224",
    "vit_base_patch32_224",
    "vit_large_patch16_224",
    "vit_large_patch32_224",
    "vit_huge_patch14_224",
    "vit_giant_patch14_224",
    "vit_gigantic_patch14_224",
}
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_RENAMED = {"register_tokens": "reg_token", "mask_token": "mask_token"}  # facebookresearch/dinov2
_BARE_STEM = "patch_embed.backbone."  # timm's stem without stages has no level of its own

LAYOUT = {"names": ("timm", "dinov2")}
"""What a layout says, with the values that it may have."""


def recognise(tensors: State) -> str | None:
    """Say why these are timm's names, or None."""
    if "patch_embed.proj.weight" in tensors and any(name.startswith("blocks.0.attn.qkv.") for name in tensors):
        origin = "facebookresearch/dinov2's" if "register_tokens" in tensors or "mask_token" in tensors else "timm's"
        return f"{origin} names (patch_embed.proj, blocks.0.attn.qkv)"
    return None


def read(source: Foreign, hints: Hints) -> Imported:
    """Take timm's tensors and config.json.

    Raises:
        CheckpointError: If the shapes or the configuration are none that this package can be true to.
    """
    document = source.documents.get("config.json") or {}
    arguments = document.get("model_args") or {}
    given = document.get("pretrained_cfg") or document
    architecture = str(document.get("architecture", ""))
    layout: dict[str, Any] = {"family": "timm", "names": "dinov2" if _is_dinov2(source.tensors) else "timm"}
    state = {_ours(name, source.tensors): tensor for name, tensor in source.tensors.items()}
    kept = {name: state.pop(name) for name in ("mask_token",) if name in state}
    reasons: list[str] = []
    known = _conventions(state, document, _is_dinov2(source.tensors), source.name)
    size = arguments.get("img_size") or (given.get("input_size") or [None, None])[1:]
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
            "no config.json: exact GELU and norms before the branches are assumed (--activation sets the first)"
        )
    if architecture:
        layout["architecture"] = architecture
        reasons.insert(0, f"timm architecture {architecture}: config.json")
    names = document.get("label_names") or given.get("label_names")
    classes = tuple(map(str, names)) if isinstance(names, list) and len(names) == config.num_classes else None
    pipeline = pipeline_from_timm(given, config, source.name) if given else None
    return Imported("timm", config, state, layout, reasons, classes or None, pipeline, kept)


def _is_dinov2(tensors: State) -> bool:
    return "mask_token" in tensors or "register_tokens" in tensors


def _ours(name: str, tensors: State) -> str:
    if name in ("patch_embed.backbone.conv.weight", *(f"{_BARE_STEM}norm.{part}" for part in ("weight", "bias"))):
        return name.replace(_BARE_STEM, f"{_BARE_STEM}stem.") if f"{_BARE_STEM}conv.weight" in tensors else name
    return _RENAMED.get(name, name)


def _conventions(state: State, document: dict[str, Any], dinov2: bool, name: str) -> dict[str, Any]:
    """Fields that no shape shows."""
    arguments, architecture = document.get("model_args") or {}, str(document.get("architecture", ""))
    activation = arguments.get("act_layer") or ("gelu_tanh" if architecture.startswith(_TANH) else "gelu")
    pool = document.get("global_pool") or arguments.get("global_pool")
    if pool is None:
        pool = "map" if "attn_pool.latent" in state else "avg" if "fc_norm.weight" in state else None
    if pool is None:
        pool = "token" if "cls_token" in state else "avg"
    problems = [f"activation {activation}"] * (activation not in _ACTIVATIONS)
    problems += [f"pooling {pool}"] * (pool not in _POOLS)
    foreign = [key for key in state if key.startswith(("norm_pre.", "head_dist.", "dist_token", "rope."))]
    problems += [f"{key}" for key in foreign]
    problems += [f"{key} {value}" for key, value in arguments.items() if key not in _HARMLESS and value not in _OFF]
    problems += ["norms after the residual branches"] * ("_rpn_" in architecture)
    if problems:
        raise CheckpointError(f"'{name}' is a timm model of a kind that vitreous has not: {few(problems)}")
    known: dict[str, Any] = {
        "activation": _ACTIVATIONS[activation],
        "pool": _POOLS[pool],
        "norm_eps": 1e-6,
        "resample": "dinov2" if dinov2 else "timm",
        "resnet_norm": "timm",
        "init": "timm",
    }
    if "reg_token" in state or ("cls_token" in state and pool != "token"):
        prefix = bool(arguments.get("pool_include_prefix", architecture in _POOLS_PREFIX))
        known["pool_prefix"] = prefix if pool != "token" else None
    return known


def adopt(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the constants that timm cannot be told and replaces by its own, as fields and as lines for people."""
    changes: dict[str, Any] = {}
    notes = []
    if config.norm_eps != 1e-6:
        changes["norm_eps"] = 1e-6
        notes.append(f"timm normalises with epsilon 1e-06, this model with {config.norm_eps:g}")
    if config.stem == "resnet" and config.resnet_norm != "timm":
        changes["resnet_norm"] = "timm"
        notes.append("timm's ResNet stem standardises with constants of its own (1e-8 and 1e-5)")
    return changes, notes


def write(model: Outgoing) -> Written:
    """Give timm's tensors and a config.json that ``timm.create_model("local-dir:...")`` reads.

    Raises:
        CheckpointError: If timm has no such model: everything that it cannot express, in one error.
    """
    config, layout, kept = model.config, model.layout, model.kept
    dinov2 = layout.get("names") == "dinov2"
    refuse("timm", [] if dinov2 else [*_problems(config), *(f"{name} (--drop {name} leaves it out)" for name in kept)])
    back = {ours: theirs for theirs, ours in _RENAMED.items()} if dinov2 else {}
    tensors = {back.get(name, name): tensor for name, tensor in model.state.items()}
    if config.stem == "resnet" and not config.resnet_layers:
        tensors = {name.replace(f"{_BARE_STEM}stem.", _BARE_STEM): tensor for name, tensor in tensors.items()}
    tensors |= kept
    return Written(tensors, {"config.json": _document(model)})


def _problems(c: ViTConfig) -> list[str]:
    """Everything that timm's VisionTransformer has no argument for."""
    odd = {
        f"stem {c.stem}": c.stem == "conv",
        f"patch_activation {c.patch_activation}": c.patch_activation != "none",
        f"position {c.position}": c.position not in ("learned", "none"),
        f"pool {c.pool}": c.pool not in _POOLS.values(),
        f"a ResNet stem of stages {c.resnet_layers} and width {c.resnet_width}": c.stem == "resnet"
        and (c.resnet_layers not in _HYBRIDS or c.resnet_width != 64),
        "pre_logits (--drop pre_logits leaves it out)": c.head == "mlp",
    }
    problems = [what for what, is_odd in odd.items() if is_odd]
    if c.position_prefix == "cls" and c.registers and c.has_class_token:
        problems.append("a position of the class token beside registers without (--drop cls_position folds it in)")
    return problems


def _document(model: Outgoing) -> dict[str, Any]:
    """Return config.json: the entry point, every argument spelled out, the evaluation pipeline and the labels."""
    config, classes = model.config, model.classes
    pool = {ours: theirs for theirs, ours in _POOLS.items()}[config.pool]
    pretrained = {
        "input_size": [config.in_channels, *pair(config.image_size)],
        "fixed_input_size": True,
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": "patch_embed.backbone.stem.conv" if config.stem == "resnet" else "patch_embed.proj",
        "classifier": "head",
        **pipeline_to_timm(model.pipeline),
    }
    if config.stem == "resnet" and not config.resnet_layers:
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
    """The name of the timm function that builds it, given the arguments."""
    if config.stem == "resnet":
        return _HYBRIDS[config.resnet_layers]
    named = str(layout.get("architecture", ""))
    if named.startswith(("vit_", "deit_")):
        return named
    entry = f"vit_{_SIZES.get(config.width)}_patch{pair(config.patch_size)[0]}_224"
    return entry if entry in _ENTRIES else "vit_base_patch16_224"


def _arguments(c: ViTConfig, pool: str) -> dict[str, Any]:
    """Every argument of timm's VisionTransformer that shapes the model."""
    ratio = c.mlp_dim / c.width
    if int(c.width * ratio) != c.mlp_dim:  # timm truncates
        ratio = (c.mlp_dim + 0.5) / c.width
    cell = 4 << max(0, len(c.resnet_layers) - 1) if c.stem == "resnet" else 1
    patch = tuple(side // cell for side in pair(c.patch_size))
    arguments: dict[str, Any] = {
        "img_size": list(pair(c.image_size)),
        "patch_size": patch[0] if patch[0] == patch[1] else list(patch),
        "in_chans": c.in_channels,
        "global_pool": pool,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": ratio,
        "qkv_bias": c.qkv_bias,
        "qk_norm": c.qk_norm,
        "init_values": 1e-5 if c.layer_scale is not None else None,
        "class_token": c.has_class_token,
        "no_embed_class": not {"none": 0, "cls": int(c.has_class_token), "all": c.prefix_tokens}[c.position_prefix],
        "reg_tokens": c.registers,
        "pos_embed": "learn" if c.position == "learned" else "none",
        "final_norm": c.final_norm != "none",
        "fc_norm": c.final_norm == "pooled",
        "act_layer": _BACK[c.activation],
        "pool_include_prefix": c.pools_prefix,
    }
    if not c.prefix_tokens:
        del arguments["pool_include_prefix"]
    return arguments
