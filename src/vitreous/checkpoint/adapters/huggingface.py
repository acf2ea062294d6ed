"""Hugging Face's ViT, DINOv2 and DINOv2 with registers: folders of safetensors, config.json, preprocessor_config.json.

DINOv2's classifiers read the class token and the mean of the patches, side by side. transformers 5 renamed the modules
in memory and kept the names in files; both occur in files of other programs.
Query, key and value lie apart there and fused here.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoint.adapters.common import Foreign, Hints, Imported, Outgoing, State, Written, refuse
from vitreous.checkpoint.adapters.pipelines import pipeline_from_huggingface, pipeline_to_huggingface
from vitreous.checkpoint.adapters.shapes import config_from
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair

__all__ = ["LAYOUT", "adopt", "read", "recognise", "write"]

_FILE = {f"attention.attention.{name}": name for name in ("query", "key", "value")} | {
    "attention.output.dense": "attn.proj"
}
_MEMORY = {f"attention.{name[0]}_proj": name for name in ("query", "key", "value")} | {"attention.o_proj": "attn.proj"}
_VIT = {"layernorm_before": "norm1", "layernorm_after": "norm2"}
_DINO = {
    "norm1": "norm1",
    "norm2": "norm2",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "vit": ("encoder.layer.", _FILE | _VIT | {"intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"}),
    "vit-5": ("layers.", _MEMORY | _VIT | {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}),
    "dinov2": ("encoder.layer.", _FILE | _DINO),
    "dinov2-5": ("encoder.layer.", _MEMORY | _DINO),
}
"""Names of a block's parts, by where they occur: in files, and in the memory of transformers 5."""

_OUTSIDE = {
    "embeddings.cls_token": "cls_token",
    "embeddings.register_tokens": "reg_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "pooler.dense": "pre_logits.fc",
    "classifier": "head",
}
_PREFIXES = ("", "vit.", "dinov2.", "dinov2_with_registers.")
_PATCH = "embeddings.patch_embeddings.projection.weight"
_ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_python": "gelu", "relu": "relu"},
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu-tanh"),
}
_BACK = {"gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "relu": "relu"}
_KINDS = ("vit", "dinov2", "dinov2_with_registers")

LAYOUT = {"prefix": _PREFIXES, "names": tuple(_NAMES), "kind": _KINDS}
"""What a layout says, with the values that it may have."""


def recognise(tensors: State) -> str | None:
    """Say why these are Hugging Face's names, or None."""
    for prefix in _PREFIXES:
        if f"{prefix}{_PATCH}" in tensors:
            return f"Hugging Face's names ({prefix}embeddings.patch_embeddings.projection)"
    return None


def read(source: Foreign, hints: Hints) -> Imported:
    """Take the tensors, config.json and preprocessor_config.json of a folder.

    Raises:
        CheckpointError: If the model is of another kind, or the shapes make no Vision Transformer.
    """
    document = source.documents.get("config.json") or {}
    prefix = next(p for p in _PREFIXES if f"{p}{_PATCH}" in source.tensors)
    kind = str(document.get("model_type") or "")
    if kind and kind not in _KINDS:
        raise CheckpointError(
            f"'{source.name}' is a Hugging Face model of type {kind}, supported are {', '.join(_KINDS)}"
        )
    names = _naming(source, prefix)
    kind = kind or ("vit" if names.startswith("vit") else "dinov2")
    layout: dict[str, Any] = {"family": "huggingface", "prefix": prefix, "names": names, "kind": kind}
    state, kept = _state(source, prefix, names)
    reasons: list[str] = []
    config = _config(source, state, kind, hints, reasons)
    labels = document.get("id2label")
    classes = None
    if isinstance(labels, dict) and len(labels) == config.num_classes:
        ordered = sorted(labels.items(), key=lambda item: int(item[0]))
        classes = tuple(str(label) for _, label in ordered)
    given = source.documents.get("preprocessor_config.json")
    pipeline = pipeline_from_huggingface(given, config, source.name) if given else None
    return Imported("huggingface", config, state, layout, reasons, classes or None, pipeline, kept)


def _naming(source: Foreign, prefix: str) -> str:
    """Return which of the namings a file has."""
    for names, (blocks, table) in _NAMES.items():
        if all(f"{prefix}{blocks}0.{part}.weight" in source.tensors for part in table if not part.endswith("lambda1")):
            return names
    parts = [name for name in source.tensors if name.startswith((f"{prefix}encoder.layer.0.", f"{prefix}layers.0."))]
    swiglu = any("weights_in" in name or "gate_proj" in name for name in parts)
    why = "its MLP is gated (SwiGLU), which vitreous has not" if swiglu else "tensors of its first block are missing"
    raise CheckpointError(f"'{source.name}' is no ViT or DINOv2 that can be read: {why}")


def _state(source: Foreign, prefix: str, names: str) -> tuple[State, State]:
    """Return the tensors in our names, what is left in theirs, and apart from them those that nothing reads."""
    blocks, table = _NAMES[names]
    state: State = {}
    kept: State = {}
    parts: dict[str, dict[str, tuple[str, Tensor]]] = {}
    for name, tensor in source.tensors.items():
        inner = name.removeprefix(prefix) if name.startswith(prefix) else name
        match = re.match(rf"{re.escape(blocks)}(\d+)\.(.+)", inner)
        if match:
            kind = match[2].rpartition(".")[2]
            place = _look_up(match[2], table)
            if place in ("query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias"):
                part = place.partition(".")[0]
                parts.setdefault(f"blocks.{match[1]}.attn.qkv.{kind}", {})[part] = (name, tensor)
            else:
                state[f"blocks.{match[1]}.{place}" if place else name] = tensor
        elif inner == "embeddings.mask_token":
            kept["mask_token"] = tensor
        else:
            outside = name if name.startswith("classifier.") else inner
            state[_look_up(outside, _OUTSIDE) or name] = tensor
    for fused, three in parts.items():
        if len(three) == 3 and len({part.shape for _, part in three.values()}) == 1:
            state[fused] = torch.cat([three[part][1] for part in ("query", "key", "value")])
        else:  # left under their own names: the caller's check names them
            state |= dict(three.values())
    if "head.weight" in state and "pre_logits.fc.weight" in state:  # a classifier reads the token, not the pooler
        for kind in ("weight", "bias"):
            state[f"{prefix}pooler.dense.{kind}"] = state.pop(f"pre_logits.fc.{kind}")
    return state, kept


def _look_up(name: str, table: dict[str, str]) -> str | None:
    """Translate a whole name, or its front with ``.weight`` or ``.bias`` behind."""
    module, _, kind = name.rpartition(".")
    return table.get(name) or (f"{table[module]}.{kind}" if module in table else None)


def _config(source: Foreign, state: State, kind: str, hints: Hints, reasons: list[str]) -> ViTConfig:
    """Return the configuration: shapes first, then what only config.json knows."""
    document = source.documents.get("config.json") or {}
    activation = document.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise CheckpointError(f"'{source.name}' has the activation {activation}, known are {', '.join(_ACTIVATIONS)}")
    known: dict[str, Any] = {
        "pool": "cls-mean" if kind != "vit" and "head.weight" in state else "cls",
        "activation": _ACTIVATIONS[activation],
        "norm_eps": float(document.get("layer_norm_eps", 1e-12 if kind == "vit" else 1e-6)),
        "heads": document.get("num_attention_heads"),
        "resample": "huggingface",
        "init": "timm",
    }
    if "image_size" in document:
        size = document["image_size"]
        known["image_size"] = size if isinstance(size, int) else (int(size[0]), int(size[1]))
    if "pre_logits.fc.weight" in state:
        known["head_activation"] = document.get("pooler_act", "tanh")
        if known["head_activation"] not in ("tanh", "relu", "gelu"):
            raise CheckpointError(
                f"'{source.name}' has a pooler with {known['head_activation']}, which vitreous has not"
            )
    if document:
        reasons.append(f"{(document.get('architectures') or [kind])[0]}, {kind}: config.json")
    else:
        reasons.append(f"no config.json: taken for {kind}, epsilon {known['norm_eps']:g}, exact GELU")
    return config_from(state, source.name, hints, reasons, **known)


def adopt(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Hugging Face's models take every constant from their configuration: nothing changes."""
    return {}, []


def write(model: Outgoing) -> Written:
    """Give a folder that ``from_pretrained`` of ``ViTModel``, ``Dinov2Model`` or their classifiers reads.

    Raises:
        CheckpointError: If they have no such model: everything that they cannot express, in one error.
    """
    config, layout, kept = model.config, model.layout, model.kept
    kind = layout["kind"] if layout.get("family") == "huggingface" else _kind(config)
    refuse("Hugging Face", _problems(config, kind, kept))
    same = layout.get("family") == "huggingface"
    names = layout["names"] if same else "vit" if kind == "vit" else "dinov2"
    prefix = f"{kind}." if config.num_classes else ""
    prefix = layout["prefix"] if same and not config.num_classes else prefix
    blocks, table = _NAMES[names]
    back = {ours: theirs for theirs, ours in table.items()}
    outside = {ours: theirs for theirs, ours in _OUTSIDE.items()}
    tensors: State = {}
    for name, tensor in model.state.items():
        match = re.match(r"blocks\.(\d+)\.(.+)\.(\w+)$", name)
        if match and match[2] == "attn.qkv":
            for part, each in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                tensors[f"{prefix}{blocks}{match[1]}.{back[part]}.{match[3]}"] = each
        elif match:
            inner = _look_up(f"{match[2]}.{match[3]}", back)
            tensors[f"{prefix}{blocks}{match[1]}.{inner}"] = tensor
        else:
            front = "" if name.startswith("head.") else prefix
            tensors[f"{front}{_look_up(name, outside)}"] = tensor
    tensors |= {f"{prefix}embeddings.{name}": tensor for name, tensor in kept.items()}
    documents = {
        "config.json": _document(config, kind, model.classes, "mask_token" in kept),
        "preprocessor_config.json": pipeline_to_huggingface(model.pipeline),
    }
    return Written(tensors, documents)


def _kind(c: ViTConfig) -> str:
    """The family of Hugging Face's models that has this one."""
    if c.registers:
        return "dinov2_with_registers"
    return "dinov2" if c.layer_scale is not None else "vit"


def _problems(c: ViTConfig, kind: str, kept: State) -> list[str]:
    """Everything that no argument of these models says."""
    dino = kind != "vit"
    on_token = dino and c.num_classes > 0 and c.pool == "cls"
    odd = {
        f"stem {c.stem}": c.stem not in ("patch", "linear"),
        f"patch_activation {c.patch_activation}": c.patch_activation != "none",
        f"position {c.position}": c.position != "learned",
        "registers with positions of their own": c.position_prefix == "all" and c.registers > 0,
        "a class token without a position (--add cls_position writes one of zeros)": c.position_prefix == "none",
        f"pool {c.pool}": c.pool != ("cls-mean" if dino and c.num_classes else "cls") and not on_token,
        "a mean over registers": c.pool == "cls-mean" and c.pools_prefix,
        f"final_norm {c.final_norm}": c.final_norm != "tokens",
        "QK-norm": c.qk_norm,
        "registers without LayerScale": c.registers > 0 and c.layer_scale is None,
        "pre_logits in front of a classifier (--drop pre_logits leaves it out)": c.head == "mlp" and c.num_classes > 0,
        "a DINOv2 with a classifier on the class token alone (--drop head leaves it out)": on_token,
        "a DINOv2 with a pooler (--drop pre_logits leaves it out)": dino and c.head == "mlp",
        f"a DINOv2 with MLP {c.mlp_dim}, no multiple of its width": dino and c.mlp_dim % c.width != 0,
        "registers without a mask token (--add mask_token writes one of zeros)": c.registers > 0
        and "mask_token" not in kept,
    }
    return [what for what, is_odd in odd.items() if is_odd]


def _document(config: ViTConfig, kind: str, classes: tuple[str, ...], masked: bool) -> dict[str, Any]:
    """config.json."""
    size, patch = pair(config.image_size), pair(config.patch_size)
    front = {"vit": "ViT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[kind]
    document: dict[str, Any] = {
        "architectures": [f"{front}{'ForImageClassification' if config.num_classes else 'Model'}"],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": _BACK[config.activation],
        "layer_norm_eps": config.norm_eps,
        "image_size": size[0] if size[0] == size[1] else list(size),
        "patch_size": patch[0] if patch[0] == patch[1] else list(patch),
        "num_channels": config.in_channels,
        "qkv_bias": config.qkv_bias,
        "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
        "initializer_range": 0.02,
    }
    if kind == "vit":
        document |= {"intermediate_size": config.mlp_dim, "encoder_stride": patch[0]}
        if config.head == "mlp":
            document |= {"pooler_output_size": config.head_hidden or config.width, "pooler_act": config.head_activation}
    else:
        document |= {"mlp_ratio": config.mlp_dim // config.width, "layerscale_value": 1.0, "use_swiglu_ffn": False}
        document |= {"num_register_tokens": config.registers} if config.registers else {"use_mask_token": masked}
    if config.num_classes:
        document["id2label"] = {str(i): name for i, name in enumerate(classes)}
        document["label2id"] = {name: i for i, name in enumerate(classes)}
    return document
