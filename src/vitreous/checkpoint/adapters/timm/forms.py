"""How timm's classes store the same model: names and shapes of tensors, mapped to this package's and back.

``VisionTransformer`` has this package's names. ``Eva`` and ``Beit`` keep the biases of queries and values, or all three
matrices, apart; their LayerScale and gates have other names; parallel blocks have one matrix for attention and MLP; a
distilled DeiT has two heads, whose mean is one head on both tokens. A layout records the form of each.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vitreous.checkpoint.adapters.common import State
from vitreous.checkpoint.adapters.stacking import (
    cut,
    cut_heads,
    join,
    join_heads,
    kernel_of_rows,
    prefixes,
    renamed,
    rows_of_kernel,
)

__all__ = ["FORMS", "from_ours", "to_ours"]

FORMS = {
    "qkv": (None, "fused", "biases", "separate"),
    "scale": (None, "ls", "gamma"),
    "gate": (None, "packed", "split"),
    "parallel": (None, False, True),
    "distilled": (None, False, True),
    "embeds": (None, False, True),
}
"""Entries of a layout and their allowed values; None in files from before they existed, for the first form."""

_GAMMA = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
_RELATIVE = {
    "attn.relative_position_bias_table": "attn.relative_bias",
    "rel_pos_bias.relative_position_bias_table": "pos_embed_relative",
    **{
        f"{theirs}.mlp.fc{layer}.{kind}": f"{ours}_{kind}{layer}"
        for theirs, ours in (("attn.rel_pos", "attn.relative"), ("shared_rel_pos", "pos_embed"))
        for layer in (1, 2)
        for kind in ("weight", "bias")
    },
}
_PARALLEL = {
    **{f"in_norm.{kind}": f"norm1.{kind}" for kind in ("weight", "bias")},
    **{f"{part}_norm.{kind}": f"attn.{part}_norm.{kind}" for part in "qk" for kind in ("weight", "bias")},
    **{f"attn_out_proj.{kind}": f"attn.proj.{kind}" for kind in ("weight", "bias")},
    **{f"mlp_out_proj.{kind}": f"mlp.fc2.{kind}" for kind in ("weight", "bias")},
    "mlp_bias": "mlp.fc1.bias",
    "ls.gamma": "ls1.gamma",
}


def to_ours(tensors: State) -> tuple[State, dict[str, object], Tensor | None]:
    """Return the tensors under this package's names, the forms they had, and the biases of two heads, (2, K)."""
    state = dict(tensors)
    forms: dict[str, object] = dict.fromkeys(FORMS, False)
    forms |= {"qkv": "fused", "scale": "ls", "gate": "packed"}
    if "blocks.0.in_proj.weight" in state:
        forms["parallel"] = True
        state = _split_parallel(renamed(state, _PARALLEL))
    if "blocks.0.gamma_1" in state:
        forms["scale"] = "gamma"
        state = renamed(state, _GAMMA)
    if "embeds.proj.weight" in state:
        forms["embeds"] = True
        _read_embeds(state)
    state = renamed(state, _RELATIVE)
    for block in prefixes(state):
        attn, mlp = f"{block}attn.", f"{block}mlp."
        if join(state, f"{attn}qkv.weight", [f"{attn}{part}_proj.weight" for part in "qkv"]):
            forms["qkv"] = "separate"
        join(state, f"{attn}qkv.bias", [f"{attn}{part}_proj.bias" for part in "qkv"])
        join(state, f"{attn}qkv.bias", [f"{attn}{part}_proj.bias" for part in "qv"])
        if join(state, f"{attn}qkv.bias", [f"{attn}{part}_bias" for part in "qv"]):
            forms["qkv"] = "biases"
        for kind in ("weight", "bias"):
            if join(state, f"{mlp}fc1.{kind}", [f"{mlp}fc1_{part}.{kind}" for part in "gx"]):
                forms["gate"] = "split"
    if "rope.freqs" in state and state["rope.freqs"].ndim == 4:
        for block, frequencies in zip(prefixes(state), state.pop("rope.freqs").unbind(1), strict=True):
            state[f"{block}attn.rope_frequencies"] = frequencies
    biases = None
    if "dist_token" in state and "head_dist.weight" in state:
        forms["distilled"] = True
        state["reg_token"] = state.pop("dist_token")
        biases = join_heads(state)
    return state, forms, biases


def _read_embeds(state: State) -> None:
    """Move the tensors of NaFlexViT's embedding to where they are here, in place; its table has rows and columns."""
    for name in [name for name in state if name.startswith("embeds.")]:
        ours = name.removeprefix("embeds.")
        state[f"patch_embed.{ours}" if ours.startswith("proj.") else ours] = state.pop(name)
    kernel = state["patch_embed.proj.weight"]
    if kernel.ndim == 2:  # rows of flattened patches, pixel by pixel
        state["patch_embed.proj.weight"] = kernel_of_rows(kernel)
    if "pos_embed" in state and state["pos_embed"].ndim == 4:
        state["pos_embed"] = state["pos_embed"].flatten(1, 2)


def _write_embeds(state: State, grid: tuple[int, int]) -> None:
    """Undo :func:`_read_embeds`."""
    state["embeds.proj.weight"] = rows_of_kernel(state.pop("patch_embed.proj.weight"))
    for name in ("patch_embed.proj.bias", "cls_token", "reg_token", "pos_embed"):
        if name in state:
            state[f"embeds.{name.removeprefix('patch_embed.')}"] = state.pop(name)
    if "embeds.pos_embed" in state:
        state["embeds.pos_embed"] = state["embeds.pos_embed"].unflatten(1, grid)


def _split_parallel(state: State) -> State:
    """Cut the matrix of parallel blocks into that of the MLP and that of attention."""
    for block in prefixes(state):
        for kind in ("weight", "bias"):
            whole = state.pop(f"{block}in_proj.{kind}", None)
            if whole is not None:
                width = state[f"{block}norm1.weight"].shape[0]
                hidden = whole.shape[0] - 3 * width
                state[f"{block}mlp.fc1.{kind}"], state[f"{block}attn.qkv.{kind}"] = whole.split([hidden, 3 * width])
    return state


def from_ours(ours: State, forms: Mapping[str, object], biases: Tensor | None, grid: tuple[int, int]) -> State:
    """Undo :func:`to_ours`. The biases of two heads are used if their mean is still the head's bias.

    Args:
        ours: The model's tensors.
        forms: As :func:`to_ours` returned them.
        biases: Likewise.
        grid: Rows and columns of patches of the position embedding.
    """
    state = dict(ours)
    if forms.get("embeds"):
        _write_embeds(state, grid)
    if forms.get("distilled"):
        state["dist_token"] = state.pop("reg_token")
        cut_heads(state, biases)
    blocks = prefixes(state)
    for block in blocks:
        attn, mlp = f"{block}attn.", f"{block}mlp."
        if forms.get("qkv") == "separate":
            cut(state, f"{attn}qkv.weight", [f"{attn}{part}_proj.weight" for part in "qkv"])
        if forms.get("qkv") in ("separate", "biases") and f"{attn}qkv.bias" in state:
            parts = "qkv" if len(state[f"{attn}qkv.bias"]) == 3 * state[f"{attn}proj.weight"].shape[1] else "qv"
            name = "{}_bias" if forms["qkv"] == "biases" else "{}_proj.bias"
            cut(state, f"{attn}qkv.bias", [attn + name.format(part) for part in parts])
        if forms.get("gate") == "split":
            for kind in ("weight", "bias"):
                cut(state, f"{mlp}fc1.{kind}", [f"{mlp}fc1_{part}.{kind}" for part in "gx"])
    if f"{blocks[0]}attn.rope_frequencies" in state:
        state["rope.freqs"] = torch.stack([state.pop(f"{block}attn.rope_frequencies") for block in blocks], 1)
    state = renamed(state, {value: name for name, value in _RELATIVE.items()})
    if forms.get("scale") == "gamma":
        state = renamed(state, {value: name for name, value in _GAMMA.items()})
    return _join_parallel(state) if forms.get("parallel") else state


def _join_parallel(state: State) -> State:
    """Undo :func:`_split_parallel` and the names."""
    for block in prefixes(state):
        for kind in ("weight", "bias"):
            parts = [f"{block}mlp.fc1.{kind}", f"{block}attn.qkv.{kind}"]
            if all(part in state for part in parts):
                state[f"{block}in_proj.{kind}"] = torch.cat([state.pop(part) for part in parts])
    return renamed(state, {value: name for name, value in _PARALLEL.items()})
