"""Writes Hugging Face's files: tensors under their names, config.json and preprocessor_config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from vitreous.checkpoint.adapters import pipelines
from vitreous.checkpoint.adapters.common import (
    DECODER,
    OWN,
    ForeignCheckpoint,
    OutgoingModel,
    State,
    beyond_the_paper,
    has_decoder,
)
from vitreous.checkpoint.adapters.huggingface.names import (
    ACTIVATIONS,
    FIRST_KINDS,
    KINDS,
    NAMINGS,
    PREFIXES,
    PROBLEM,
    SEVERAL,
    Naming,
    translate,
)
from vitreous.checkpoint.adapters.shapes import plain_size
from vitreous.checkpoint.adapters.stacking import cut, cut_heads, prefixes, rows_of_kernel
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair
from vitreous.model.heads import MlpHead
from vitreous.model.mlp import MlpConfig
from vitreous.model.pools import ClassTokenMean
from vitreous.model.positions import Learned

__all__ = ["LAYOUT", "fixed_constants", "write"]

_BACK = {
    "gelu": "gelu",
    "gelu-tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "quick-gelu": "quick_gelu",
    "silu": "silu",
}
_CLASSIFIER = "ForImageClassification"  # end of the names of classes
_MEAN_OF_CLASSIFIER = ("clip", "siglip", "siglip2", "data2vec-vision")  # only their classifiers average tokens

LAYOUT = {
    "prefix": PREFIXES,
    "names": tuple(NAMINGS),
    "kind": tuple(KINDS),
    "blocks": (None, *PREFIXES),
    "distilled": (None, True),
    "registers": (None, "empty"),
}
"""Entries of a layout and their allowed values; None in files from before they existed."""


def fixed_constants(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return nothing: config.json sets every constant of Hugging Face's models."""
    return {}, []


def write(model: OutgoingModel) -> ForeignCheckpoint:
    """Return files for ``from_pretrained`` of the class that the model came from, or of ``ViTModel`` and its like."""
    config, kept = model.config, dict(model.kept)
    layout = model.layout if config.num_classes else _without_head(model.layout)
    same_family = layout.get("family") == "huggingface"
    kind = layout["kind"] if same_family else _kind(config)
    if kind in FIRST_KINDS:
        model.raise_if_unsupported("Hugging Face", _unsupported(config, kind, kept), keeps=True)
    names = layout["names"] if same_family else "vit" if kind == "vit" else "dinov2"
    prefix = f"{kind}." if config.num_classes and kind in FIRST_KINDS else layout["prefix"] if same_family else ""
    before = prefix if kind in FIRST_KINDS else layout.get("blocks") or ""
    state = _their_shapes(model.state, layout, kept)
    tensors = _their_names(state, NAMINGS[names], prefix, before)
    for name, tensor in kept.items():
        if name.startswith(DECODER):
            tensors[name] = tensor
        elif name not in OWN:
            tensors[f"{prefix}{'' if name.startswith('post_layernorm.') else 'embeddings.'}{name}"] = tensor
    document = (
        _document(config, kind, model.classes, "mask_token" in kept)
        if kind in FIRST_KINDS
        else _updated(dict(layout["document"]), kind, config, model.classes)
    )
    if model.several or document.get(PROBLEM) == SEVERAL:
        document[PROBLEM] = SEVERAL if model.several else None
    documents = {
        "config.json": document,
        "preprocessor_config.json": pipelines.to_huggingface(model.pipeline),
    }
    return ForeignCheckpoint(tensors, documents)


def _without_head(layout: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the layout of a model whose head was left out, as that of its encoder alone; others stay as they are."""
    document = layout.get("document") or {}
    if not str((document.get("architectures") or [""])[0]).endswith(_CLASSIFIER):
        return layout
    kind = layout["kind"]
    if kind in _MEAN_OF_CLASSIFIER:
        raise CheckpointError(
            f"transformers has no class for {kind} that averages the tokens without a classifier: keep the head, or "
            "write a model file"
        )
    left = {name: value for name, value in document.items() if name not in ("id2label", "label2id", "num_labels")}
    own = {"architectures": [f"{KINDS[kind].classes}Model"]}
    return {**layout, "document": {**left, **own}, "prefix": "", "blocks": ""}


def _their_shapes(ours: State, layout: Any, kept: State) -> State:
    """Return the tensors in the shapes that their files have; `kept` loses what becomes part of others."""
    state, naming = dict(ours), NAMINGS[layout["names"]] if layout.get("family") == "huggingface" else NAMINGS["vit"]
    biases = kept.pop("distilled_bias", None)
    if layout.get("distilled"):
        cut_heads(state, biases)
    if naming is NAMINGS["clip"]:
        if "cls_token" in state:
            state["cls_token"] = state["cls_token"][0, 0]
        state["pos_embed"] = state["pos_embed"][0]
        if layout["kind"].startswith("siglip2"):
            state["patch_embed.proj.weight"] = rows_of_kernel(state["patch_embed.proj.weight"])
        for kind in ("weight", "bias"):
            if f"attn_pool.q.{kind}" in state:
                parts = [state.pop(f"attn_pool.{part}.{kind}") for part in ("q", "kv")]
                state[f"head.attention.in_proj_{kind}"] = torch.cat(parts)
    if layout.get("registers") == "empty":
        state["reg_token"] = state["cls_token"].new_zeros(1, 0, state["cls_token"].shape[2])
    gated = "gate" in naming.inside.values()
    for block in prefixes(state):
        attn = f"{block}attn."
        for kind in ("weight", "bias"):
            tensor = state.get(f"{attn}qkv.{kind}")
            if tensor is not None:
                all_three = kind == "weight" or len(tensor) == 3 * state[f"{attn}proj.weight"].shape[1]
                names = ("query", "key", "value") if all_three else ("query", "value")
                cut(state, f"{attn}qkv.{kind}", [f"{block}{name}.{kind}" for name in names])
            if gated:
                cut(state, f"{block}mlp.fc1.{kind}", [f"{block}{part}.{kind}" for part in ("gate", "up")])
    return state


def _their_names(state: State, naming: Naming, prefix: str, before: str) -> State:
    """Return the tensors under their names; `before` precedes those of blocks, `prefix` the others."""
    back = {ours: theirs for theirs, ours in (naming.inside | naming.optional).items()}
    outside = {ours: theirs for theirs, ours in naming.outside.items()}
    if "head_dist.weight" not in state:
        outside["head"] = "classifier"
    tensors: State = {}
    for name, tensor in state.items():
        match = re.match(r"blocks\.(\d+)\.(.+)$", name)
        if match:
            tensors[f"{before}{naming.blocks}{match[1]}.{translate(match[2], back)}"] = tensor
        else:
            theirs = name if name.startswith("head.attention.") else translate(name, outside) or name
            own = "" if theirs.startswith(("classifier.", "cls_classifier.", "distillation_", "visual_")) else prefix
            tensors[f"{own}{theirs}"] = tensor
    return tensors


def _updated(document: dict[str, Any], kind: str, config: ViTConfig, classes: tuple[str, ...]) -> dict[str, Any]:
    """Return the config.json that a model was read from, with what the user may have changed since."""
    vision = document.get("vision_config")
    changes: dict[str, Any] = {
        "image_size": plain_size(pair(config.image_size)),
        "patch_size": plain_size(pair(config.patch_size)),
        "num_channels": config.in_channels,
    }
    if kind.startswith("siglip2"):  # which takes images of any size, but has positions for a grid
        changes["num_patches"] = config.grid[0] * config.grid[1]
    before = (vision or document).get("hidden_act", KINDS[kind].activation)
    if ACTIVATIONS[before] != config.mlp.activation:
        changes["hidden_act"] = _BACK[config.mlp.activation]
    if isinstance(vision, dict):
        document["vision_config"] = {**vision, **changes}
    else:
        document |= changes
    if config.num_classes:
        document["id2label"] = {str(i): name for i, name in enumerate(classes)}
        document["label2id"] = {name: i for i, name in enumerate(classes)}
    return document


def _kind(c: ViTConfig) -> str:
    """Return the model_type that can express the model."""
    if c.registers:
        return "dinov2_with_registers"
    return "dinov2" if c.block.layer_scale is not None else "vit"


def _unsupported(c: ViTConfig, kind: str, kept: State) -> dict[str, bool]:
    dino = kind != "vit"
    on_token = dino and c.num_classes > 0 and c.pool.kind == "cls"
    prefix = c.position.prefix if isinstance(c.position, Learned) else "cls"
    uncommon = beyond_the_paper(c)
    if dino:  # DINOv2 giant has a gated one
        uncommon.pop(f"mlp {c.mlp.kind}")
        uncommon["a gated MLP with another activation than silu"] = c.mlp.kind == "gated" and c.mlp.activation != "silu"
    return {
        **uncommon,
        f"stem {c.stem.kind}": not c.stem.has_patch_kernel,
        f"stem.activation {c.stem.activation}": c.stem.activation != "none",
        f"position {c.position.kind}": c.position.kind != "learned",
        "registers with position embeddings": prefix == "all" and c.registers > 0,
        "a class token without a position (--add cls_position writes one of zeros)": prefix == "none",
        f"pool {c.pool.kind}": c.pool.kind != ("cls-mean" if dino and c.num_classes else "cls") and not on_token,
        "a mean over registers": isinstance(c.pool, ClassTokenMean) and c.pool.prefix,
        f"final_norm {c.final_norm}": c.final_norm != "tokens",
        "QK-norm": c.attention.qk_norm,
        "registers without LayerScale": c.registers > 0 and c.block.layer_scale is None,
        "pre_logits before a classifier (--drop pre_logits leaves it out)": c.head.kind == "mlp" and c.num_classes > 0,
        "a DINOv2 with a classifier on the class token alone (--drop head leaves it out)": on_token,
        "a DINOv2 with a pooler (--drop pre_logits leaves it out)": dino and c.head.kind == "mlp",
        f"a DINOv2 with MLP {c.mlp_dim}, not a multiple of its width": dino
        and c.mlp.kind == MlpConfig.kind
        and c.mlp_dim % c.width != 0,
        "a decoder (--drop decoder leaves it out)": has_decoder(kept),
        "registers without a mask token (--add mask_token writes one of zeros)": c.registers > 0
        and "mask_token" not in kept,
    }


def _document(config: ViTConfig, kind: str, classes: tuple[str, ...], masked: bool) -> dict[str, Any]:
    size, patch = pair(config.image_size), pair(config.patch_size)
    class_prefix = {"vit": "ViT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[kind]
    document: dict[str, Any] = {
        "architectures": [f"{class_prefix}{'ForImageClassification' if config.num_classes else 'Model'}"],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu" if config.mlp.kind == "gated" else _BACK[config.mlp.activation],
        "layer_norm_eps": config.norm_eps,
        "image_size": plain_size(size),
        "patch_size": plain_size(patch),
        "num_channels": config.in_channels,
        "qkv_bias": config.attention.qkv_bias,
        "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
        "initializer_range": 0.02,
    }
    if kind == "vit":
        document |= {"intermediate_size": config.mlp_dim, "encoder_stride": patch[0]}
        if isinstance(config.head, MlpHead):
            document |= {"pooler_output_size": config.features, "pooler_act": config.head.activation}
    else:
        gated = config.mlp.kind == "gated"  # the hidden layer is then two thirds of the stated one, rounded up to 8
        ratio = round(config.mlp_dim * 1.5 / config.width) if gated else config.mlp_dim // config.width
        document |= {"mlp_ratio": ratio, "layerscale_value": 1.0, "use_swiglu_ffn": gated}
        document |= {"num_register_tokens": config.registers} if config.registers else {"use_mask_token": masked}
    if config.num_classes:
        document["id2label"] = {str(i): name for i, name in enumerate(classes)}
        document["label2id"] = {name: i for i, name in enumerate(classes)}
    return document
