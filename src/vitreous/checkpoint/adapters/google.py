"""Google's .npz files: the paper's and AugReg's, today's flax naming, and big_vision's, read and written as they were.

A file is described by its layout, which the way back follows: ``prefix`` before every name (``params/``), ``scan``
(blocks stacked along a first axis), the names inside a block (``block``), where positions lie (``position``), where
attention pooling lies (``map``), and ``norm_rank`` (the paper's hybrids keep group norms as 1 x 1 x 1 x C).

Read against google-research/vision_transformer and big_vision. Shapes: D width, H heads, d channels of a head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoint.adapters import google_resnet
from vitreous.checkpoint.adapters.common import Foreign, Hints, Imported, Outgoing, State, Written, refuse
from vitreous.checkpoint.adapters.shapes import config_from
from vitreous.checkpoint.adapters.sidecar import read_sidecar, sidecar
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair

__all__ = ["LAYOUT", "adopt", "read", "recognise", "write"]

_PREFIXES = ("", "params/", "opt/target/")
_BLOCK_NAMES = {  # norm1, attention, norm2, MLP
    "released": ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    "flax": ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
}
_POSITIONS = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding", "pos_embedding")
_HALF = (0.5, 0.5, 0.5)
_KERNELS = {"norm": "scale"}  # all other weights are called kernel

LAYOUT = {
    "prefix": _PREFIXES,
    "scan": (True, False),
    "block": tuple(_BLOCK_NAMES),
    "position": _POSITIONS,
    "map": ("", "MAPHead_0/"),
    "norm_rank": (1, 2, 3, 4),
}
"""What a layout says, with the values that it may have."""


def recognise(tensors: State) -> str | None:
    """Say why these are Google's names, or None."""
    for prefix in _PREFIXES:
        if f"{prefix}embedding/kernel" in tensors and f"{prefix}Transformer/encoder_norm/scale" in tensors:
            return f"Google's names ({prefix}embedding/kernel, {prefix}Transformer/encoder_norm/scale)"
    return None


def read(source: Foreign, hints: Hints) -> Imported:
    """Take the arrays of an .npz file, by name with slashes.

    Names that are none of a Vision Transformer's come back in the state under their own name.

    Raises:
        CheckpointError: If the arrays make no Vision Transformer.
    """
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
    beside = read_sidecar(source)
    reasons = [
        "GELU by the tanh approximation and epsilon 1e-06, as Google's code computes (--activation gelu is timm's way)"
    ]
    known: dict[str, Any] = {"heads": heads, "activation": "gelu-tanh", "norm_eps": 1e-6, "resample": "google"}
    if "pos_embed" not in state:
        known["position"] = "sincos-2d"
        reasons.append("fixed sine-cosine positions: the file has none")
    if beside.pipeline is not None:
        known["image_size"] = beside.pipeline.size
    config = config_from(state, source.name, hints, reasons, resnet_norm="google", **known)
    pipeline = beside.pipeline
    if pipeline is None:
        preprocess = PreprocessConfig(
            "squash", 1.0, "bilinear", _HALF[: config.in_channels], _HALF[: config.in_channels]
        )
        pipeline = EvalPipeline(pair(config.image_size), config.in_channels, preprocess)
        reasons.append("pictures are squashed and scaled to [-1, 1], as Google's code does: the file does not say")
    return Imported("google", config, state, layout, reasons, beside.classes, pipeline)


def _layout(tensors: State) -> dict[str, Any]:
    """Describe how a file is laid out."""
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
    """Cut blocks that lie stacked along a first axis into one entry each."""
    stacked = {key: t for key, t in tree.items() if key.startswith("Transformer/encoderblock/")}
    depths = {len(t) if t.ndim else 0 for t in stacked.values()}
    if len(depths) != 1 or depths == {0}:
        raise CheckpointError(f"'{name}' has stacked blocks of different numbers: {sorted(depths)}")
    flat = {key: t for key, t in tree.items() if key not in stacked}
    for key, t in stacked.items():
        for i, each in enumerate(t.unbind()):
            flat[key.replace("encoderblock/", f"encoderblock_{i}/")] = each
    return flat


def _rows(layout: Mapping[str, Any], depth: int) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield Google's modules, ours that they make up together, and how their tensors turn into ours."""
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


def _plain(layout: Mapping[str, Any]) -> dict[str, str]:
    """Names of tensors that are the same in both."""
    return {"cls": "cls_token", layout["position"]: "pos_embed", f"{layout['map']}probe": "attn_pool.latent"}


def _convert(tree: State, state: State, layout: dict[str, Any]) -> int | None:
    """Move every array from Google's tree to our state; return the number of heads."""
    rest = dict(tree)
    first = f"Transformer/encoderblock_0/{_BLOCK_NAMES[layout['block']][1]}/query/kernel"
    heads = int(tree[first].shape[1]) if first in tree else None
    depth = 1 + max((int(m[1]) for n in tree if (m := re.match(r"Transformer/encoderblock_(\d{1,4})/", n))), default=-1)
    for theirs, ours, kind in _rows(layout, depth):
        for end, own in ((_KERNELS.get(kind, "kernel"), "weight"), ("bias", "bias")):
            names = [f"{each}/{end}" for each in theirs]
            if all(name in rest for name in names):
                state[f"{ours}.{own}"] = torch.cat([_to_ours(rest.pop(name), kind) for name in names])
    for theirs_name, ours in _plain(layout).items():
        if theirs_name in rest:
            state[ours] = rest.pop(theirs_name)
    google_resnet.read(rest, state)
    state |= rest  # what is left is foreign: the caller's check of names finds it
    return heads


def _to_ours(t: Tensor, kind: str) -> Tensor:
    """Turn one array: kernels are in x out in their files, out x in here."""
    if kind == "heads":  # D x H x d -> D x D; biases H x d -> D
        return t.flatten(1).t() if t.ndim == 3 else t.flatten()
    if kind == "out":  # H x d x D -> D x D
        return t.flatten(0, 1).t() if t.ndim == 3 else t
    if kind == "conv":
        return t.permute(3, 2, 0, 1) if t.ndim == 4 else t
    return t.t() if kind == "dense" and t.ndim == 2 else t


def _to_theirs(t: Tensor, kind: str, heads: int) -> Tensor:
    """The way back of :func:`_to_ours`."""
    if kind == "heads":
        return t.t().unflatten(1, (heads, -1)) if t.ndim == 2 else t.view(heads, -1)
    if kind == "out":
        return t.t().unflatten(0, (heads, -1)) if t.ndim == 2 else t
    if kind == "conv":
        return t.permute(2, 3, 1, 0) if t.ndim == 4 else t
    return t.t() if kind == "dense" and t.ndim == 2 else t


def adopt(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the constants that Google's code cannot be told and replaces by its own, and lines for people."""
    changes: dict[str, Any] = {}
    notes = []
    if config.norm_eps != 1e-6:
        changes["norm_eps"] = 1e-6
        notes.append(f"Google's code normalises with epsilon 1e-06, this model with {config.norm_eps:g}")
    if config.stem == "resnet" and config.resnet_norm != "google":
        changes["resnet_norm"] = "google"
        notes.append("Google's ResNet stem standardises with constants of its own (1e-5 and 1e-6)")
    return changes, notes


def write(model: Outgoing) -> Written:
    """Give the arrays of an .npz file in the layout that they came in, else in that of the released files.

    Raises:
        CheckpointError: If Google's code has no such model: everything that it cannot express, in one error.
    """
    config, state = model.config, model.state
    refuse("Google's code", _problems(config, model.kept))
    layout = model.layout if model.layout.get("family") == "google" else _layout_for(config)
    tree: State = {}
    for theirs, ours, kind in _rows(layout, config.depth):
        for end, own in ((_KERNELS.get(kind, "kernel"), "weight"), ("bias", "bias")):
            if f"{ours}.{own}" in state:
                parts = state[f"{ours}.{own}"].chunk(len(theirs))
                tree |= {
                    f"{each}/{end}": _to_theirs(part, kind, config.heads)
                    for each, part in zip(theirs, parts, strict=True)
                }
    tree |= {theirs: state[ours] for theirs, ours in _plain(layout).items() if ours in state}
    google_resnet.write(state, tree, layout["norm_rank"])
    if layout["scan"]:
        tree = _stack(tree, config.depth)
    named = {f"{layout['prefix']}{name}": tensor.contiguous() for name, tensor in tree.items()}
    return Written(named, {"sidecar": sidecar(config, model.classes, model.pipeline)})


def _layout_for(c: ViTConfig) -> dict[str, Any]:
    """The layout of a new file: released names, unless only big_vision has such a model."""
    newer = c.pool == "map" or (c.pool == "cls" and c.position_prefix == "none") or c.position == "sincos-2d"
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
    """Stack blocks along a first axis, as big_vision's scan does."""
    first = "Transformer/encoderblock_0/"
    flat = {name: t for name, t in tree.items() if not name.startswith("Transformer/encoderblock_")}
    for name in [name for name in tree if name.startswith(first)]:
        inner = name.removeprefix(first)
        rows = [tree[f"Transformer/encoderblock_{i}/{inner}"] for i in range(depth)]
        flat[f"Transformer/encoderblock/{inner}"] = torch.stack(rows)
    return flat


def _problems(c: ViTConfig, kept: State) -> list[str]:
    """Everything that Google's code has no argument for."""
    odd = {
        f"stem {c.stem}": c.stem == "conv",
        f"patch_activation {c.patch_activation}": c.patch_activation != "none",
        f"position {c.position}": c.position not in ("learned", "sincos-2d"),
        f"pool {c.pool}": c.pool in ("seq", "cls-mean"),
        f"a class token that pool {c.pool} does not read": c.pool != "cls" and c.has_class_token,
        f"{c.registers} registers": c.registers > 0,
        f"final_norm {c.final_norm}": c.final_norm != "tokens",
        f"activation {c.activation} (--activation gelu-tanh takes it)": c.activation != "gelu-tanh",
        "no biases on queries, keys and values": not c.qkv_bias,
        "QK-norm": c.qk_norm,
        "LayerScale": c.layer_scale is not None,
        f"head activation {c.head_activation}": c.head == "mlp" and c.head_activation != "tanh",
    }
    problems = [what for what, is_odd in odd.items() if is_odd]
    return problems + [f"{name} (--drop {name} leaves it out)" for name in kept]
