"""Reads Hugging Face's Vision Transformers: safetensors, config.json and preprocessor_config.json.

Query, key and value are separate tensors there and one fused tensor here. DINOv2's classifiers take the class token
concatenated with the mean of the patch tokens; a DeiT with a teacher has two classifiers, whose mean is one on both
tokens. Of models with a text tower or a decoder, only the encoder of images is read.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from vitreous.checkpoint.adapters import pipelines
from vitreous.checkpoint.adapters.common import DECODER, ForeignCheckpoint, Hints, ImportedModel, State
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
from vitreous.checkpoint.adapters.shapes import config_from, is_gated
from vitreous.checkpoint.adapters.stacking import join, join_heads, kernel_of_rows, prefixes
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig

__all__ = ["read", "recognise"]

_PATCH = (
    "embeddings.patch_embeddings.projection.weight",
    "embeddings.patch_embeddings.weight",
    "embeddings.patch_embedding.weight",
)
_OTHER_TOWERS = ("text_model.", "text_projection.", "logit_scale", "logit_bias", "decoder.")
_UNREAD = ("embeddings.position_ids",)


def recognise(tensors: State) -> str | None:
    """Return the reason why these are Hugging Face's names, or None."""
    for prefix in PREFIXES:
        for patch in _PATCH:
            if f"{prefix}{patch}" in tensors:
                return f"Hugging Face's names ({prefix}{patch.removesuffix('.weight')})"
    return None


def read(source: ForeignCheckpoint, hints: Hints) -> ImportedModel:
    """Convert the tensors, config.json and preprocessor_config.json of a folder."""
    document = source.documents.get("config.json") or {}
    prefix = next(p for p in PREFIXES if any(f"{p}{patch}" in source.tensors for patch in _PATCH))
    kind = str(document.get("model_type") or "")
    if kind and kind not in KINDS:
        raise CheckpointError(
            f"'{source.name}' is a Hugging Face model of type {kind}; supported are {', '.join(KINDS)}"
        )
    reasons: list[str] = []
    decoder: State = {}
    if kind == "vit_mae" and hints.keep_decoder:
        decoder = {name: t for name, t in source.tensors.items() if name.startswith(DECODER)}
    tensors = {name: t for name, t in source.tensors.items() if not name.startswith(_OTHER_TOWERS)}
    unread = source.tensors.keys() - tensors.keys() - decoder.keys()
    if others := sorted({name.partition(".")[0] for name in unread}):
        reasons.append(f"only the encoder of images is read, without {', '.join(others)}")
    names, blocks = _naming(source.name, tensors, kind, prefix)
    kind = kind or _kind_of(names, has_registers=f"{prefix}embeddings.register_tokens" in tensors)
    if kind not in FIRST_KINDS and not document:
        raise CheckpointError(
            f"'{source.name}' is a Hugging Face model of type {kind} without config.json: give the folder"
        )
    layout: dict[str, Any] = {"family": "huggingface", "prefix": prefix, "names": names, "kind": kind, "blocks": blocks}
    state, kept = _state(tensors, prefix, NAMINGS[names], blocks)
    if decoder:
        kept |= decoder
        reasons.append("the decoder is kept; no command computes it")
    _reshape(state, kept, layout)
    if kind.startswith("siglip") and "head.weight" in state and "attn_pool.latent" in state:
        for name in [name for name in state if name.startswith("attn_pool.")]:
            del state[name]
        reasons.append("the attention pooling is left out: Hugging Face's classifier averages the tokens instead")
        document = {**document, "vision_config": {**_vision(document), "vision_use_head": False}}
    config = _config(source, state, kind, hints, reasons)
    if others:
        layout |= _alone(kind, document)
    elif kind not in FIRST_KINDS:
        layout["document"] = document
    labels = document.get("id2label")
    classes = None
    if isinstance(labels, dict) and len(labels) == config.num_classes:
        classes = tuple(str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0])))
    preprocessor = source.documents.get("preprocessor_config.json")
    pipeline = None
    if preprocessor:
        pipeline = pipelines.from_huggingface(preprocessor, config, source.name, KINDS[kind].classes, reasons)
    several = document.get(PROBLEM) == SEVERAL and config.num_classes > 0
    if several:
        reasons.append(f"several labels of an image: config.json has {PROBLEM} {SEVERAL}")
    return ImportedModel("huggingface", config, state, layout, reasons, classes or None, pipeline, kept, several)


def _alone(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of the layout by which the encoder of a model that has more is written alone."""
    vision = _vision(document)
    if kind == "clip":  # its projection belongs to the encoder
        own = {"architectures": ["CLIPVisionModelWithProjection"], "model_type": "clip_vision_model"}
        projection = {"projection_dim": document.get("projection_dim", 512)}
        return {"kind": "clip_vision_model", "document": {**vision, **own, **projection}}
    if kind in ("siglip", "siglip2"):
        own = {"architectures": [f"{KINDS[kind].classes}VisionModel"], "model_type": f"{kind}_vision_model"}
        return {"kind": f"{kind}_vision_model", "document": {**vision, **own}, "prefix": "", "blocks": ""}
    own = {"architectures": [f"{KINDS[kind].classes}Model"]}
    return {"document": {**document, **own}, "prefix": "", "blocks": ""}


def _naming(source: str, tensors: State, kind: str, prefix: str) -> tuple[str, str]:
    """Return the key in ``NAMINGS`` of the file's naming, and the prefix that the names of blocks have."""
    candidates = KINDS[kind].namings if kind else ("vit", "vit-5", "dinov2", "dinov2-5", "dinov2-gated")
    for names in candidates:
        naming = NAMINGS[names]
        for before in dict.fromkeys((prefix, "")):  # transformers 5 writes the blocks of some classifiers without it
            if all(f"{before}{naming.blocks}0.{part}.weight" in tensors for part in naming.inside):
                return names, before
    raise CheckpointError(
        f"'{source}' is not a supported {kind or 'ViT or DINOv2'}: tensors of its first block are missing"
    )


def _state(tensors: State, prefix: str, naming: Naming, before: str) -> tuple[State, State]:
    """Return the tensors under our names (unknown ones under their own), and the tensors that no forward pass reads."""
    state: State = {}
    kept: State = {}
    inside = naming.inside | naming.optional
    for name, tensor in tensors.items():
        inner = name.removeprefix(prefix) if name.startswith(prefix) else name
        match = re.match(rf"{re.escape(before + naming.blocks)}(\d{{1,4}})\.(.+)", name)
        if match:
            ours = translate(match[2], inside)
            state[f"blocks.{match[1]}.{ours}" if ours else name] = tensor
        elif inner == "embeddings.mask_token":
            kept["mask_token"] = tensor
        elif inner not in _UNREAD:
            outside = name if name.startswith("classifier.") else inner
            state[translate(outside, naming.outside) or name] = tensor
    for block in prefixes(state):
        for kind in ("weight", "bias"):
            parts = [f"{block}{part}.{kind}" for part in ("query", "key", "value")]
            given = [part for part in parts if part in state]
            if len(given) == 3 or (kind == "bias" and given == parts[::2] and not naming.key_bias):
                join(state, f"{block}attn.qkv.{kind}", given)
            join(state, f"{block}mlp.fc1.{kind}", [f"{block}{part}.{kind}" for part in ("gate", "up")])
            for part in ("query", "key", "value"):  # what remains keeps its own name, which the caller reports
                if f"{block}{part}.{kind}" in state:
                    theirs = next(name for name, ours in inside.items() if ours == part)
                    number = block.split(".")[1]
                    state[f"{before}{naming.blocks}{number}.{theirs}.{kind}"] = state.pop(f"{block}{part}.{kind}")
    return state, kept


def _reshape(state: State, kept: State, layout: dict[str, Any]) -> None:
    """Give tensors the shapes that they have here, in place, and set aside those that a classifier does not read."""
    if "reg_token" in state and not state["reg_token"].numel():
        del state["reg_token"]
        layout["registers"] = "empty"
    if "cls_token" in state and state["cls_token"].ndim == 1:
        state["cls_token"] = state["cls_token"][None, None]
    if "pos_embed" in state and state["pos_embed"].ndim == 2:
        state["pos_embed"] = state["pos_embed"][None]
    kernel = state.get("patch_embed.proj.weight")
    if kernel is not None and kernel.ndim == 2:  # SigLIP 2: rows of flattened patches, pixel by pixel
        state["patch_embed.proj.weight"] = kernel_of_rows(kernel)
    for kind in ("weight", "bias"):
        whole = next((n for n in state if n.endswith(f"head.attention.in_proj_{kind}")), None)
        if whole is not None:
            query, key, value = state.pop(whole).chunk(3)
            state[f"attn_pool.q.{kind}"], state[f"attn_pool.kv.{kind}"] = query, torch.cat((key, value))
    if "head_dist.weight" in state:
        layout["distilled"] = True
        kept["distilled_bias"] = join_heads(state)
    if "head.weight" in state and "pre_logits.fc.weight" in state:  # classifiers do not use the pooler
        for kind in ("weight", "bias"):
            state[f"{layout['prefix']}pooler.dense.{kind}"] = state.pop(f"pre_logits.fc.{kind}")
    if (
        layout["kind"] == "clip" and "head.weight" in state
    ):  # CLIPForImageClassification averages tokens before that norm
        kept |= {f"post_layernorm.{kind}": state.pop(f"norm.{kind}") for kind in ("weight", "bias")}


def _vision(document: dict[str, Any]) -> dict[str, Any]:
    """Return the part of config.json about the encoder of images."""
    vision = document.get("vision_config")
    return vision if isinstance(vision, dict) else document


def _kind_of(names: str, *, has_registers: bool) -> str:
    """Return the kind of a model without config.json, given how its tensors are named."""
    if names.startswith("vit"):
        return "vit"
    return "dinov2_with_registers" if has_registers else "dinov2"


def _config(source: ForeignCheckpoint, state: State, kind: str, hints: Hints, reasons: list[str]) -> ViTConfig:
    whole = source.documents.get("config.json") or {}
    document = _vision(whole)
    activation = document.get("hidden_act", KINDS[kind].activation)
    if activation not in ACTIVATIONS:
        raise CheckpointError(f"'{source.name}' has activation {activation}; supported are {', '.join(ACTIVATIONS)}")
    gated = "dinov2" in kind and is_gated(state)
    known: dict[str, Any] = {
        "pool": {"kind": _pool(kind, state)},
        "mlp": {"activation": "silu" if gated else ACTIVATIONS[activation]},
        "norm_eps": float(document.get("layer_norm_eps", KINDS[kind].eps)),
        "heads": document.get("num_attention_heads"),
        "position": _position(kind, document),
        "init": "timm",
    }
    if "image_size" in document:
        size = document["image_size"]
        known["image_size"] = size if isinstance(size, int) else (int(size[0]), int(size[1]))
    if "pre_logits.fc.weight" in state:
        pooler = "none" if "pre_logits.fc.bias" not in state else document.get("pooler_act", "tanh")
        if pooler not in ("tanh", "relu", "gelu", "none"):
            raise CheckpointError(f"'{source.name}' has a pooler with activation {pooler}, which is not supported")
        known["head"] = {"activation": pooler}
    if document:
        reasons.append(f"{(whole.get('architectures') or [kind])[0]}, {kind}: config.json")
    else:
        mlp = "SwiGLU" if gated else "exact GELU"
        reasons.append(f"no config.json: {kind}, epsilon {known['norm_eps']:g} and {mlp} are assumed")
    return config_from(state, source.name, hints, reasons, **known)


def _pool(kind: str, state: State) -> str:
    """Return what a model's classifier reads, or its pooled output without one."""
    classifies = "head.weight" in state
    if classifies and state["head.weight"].shape[1] == 2 * state["patch_embed.proj.weight"].shape[0]:
        return "prefix" if kind == "deit" else "cls-mean"
    if kind == "ijepa" or "fc_norm.weight" in state or (kind in ("clip", "siglip", "siglip2") and classifies):
        return "mean"
    return "map" if "attn_pool.latent" in state else "cls"


def _position(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the position embedding that tensors do not show."""
    if kind == "dinov3_vit":
        return {
            "kind": "rope-2d",
            "theta": float(document.get("rope_theta", 100.0)),
            "coordinates": "centred",
            "first": "row",
            "pairs": "halves",
            "shift": float(document.get("pos_embed_shift") or 0.0),
            "jitter": float(document.get("pos_embed_jitter") or 1.0) - 1,
            "rescale": float(document.get("pos_embed_rescale", 2.0) or 1.0) - 1,
        }
    resample = {"dinov2_with_registers": "timm", "siglip2": "siglip2", "siglip2_vision_model": "siglip2"}
    return {"resample": resample.get(kind, "huggingface")}
