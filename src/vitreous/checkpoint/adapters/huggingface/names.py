"""Names of tensors in Hugging Face's files, by naming and by kind of model: data for `reading.py` and `writing.py`.

A naming says what the tensors of blocks and those outside are called; kinds that inherit code share one. transformers 5
renamed modules in memory but not in files; files of other programs have either names (``-5``).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ACTIVATIONS",
    "FIRST_KINDS",
    "KINDS",
    "NAMINGS",
    "PREFIXES",
    "PROBLEM",
    "SEVERAL",
    "Kind",
    "Naming",
    "translate",
]


@dataclass(frozen=True)
class Naming:
    """Names of tensors, theirs to ours, without ``.weight`` and ``.bias``.

    ``query``, ``key`` and ``value`` are joined to ``attn.qkv``, and ``gate`` and ``up`` to ``mlp.fc1``. Those in
    ``optional`` need not exist.
    """

    blocks: str  # what the names of blocks begin with, before their number
    inside: dict[str, str]
    outside: dict[str, str]
    optional: dict[str, str]  # inside
    key_bias: bool = True  # whether keys have a bias wherever queries have


@dataclass(frozen=True)
class Kind:
    """A ``model_type``: the beginning of its class names, its namings, and the prefixes that its names may have.

    A config.json may leave out what has the default, which differs by kind.
    """

    classes: str
    namings: tuple[str, ...]
    prefixes: tuple[str, ...]
    eps: float  # the default
    activation: str = "gelu"  # likewise


_QKV = ("query", "key", "value")
_FILE = {f"attention.attention.{name}": name for name in _QKV} | {"attention.output.dense": "attn.proj"}
_MEMORY = {f"attention.{name[0]}_proj": name for name in _QKV} | {"attention.o_proj": "attn.proj"}
_SELF = {f"self_attn.{name[0]}_proj": name for name in _QKV} | {"self_attn.out_proj": "attn.proj"}
_VIT = {"layernorm_before": "norm1", "layernorm_after": "norm2"}
_DENSE = {"intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"}
_DINO = {"norm1": "norm1", "norm2": "norm2"}
_MLP = {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
_SCALES = {"layer_scale1.lambda1": "ls1.gamma", "layer_scale2.lambda1": "ls2.gamma"}
_RELATIVE = "relative_position_bias.relative_position_bias_table"
_BEIT = {"lambda_1": "ls1.gamma", "lambda_2": "ls2.gamma", f"attention.attention.{_RELATIVE}": "attn.relative_bias"}

_OUTSIDE = {
    "embeddings.cls_token": "cls_token",
    "embeddings.register_tokens": "reg_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "pooler.dense": "pre_logits.fc",
    "classifier": "head",
}
_OUTSIDE_DEIT = {
    **_OUTSIDE,
    "embeddings.distillation_token": "reg_token",
    "cls_classifier": "head",
    "distillation_classifier": "head_dist",
}
_OUTSIDE_BEIT = {**_OUTSIDE, "pooler.layernorm": "fc_norm", f"encoder.{_RELATIVE}": "pos_embed_relative"}
_OUTSIDE_DINOV3 = {
    "embeddings.cls_token": "cls_token",
    "embeddings.register_tokens": "reg_token",
    "embeddings.patch_embeddings": "patch_embed.proj",
    "norm": "norm",
    "classifier": "head",
}
_OUTSIDE_CLIP = {
    "embeddings.class_embedding": "cls_token",
    "embeddings.patch_embedding": "patch_embed.proj",
    "embeddings.position_embedding.weight": "pos_embed",
    "pre_layrnorm": "norm_pre",
    "post_layernorm": "norm",
    "visual_projection": "pre_logits.fc",
    "head.probe": "attn_pool.latent",
    "head.attention.out_proj": "attn_pool.proj",
    "head.layernorm": "attn_pool.norm",
    "head.mlp.fc1": "attn_pool.mlp.fc1",
    "head.mlp.fc2": "attn_pool.mlp.fc2",
    "classifier": "head",
}

NAMINGS: dict[str, Naming] = {
    "vit": Naming("encoder.layer.", _FILE | _VIT | _DENSE, _OUTSIDE, {}),
    "vit-5": Naming("layers.", _MEMORY | _VIT | _MLP, _OUTSIDE, {}),
    "dinov2": Naming("encoder.layer.", _FILE | _DINO | _MLP, _OUTSIDE, _SCALES),
    "dinov2-5": Naming("encoder.layer.", _MEMORY | _DINO | _MLP, _OUTSIDE, _SCALES),
    "dinov2-gated": Naming(
        "encoder.layer.",
        _FILE | _DINO | {"mlp.weights_in": "mlp.fc1", "mlp.weights_out": "mlp.fc2"},
        _OUTSIDE,
        _SCALES,
    ),
    "deit": Naming("encoder.layer.", _FILE | _VIT | _DENSE, _OUTSIDE_DEIT, {}),
    "beit": Naming("encoder.layer.", _FILE | _VIT | _DENSE, _OUTSIDE_BEIT, _BEIT, key_bias=False),
    "dinov3": Naming(
        "layer.",
        _MEMORY | _DINO | {"mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"},
        _OUTSIDE_DINOV3,
        _SCALES,
        key_bias=False,
    ),
    "dinov3-gated": Naming(
        "layer.",
        _MEMORY | _DINO | {"mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "mlp.fc2"},
        _OUTSIDE_DINOV3,
        _SCALES,
        key_bias=False,
    ),
    "clip": Naming(
        "encoder.layers.", _SELF | {"layer_norm1": "norm1", "layer_norm2": "norm2"} | _MLP, _OUTSIDE_CLIP, {}
    ),
}
"""By naming; the first of a kind whose tensors are all there is that of a file."""

_TOWER = ("", "vision_model.")
KINDS: dict[str, Kind] = {
    "vit": Kind("ViT", ("vit", "vit-5"), ("", "vit."), 1e-12),
    "dinov2": Kind("Dinov2", ("dinov2", "dinov2-5", "dinov2-gated"), ("", "dinov2."), 1e-6),
    "dinov2_with_registers": Kind(
        "Dinov2WithRegisters", ("dinov2", "dinov2-5", "dinov2-gated"), ("", "dinov2_with_registers."), 1e-6
    ),
    "deit": Kind("DeiT", ("deit",), ("", "deit."), 1e-12),
    "vit_mae": Kind("ViTMAE", ("vit",), ("", "vit."), 1e-12),
    "vit_msn": Kind("ViTMSN", ("vit",), ("", "vit."), 1e-6),
    "ijepa": Kind("IJepa", ("vit",), ("", "ijepa."), 1e-12),
    "beit": Kind("Beit", ("beit",), ("", "beit."), 1e-12),
    "data2vec-vision": Kind("Data2VecVision", ("beit",), ("", "data2vec_vision."), 1e-12),
    "dinov3_vit": Kind("DINOv3ViT", ("dinov3-gated", "dinov3"), ("", "model."), 1e-5),
    "clip_vision_model": Kind("CLIPVision", ("clip",), _TOWER, 1e-5, "quick_gelu"),
    "clip": Kind("CLIP", ("clip",), _TOWER, 1e-5, "quick_gelu"),
    "siglip_vision_model": Kind("SiglipVision", ("clip",), _TOWER, 1e-6, "gelu_pytorch_tanh"),
    "siglip": Kind("Siglip", ("clip",), _TOWER, 1e-6, "gelu_pytorch_tanh"),
    "siglip2_vision_model": Kind("Siglip2Vision", ("clip",), _TOWER, 1e-6, "gelu_pytorch_tanh"),
    "siglip2": Kind("Siglip2", ("clip",), _TOWER, 1e-6, "gelu_pytorch_tanh"),
}
"""By ``model_type``."""

ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_python": "gelu", "relu": "relu", "quick_gelu": "quick-gelu", "silu": "silu"},
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu-tanh"),
}
"""Our names of activations, by theirs."""

FIRST_KINDS = ("vit", "dinov2", "dinov2_with_registers")
"""Kinds that tensors alone show, and whose config.json is written from the configuration."""

PREFIXES = tuple(dict.fromkeys(prefix for kind in KINDS.values() for prefix in kind.prefixes))
"""What may stand before the names of the tensors, over all kinds of model."""

PROBLEM, SEVERAL = "problem_type", "multi_label_classification"
"""The entry of config.json of a model that gives an image several labels, by a sigmoid for each, and its value."""


def translate(name: str, table: dict[str, str]) -> str | None:
    """Return the table's entry for a name, or for the name without ``.weight`` or ``.bias``."""
    module, _, kind = name.rpartition(".")
    return table.get(name) or (f"{table[module]}.{kind}" if module in table else None)
