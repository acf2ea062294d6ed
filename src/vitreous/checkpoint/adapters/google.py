"""Google's .npz files: those of the paper and of AugReg, flax naming, and big_vision.

The layout records how a file is organised, so that it can be written again in the same way: ``prefix`` before every
name (``params/``), ``scan`` (blocks stacked along a first axis), ``block`` (the names inside a block), ``position`` and
``map`` (where position embeddings and attention pooling are stored), and ``norm_rank`` (the paper's hybrids store group
norms as 1 x 1 x 1 x C).

Follows google-research/vision_transformer and big_vision. Shapes: D width, H heads, d channels per head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoint.adapters import google_resnet
from vitreous.checkpoint.adapters.common import (
    ForeignCheckpoint,
    Hints,
    ImportedModel,
    OutgoingModel,
    State,
    beyond_the_paper,
    note_on_epsilon,
)
from vitreous.checkpoint.adapters.shapes import config_from
from vitreous.checkpoint.adapters.sidecar import make_sidecar, read_sidecar
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair
from vitreous.model.heads import MlpHead
from vitreous.model.positions import Learned
from vitreous.model.stems import ResNetStem

__all__ = ["LAYOUT", "fixed_constants", "read", "recognise", "write"]

_PREFIXES = ("", "params/", "opt/target/")
_BLOCK_NAMES = {  # norm1, attention, norm2, MLP
    "released": ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    "flax": ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
}
_POSITIONS = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding", "pos_embedding")
_HALF = (0.5, 0.5, 0.5)

LAYOUT = {
    "prefix": _PREFIXES,
    "scan": (True, False),
    "block": tuple(_BLOCK_NAMES),
    "position": _POSITIONS,
    "map": ("", "MAPHead_0/"),
    "norm_rank": (1, 2, 3, 4),
}
"""Entries of a layout and their allowed values."""


def recognise(tensors: State) -> str | None:
    """Return the reason why these are Google's names, or None."""
    for prefix in _PREFIXES:
        if f"{prefix}embedding/kernel" in tensors and f"{prefix}Transformer/encoder_norm/scale" in tensors:
            return f"Google's names ({prefix}embedding/kernel, {prefix}Transformer/encoder_norm/scale)"
    return None


def read(source: ForeignCheckpoint, hints: Hints) -> ImportedModel:
    """Convert the arrays of an .npz file; those with unknown names stay in the state under their own name."""
    layout = _layout(source.tensors)
    prefix = layout["prefix"]
    tree = {name.removeprefix(prefix) if name.startswith(prefix) else name: t for name, t in source.tensors.items()}
    if layout["scan"]:
        tree = _unstack(tree, source.name)
    state: State = {}
    try:
        heads = _convert(tree, state, layout)
    except (RuntimeError, IndexError) as error:  # a shape that cannot be permuted or reshaped
        raise CheckpointError(f"'{source.name}' has an array of an unexpected shape: {error}") from error
    sidecar = read_sidecar(source)
    reasons = ["tanh-approximated GELU and epsilon 1e-06: Google's code (--activation gelu selects timm's GELU)"]
    known: dict[str, Any] = {"heads": heads, "mlp": {"activation": "gelu-tanh"}, "norm_eps": 1e-6}
    if "pos_embed" in state:
        known["position"] = {"resample": "google"}
    else:
        known["position"] = {"kind": "sincos-2d"}
        reasons.append("fixed sine-cosine positions: the file has no position embeddings")
    if sidecar.pipeline is not None:
        known["image_size"] = sidecar.pipeline.size
    config = config_from(state, source.name, hints, reasons, **known)
    pipeline = sidecar.pipeline
    if pipeline is None:
        preprocess = PreprocessConfig(
            "squash", 1.0, "bilinear", _HALF[: config.in_channels], _HALF[: config.in_channels]
        )
        pipeline = EvalPipeline(pair(config.image_size), config.in_channels, preprocess)
        reasons.append("images are squashed and scaled to [-1, 1], as Google's code does: the file does not say")
    return ImportedModel("google", config, state, layout, reasons, sidecar.classes, pipeline)


def _layout(tensors: State) -> dict[str, Any]:
    prefix = next(p for p in _PREFIXES if f"{p}embedding/kernel" in tensors)
    names = [name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]
    released = any("/MlpBlock_3/" in name for name in names)
    return {
        "family": "google",
        "prefix": prefix,
        "scan": any(name.startswith("Transformer/encoderblock/") for name in names),
        "block": "released" if released else "flax",
        "position": next((p for p in _POSITIONS if p in names), _POSITIONS[0]),
        "map": "" if "probe" in names else "MAPHead_0/",
        "norm_rank": tensors[f"{prefix}gn_root/scale"].ndim if f"{prefix}gn_root/scale" in tensors else 1,
    }


def _unstack(tree: State, name: str) -> State:
    """Split arrays that stack all blocks along the first axis into one array per block."""
    stacked = {key: t for key, t in tree.items() if key.startswith("Transformer/encoderblock/")}
    depths = {len(t) if t.ndim else 0 for t in stacked.values()}
    if len(depths) != 1 or depths == {0}:
        raise CheckpointError(f"'{name}' stacks different numbers of blocks: {sorted(depths)}")
    flat = {key: t for key, t in tree.items() if key not in stacked}
    for key, t in stacked.items():
        for i, block in enumerate(t.unbind()):
            flat[key.replace("encoderblock/", f"encoderblock_{i}/")] = block
    return flat


def _rows(layout: Mapping[str, Any], depth: int) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the names of Google's modules, our module that they form together, and how tensors are converted."""
    norm1, attention, norm2, mlp = _BLOCK_NAMES[layout["block"]]
    yield ("embedding",), "patch_embed.proj", "conv"
    yield ("Transformer/encoder_norm",), "norm", "norm"
    yield ("pre_logits",), "pre_logits.fc", "dense"
    yield ("head",), "head", "dense"
    for i in range(depth):
        theirs, ours = f"Transformer/encoderblock_{i}/", f"blocks.{i}."
        yield (theirs + norm1,), f"{ours}norm1", "norm"
        yield (theirs + norm2,), f"{ours}norm2", "norm"
        yield tuple(f"{theirs}{attention}/{part}" for part in ("query", "key", "value")), f"{ours}attn.qkv", "heads"
        yield (f"{theirs}{attention}/out",), f"{ours}attn.proj", "out"
        yield (f"{theirs}{mlp}/Dense_0",), f"{ours}mlp.fc1", "dense"
        yield (f"{theirs}{mlp}/Dense_1",), f"{ours}mlp.fc2", "dense"
    pool = layout["map"]
    yield (f"{pool}MultiHeadDotProductAttention_0/query",), "attn_pool.q", "heads"
    yield tuple(f"{pool}MultiHeadDotProductAttention_0/{part}" for part in ("key", "value")), "attn_pool.kv", "heads"
    yield (f"{pool}MultiHeadDotProductAttention_0/out",), "attn_pool.proj", "out"
    yield (f"{pool}LayerNorm_0",), "attn_pool.norm", "norm"
    yield (f"{pool}MlpBlock_0/Dense_0",), "attn_pool.mlp.fc1", "dense"
    yield (f"{pool}MlpBlock_0/Dense_1",), "attn_pool.mlp.fc2", "dense"


def _same_tensors(layout: Mapping[str, Any]) -> dict[str, str]:
    """Return names, theirs to ours, of tensors that need no conversion."""
    return {"cls": "cls_token", layout["position"]: "pos_embed", f"{layout['map']}probe": "attn_pool.latent"}


def _convert(tree: State, state: State, layout: dict[str, Any]) -> int | None:
    """Convert Google's tree into `state`; return the number of heads."""
    rest = dict(tree)
    first = f"Transformer/encoderblock_0/{_BLOCK_NAMES[layout['block']][1]}/query/kernel"
    heads = int(tree[first].shape[1]) if first in tree else None
    depth = 1 + max((int(m[1]) for n in tree if (m := re.match(r"Transformer/encoderblock_(\d{1,4})/", n))), default=-1)
    for theirs, ours, kind in _rows(layout, depth):
        for their_kind, our_kind in _parameter_names(kind):
            names = [f"{module}/{their_kind}" for module in theirs]
            if all(name in rest for name in names):
                state[f"{ours}.{our_kind}"] = torch.cat([_to_ours(rest.pop(name), kind) for name in names])
    for their_name, our_name in _same_tensors(layout).items():
        if their_name in rest:
            state[our_name] = rest.pop(their_name)
    google_resnet.read(rest, state)
    state |= rest  # unknown names, which the caller reports
    return heads


def _parameter_names(kind: str) -> tuple[tuple[str, str], ...]:
    """Return the names of a module's weight and bias, theirs and ours."""
    return ("scale" if kind == "norm" else "kernel", "weight"), ("bias", "bias")


def _to_ours(t: Tensor, kind: str) -> Tensor:
    """Convert one array from Google's order of axes; theirs is in x out, ours is out x in."""
    if kind == "heads":  # D x H x d -> D x D; biases H x d -> D
        return t.flatten(1).t() if t.ndim == 3 else t.flatten()
    if kind == "out":  # H x d x D -> D x D; biases D stay
        return t.flatten(0, 1).t() if t.ndim == 3 else t
    if kind == "conv":
        return t.permute(3, 2, 0, 1) if t.ndim == 4 else t
    return t.t() if kind == "dense" and t.ndim == 2 else t


def _to_theirs(t: Tensor, kind: str, heads: int) -> Tensor:
    """Invert :func:`_to_ours`."""
    if kind == "heads":
        return t.t().unflatten(1, (heads, -1)) if t.ndim == 2 else t.view(heads, -1)
    if kind == "out":
        return t.t().unflatten(0, (heads, -1)) if t.ndim == 2 else t
    if kind == "conv":
        return t.permute(2, 3, 1, 0) if t.ndim == 4 else t
    return t.t() if kind == "dense" and t.ndim == 2 else t


def fixed_constants(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that Google's code fixes at other values, and one line for the user on each."""
    changes: dict[str, Any] = {}
    notes = []
    if config.norm_eps != 1e-6:
        changes["norm_eps"] = 1e-6
        notes.append(note_on_epsilon("Google's code", 1e-6, config))
    if isinstance(config.stem, ResNetStem) and config.stem.norm != "google":
        changes["stem"] = replace(config.stem, norm="google")
        notes.append("Google's ResNet stem standardises with epsilons 1e-5 and 1e-6")
    return changes, notes


def write(model: OutgoingModel) -> ForeignCheckpoint:
    """Return the arrays of an .npz file, in the layout that the model was read from or that of the released files."""
    config, state = model.config, model.state
    model.raise_if_unsupported("Google's code", _unsupported(config))
    layout = model.layout if model.layout.get("family") == "google" else _layout_for(config)
    tree: State = {}
    for theirs, ours, kind in _rows(layout, config.depth):
        for their_kind, our_kind in _parameter_names(kind):
            if f"{ours}.{our_kind}" in state:
                parts = state[f"{ours}.{our_kind}"].chunk(len(theirs))
                for module, part in zip(theirs, parts, strict=True):
                    tree[f"{module}/{their_kind}"] = _to_theirs(part, kind, config.heads)
    tree |= {theirs: state[ours] for theirs, ours in _same_tensors(layout).items() if ours in state}
    google_resnet.write(state, tree, layout["norm_rank"])
    if layout["scan"]:
        tree = _stack(tree, config.depth)
    named = {f"{layout['prefix']}{name}": tensor.contiguous() for name, tensor in tree.items()}
    return ForeignCheckpoint(named, {"sidecar": make_sidecar(config, model.classes, model.pipeline)})


def _layout_for(c: ViTConfig) -> dict[str, Any]:
    """Return the layout for a new file: that of the released files, or big_vision's if only it has such a model."""
    no_cls_position = isinstance(c.position, Learned) and c.position.prefix == "none"
    newer = c.pool.kind == "map" or (c.pool.kind == "cls" and no_cls_position) or c.position.kind == "sincos-2d"
    return {
        "family": "google",
        "prefix": "params/" if newer else "",
        "scan": False,
        "block": "flax" if newer else "released",
        "position": _POSITIONS[2 if newer else 0],
        "map": "MAPHead_0/",
        "norm_rank": 1,
    }


def _stack(tree: State, depth: int) -> State:
    """Stack the arrays of all blocks along a first axis, as big_vision's scan does."""
    first = "Transformer/encoderblock_0/"
    flat = {name: t for name, t in tree.items() if not name.startswith("Transformer/encoderblock_")}
    for name in [name for name in tree if name.startswith(first)]:
        inner = name.removeprefix(first)
        rows = [tree[f"Transformer/encoderblock_{i}/{inner}"] for i in range(depth)]
        flat[f"Transformer/encoderblock/{inner}"] = torch.stack(rows)
    return flat


def _unsupported(c: ViTConfig) -> dict[str, bool]:
    return {
        **beyond_the_paper(c),
        f"stem {c.stem.kind}": not (c.stem.has_patch_kernel or isinstance(c.stem, ResNetStem)),
        f"stem.activation {c.stem.activation}": c.stem.activation != "none",
        f"position {c.position.kind}": c.position.kind not in ("learned", "sincos-2d"),
        f"pool {c.pool.kind}": c.pool.kind not in ("cls", "mean", "map"),
        f"a class token that pool {c.pool.kind} does not read": c.pool.kind != "cls" and c.has_class_token,
        f"{c.registers} registers": c.registers > 0,
        f"final_norm {c.final_norm}": c.final_norm != "tokens",
        f"activation {c.mlp.activation} (--activation gelu-tanh takes it)": c.mlp.activation != "gelu-tanh",
        "no biases on queries, keys and values": not c.attention.qkv_bias,
        "QK-norm": c.attention.qk_norm,
        "LayerScale": c.block.layer_scale is not None,
        "a head activation other than tanh": isinstance(c.head, MlpHead) and c.head.activation != "tanh",
    }
