"""Writes timm's files: tensors under its names, and a config.json with every argument (timm 1.0.20 to 1.0.31)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitreous.checkpoint.adapters import pipelines
from vitreous.checkpoint.adapters.common import (
    OWN,
    ForeignCheckpoint,
    OutgoingModel,
    beyond_the_paper,
    note_on_epsilon,
)
from vitreous.checkpoint.adapters.releases import to_dinov2
from vitreous.checkpoint.adapters.shapes import is_gated, plain_size
from vitreous.checkpoint.adapters.timm.entries import entry_arguments
from vitreous.checkpoint.adapters.timm.forms import FORMS, from_ours
from vitreous.checkpoint.adapters.timm.reading import ACTIVATIONS, BARE_STEM, POOLS
from vitreous.model.config import ViTConfig, pair
from vitreous.model.positions import Learned
from vitreous.model.stems import ResNetStem

__all__ = ["LAYOUT", "fixed_constants", "write"]

_BACK = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
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

LAYOUT = {"names": ("timm", "dinov2"), **FORMS}
"""Entries of a layout and their allowed values."""


def fixed_constants(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that timm fixes at other values, and one line for the user on each."""
    changes: dict[str, Any] = {}
    notes = []
    if config.norm_eps not in (1e-6, 1e-5):
        changes["norm_eps"] = 1e-6
        notes.append(note_on_epsilon("timm", 1e-6, config))
    if isinstance(config.stem, ResNetStem) and config.stem.norm != "timm":
        changes["stem"] = replace(config.stem, norm="timm")
        notes.append("timm's ResNet stem standardises with epsilons 1e-8 and 1e-5")
    return changes, notes


def write(model: OutgoingModel) -> ForeignCheckpoint:
    """Return timm's tensors and the config.json for ``timm.create_model("local-dir:...")``."""
    config, layout, biases = model.config, model.layout, model.kept.get("distilled_bias")
    kept = {name: tensor for name, tensor in model.kept.items() if name not in OWN}
    dinov2 = layout.get("names") == "dinov2"
    known = bool(layout.get("architecture"))
    if not dinov2:
        unsupported = _unsupported(config)
        if _needs_entry(model):  # which then has all but these
            unsupported = {feature: used for feature, used in unsupported.items() if "--drop" in feature}
        model.raise_if_unsupported("timm", unsupported)
    forms = {name: layout.get(name) for name in FORMS} if known else {}
    tensors = from_ours(model.state, forms, biases, config.grid)
    if dinov2:
        tensors = {to_dinov2(name, is_gated(tensors)): tensor for name, tensor in tensors.items()}
    if _is_bare(config):
        tensors = {name.replace(f"{BARE_STEM}stem.", BARE_STEM): tensor for name, tensor in tensors.items()}
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
        f"pool {c.pool.kind}": c.pool.kind not in POOLS.values(),
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
    pool = {ours: theirs for theirs, ours in POOLS.items()}.get(config.pool.kind, "token")
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
    if c.mlp.kind == "dense" and ACTIVATIONS.get(activation) != c.mlp.activation:
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
