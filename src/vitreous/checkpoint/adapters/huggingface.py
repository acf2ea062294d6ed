"""Hugging Face's ViT, DINOv2 and DINOv2 with registers: safetensors, config.json and preprocessor_config.json.

Query, key and value are separate tensors there and one fused tensor here. DINOv2's classifiers take the class token
concatenated with the mean of the patch tokens. transformers 5 renamed the modules in memory but not in files; files of
other programs have either names.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoint.adapters import pipelines
from vitreous.checkpoint.adapters.common import ForeignCheckpoint, Hints, ImportedModel, OutgoingModel, State
from vitreous.checkpoint.adapters.shapes import config_from, plain_size
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair
from vitreous.model.heads import MlpHead
from vitreous.model.pools import ClassTokenMean
from vitreous.model.positions import Learned

__all__ = ["LAYOUT", "fixed_constants", "read", "recognise", "write"]

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
"""Prefix and names inside a block, as transformers writes them and (``-5``) as transformers 5 names its modules."""

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
"""Entries of a layout and their allowed values."""


def recognise(tensors: State) -> str | None:
    """Return the reason why these are Hugging Face's names, or None."""
    for prefix in _PREFIXES:
        if f"{prefix}{_PATCH}" in tensors:
            return f"Hugging Face's names ({prefix}embeddings.patch_embeddings.projection)"
    return None


def read(source: ForeignCheckpoint, hints: Hints) -> ImportedModel:
    """Convert the tensors, config.json and preprocessor_config.json of a folder."""
    document = source.documents.get("config.json") or {}
    prefix = next(p for p in _PREFIXES if f"{p}{_PATCH}" in source.tensors)
    kind = str(document.get("model_type") or "")
    if kind and kind not in _KINDS:
        raise CheckpointError(
            f"'{source.name}' is a Hugging Face model of type {kind}; supported are {', '.join(_KINDS)}"
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
        classes = tuple(str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0])))
    preprocessor = source.documents.get("preprocessor_config.json")
    pipeline = pipelines.from_huggingface(preprocessor, config, source.name) if preprocessor else None
    return ImportedModel("huggingface", config, state, layout, reasons, classes or None, pipeline, kept)


def _naming(source: ForeignCheckpoint, prefix: str) -> str:
    """Return the key in ``_NAMES`` of the file's naming."""
    for names, (blocks, table) in _NAMES.items():
        if all(f"{prefix}{blocks}0.{part}.weight" in source.tensors for part in table if not part.endswith("lambda1")):
            return names
    parts = [name for name in source.tensors if name.startswith((f"{prefix}encoder.layer.0.", f"{prefix}layers.0."))]
    swiglu = any("weights_in" in name or "gate_proj" in name for name in parts)
    why = "vitreous does not support its gated MLP (SwiGLU)" if swiglu else "tensors of its first block are missing"
    raise CheckpointError(f"'{source.name}' is not a supported ViT or DINOv2: {why}")


def _state(source: ForeignCheckpoint, prefix: str, names: str) -> tuple[State, State]:
    """Return the tensors under our names (unknown ones under their own), and the tensors that no forward pass reads."""
    blocks, table = _NAMES[names]
    state: State = {}
    kept: State = {}
    parts: dict[str, dict[str, tuple[str, Tensor]]] = {}
    for name, tensor in source.tensors.items():
        inner = name.removeprefix(prefix) if name.startswith(prefix) else name
        match = re.match(rf"{re.escape(blocks)}(\d+)\.(.+)", inner)
        if match:
            kind = match[2].rpartition(".")[2]
            ours = _translate(match[2], table)
            if ours in ("query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias"):
                part = ours.partition(".")[0]
                parts.setdefault(f"blocks.{match[1]}.attn.qkv.{kind}", {})[part] = (name, tensor)
            else:
                state[f"blocks.{match[1]}.{ours}" if ours else name] = tensor
        elif inner == "embeddings.mask_token":
            kept["mask_token"] = tensor
        else:
            outside = name if name.startswith("classifier.") else inner
            state[_translate(outside, _OUTSIDE) or name] = tensor
    for fused, qkv in parts.items():
        if len(qkv) == 3 and len({part.shape for _, part in qkv.values()}) == 1:
            state[fused] = torch.cat([qkv[part][1] for part in ("query", "key", "value")])
        else:  # keep their own names, which the caller reports
            state |= dict(qkv.values())
    if "head.weight" in state and "pre_logits.fc.weight" in state:  # classifiers do not use the pooler
        for kind in ("weight", "bias"):
            state[f"{prefix}pooler.dense.{kind}"] = state.pop(f"pre_logits.fc.{kind}")
    return state, kept


def _translate(name: str, table: dict[str, str]) -> str | None:
    """Return the table's entry for a name, or for the name without ``.weight`` or ``.bias``."""
    module, _, kind = name.rpartition(".")
    return table.get(name) or (f"{table[module]}.{kind}" if module in table else None)


def _config(source: ForeignCheckpoint, state: State, kind: str, hints: Hints, reasons: list[str]) -> ViTConfig:
    document = source.documents.get("config.json") or {}
    activation = document.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise CheckpointError(f"'{source.name}' has activation {activation}; supported are {', '.join(_ACTIVATIONS)}")
    known: dict[str, Any] = {
        "pool": {"kind": "cls-mean" if kind != "vit" and "head.weight" in state else "cls"},
        "mlp": {"activation": _ACTIVATIONS[activation]},
        "norm_eps": float(document.get("layer_norm_eps", 1e-12 if kind == "vit" else 1e-6)),
        "heads": document.get("num_attention_heads"),
        "position": {"resample": "huggingface"},
        "init": "timm",
    }
    if "image_size" in document:
        size = document["image_size"]
        known["image_size"] = size if isinstance(size, int) else (int(size[0]), int(size[1]))
    if "pre_logits.fc.weight" in state:
        pooler = document.get("pooler_act", "tanh")
        if pooler not in ("tanh", "relu", "gelu"):
            raise CheckpointError(f"'{source.name}' has a pooler with activation {pooler}, which is not supported")
        known["head"] = {"activation": pooler}
    if document:
        reasons.append(f"{(document.get('architectures') or [kind])[0]}, {kind}: config.json")
    else:
        reasons.append(f"no config.json: {kind}, epsilon {known['norm_eps']:g} and exact GELU are assumed")
    return config_from(state, source.name, hints, reasons, **known)


def fixed_constants(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return nothing: config.json sets every constant of Hugging Face's models."""
    return {}, []


def write(model: OutgoingModel) -> ForeignCheckpoint:
    """Return files for ``from_pretrained`` of ``ViTModel``, ``Dinov2Model`` or their classifiers."""
    config, layout, kept = model.config, model.layout, model.kept
    same_family = layout.get("family") == "huggingface"
    kind = layout["kind"] if same_family else _kind(config)
    model.raise_if_unsupported("Hugging Face", _unsupported(config, kind, kept), keeps=True)
    names = layout["names"] if same_family else "vit" if kind == "vit" else "dinov2"
    prefix = f"{kind}." if config.num_classes else layout["prefix"] if same_family else ""
    blocks, table = _NAMES[names]
    back = {ours: theirs for theirs, ours in table.items()}
    outside = {ours: theirs for theirs, ours in _OUTSIDE.items()}
    tensors: State = {}
    for name, tensor in model.state.items():
        match = re.match(r"blocks\.(\d+)\.(.+)\.(\w+)$", name)
        if match and match[2] == "attn.qkv":
            for part, chunk in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                tensors[f"{prefix}{blocks}{match[1]}.{back[part]}.{match[3]}"] = chunk
        elif match:
            inner = _translate(f"{match[2]}.{match[3]}", back)
            tensors[f"{prefix}{blocks}{match[1]}.{inner}"] = tensor
        else:
            own_prefix = "" if name.startswith("head.") else prefix
            tensors[f"{own_prefix}{_translate(name, outside)}"] = tensor
    tensors |= {f"{prefix}embeddings.{name}": tensor for name, tensor in kept.items()}
    documents = {
        "config.json": _document(config, kind, model.classes, "mask_token" in kept),
        "preprocessor_config.json": pipelines.to_huggingface(model.pipeline),
    }
    return ForeignCheckpoint(tensors, documents)


def _kind(c: ViTConfig) -> str:
    """Return the model_type that can express the model."""
    if c.registers:
        return "dinov2_with_registers"
    return "dinov2" if c.block.layer_scale is not None else "vit"


def _unsupported(c: ViTConfig, kind: str, kept: State) -> dict[str, bool]:
    dino = kind != "vit"
    on_token = dino and c.num_classes > 0 and c.pool.kind == "cls"
    prefix = c.position.prefix if isinstance(c.position, Learned) else "cls"
    return {
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
        f"a DINOv2 with MLP {c.mlp_dim}, not a multiple of its width": dino and c.mlp_dim % c.width != 0,
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
        "hidden_act": _BACK[config.mlp.activation],
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
        document |= {"mlp_ratio": config.mlp_dim // config.width, "layerscale_value": 1.0, "use_swiglu_ffn": False}
        document |= {"num_register_tokens": config.registers} if config.registers else {"use_mask_token": masked}
    if config.num_classes:
        document["id2label"] = {str(i): name for i, name in enumerate(classes)}
        document["label2id"] = {name: i for i, name in enumerate(classes)}
    return document
