"""Files of facebookresearch: DINOv3, and MAE with its decoder, in both directions; DINOv2 and MAE's encoder, written.

Names and arguments are timm's but for a few, so that timm's adapter reads what this one translates. DINOv3 stores a
mask of the biases of queries, keys and values, the periods of its rotary positions, and three matrices of gated MLPs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoint.adapters.common import (
    DECODER,
    ForeignCheckpoint,
    Hints,
    ImportedModel,
    OutgoingModel,
    State,
    beyond_the_paper,
    has_decoder,
    note_on_epsilon,
)
from vitreous.checkpoint.adapters.releases import images_of_dinov3, to_dinov2
from vitreous.checkpoint.adapters.sidecar import make_sidecar
from vitreous.checkpoint.adapters.stacking import cut, prefixes
from vitreous.checkpoint.adapters.timm.reading import read_translated
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair
from vitreous.model.positions import Learned
from vitreous.model.positions.rope_2d import Rope2d

__all__ = ["LAYOUT", "fixed_constants", "read", "recognise", "write"]

_PERIODS, _REGISTERS, _LOCAL_NORM = "rope_embed.periods", "storage_tokens", "local_cls_norm."
_GATED = {"mlp.w1.": "mlp.fc1_g.", "mlp.w2.": "mlp.fc1_x.", "mlp.w3.": "mlp.fc2."}
_ROTARY = Rope2d(coordinates="centred", first="row", pairs="halves")
_NO_KEYS = (1.0, 0.0, 1.0)  # factors of the biases of queries, keys and values
_MULTIPLE = 8  # of the hidden width of gated MLPs

LAYOUT: dict[str, tuple[Any, ...]] = {}
"""No entries: the configuration shows which of the models it is."""


def recognise(tensors: State) -> str | None:
    """Return the reason why these are the names of facebookresearch's DINOv3 or of its MAE with a decoder, or None."""
    if _PERIODS in tensors and "blocks.0.attn.qkv.weight" in tensors:
        return f"facebookresearch/dinov3's names ({_PERIODS}, blocks.0.attn.qkv)"
    if "patch_embed.proj.weight" in tensors and any(name.startswith("decoder_blocks.") for name in tensors):
        return "facebookresearch/mae's names (patch_embed.proj, decoder_blocks.0)"
    return None


def read(source: ForeignCheckpoint, hints: Hints) -> ImportedModel:
    """Convert a state dict, and the JSON file beside it if there is one."""
    arguments: dict[str, Any] = {}
    reasons: list[str] = []
    if _PERIODS in source.tensors:
        state, kept, arguments = _from_dinov3(dict(source.tensors), source.name)
    else:
        state, kept = _from_mae(source.tensors, hints.keep_decoder)
        reasons.append(f"the decoder is {'kept; no command computes it' if kept else 'left out'}")
    images = images_of_dinov3(source.name) if arguments else {"crop_ratio": 0.875}
    imported = read_translated(replace(source, tensors=state), hints, arguments, images)
    return replace(
        imported,
        family="facebookresearch",
        layout={"family": "facebookresearch"},
        reasons=[*reasons, *imported.reasons],
        kept=imported.kept | kept,
    )


def _from_mae(tensors: State, keep_decoder: bool) -> tuple[State, State]:
    """Return the encoder, and the decoder if it is to be kept."""
    decoder = {name: t for name, t in tensors.items() if name.startswith("decoder_") or name == "mask_token"}
    encoder = {name: t for name, t in tensors.items() if name not in decoder}
    return encoder, {f"{DECODER}{name}": t for name, t in decoder.items()} if keep_decoder else {}


def _from_dinov3(state: State, name: str) -> tuple[State, State, dict[str, Any]]:
    """Return the tensors under timm's names, those that no forward pass reads, and arguments of timm's constructor."""
    periods = state.pop(_PERIODS)
    unread = [key for key in state if key == "mask_token" or key.startswith(_LOCAL_NORM)]
    kept = {"rope_periods": periods} | {key: state.pop(key) for key in unread}
    if _REGISTERS in state:
        state["reg_token"] = state.pop(_REGISTERS)
    kept |= _mask_biases(state, name)
    renamed: State = {}
    for key, tensor in state.items():
        ours = key
        for theirs, timms in _GATED.items():
            ours = ours.replace(theirs, timms)
        renamed[ours] = tensor
    width = renamed["blocks.0.attn.qkv.weight"].shape[-1]
    arguments = {
        "num_heads": max(1, width // (4 * max(1, len(periods)))),  # a head turns rows and columns, in pairs
        "use_rot_pos_emb": True,
        "rope_type": "dinov3",
        "rope_temperature": _ROTARY.theta,
        "rope_rotate_half": True,
        "rope_rounding": _rounding(periods, name),
        "norm_eps": 1e-5,
        "global_pool": "token",
    }
    return renamed, kept, arguments


def _mask_biases(state: State, name: str) -> State:
    """Replace biases and their masks by the biases that count; return what writing them again requires.

    In released files masks are 0 everywhere, where training begins with 1 for queries and values.
    """
    stored, masks, differ = [], [], False
    for block in prefixes(state):
        bias, mask = f"{block}attn.qkv.bias", state.pop(f"{block}attn.qkv.bias_mask", None)
        if mask is None:
            continue
        factors = mask.unflatten(0, (3, -1))  # (3, D)
        masked = state[bias] * mask
        queries, keys, values = masked.chunk(3)
        if not torch.equal(factors, factors[:, :1].expand_as(factors)) or bool(keys.any()):
            raise CheckpointError(
                f"'{name}' has biases of keys, or masks some biases alone ({bias}_mask), which vitreous does not "
                "support"
            )
        stored.append(state.pop(bias))
        masks.append(factors[:, 0])
        differ = differ or not torch.equal(stored[-1], masked)
        state[f"{block}attn.q_bias"], state[f"{block}attn.v_bias"] = queries, values
    if not masks:
        return {}
    return {"bias_mask": torch.stack(masks)} | ({"qkv_bias": torch.stack(stored)} if differ else {})


def _periods(count: int) -> Tensor:
    """Return the periods of rotary positions, (count,) in float64."""
    return _ROTARY.theta ** (torch.arange(count, dtype=torch.float64) / count)


def _rounding(periods: Tensor, name: str) -> str:
    """Return how the periods of a file were rounded; `name` is the checkpoint's in messages."""
    exact, found = _periods(len(periods)), periods.to(torch.float32)
    if torch.equal(found, exact.to(torch.bfloat16).to(torch.float32)):
        return "bfloat16"
    if torch.allclose(found, exact.to(torch.float32), rtol=1e-6):
        return "none"
    raise CheckpointError(f"'{name}' has rotary periods other than DINOv3's, which vitreous does not support")


def fixed_constants(config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that facebookresearch fixes at other values, and one line for the user on each."""
    kind = _kind(config)
    eps = 1e-5 if kind == "DINOv3" else 1e-6
    if config.norm_eps == eps:
        return {}, []
    return {"norm_eps": eps}, [note_on_epsilon(f"facebookresearch's {kind}", eps, config)]


def write(model: OutgoingModel) -> ForeignCheckpoint:
    """Return the tensors of facebookresearch's DINOv3, DINOv2 or MAE, and a JSON file with everything else."""
    config, kept, kind = model.config, model.kept, _kind(model.config)
    unsupported = _unsupported(config, kind) | (
        _of_mae(config, kept) if kind == "MAE" else _of_dino(config, kept, kind)
    )
    model.raise_if_unsupported(f"facebookresearch's {kind}", unsupported, keeps=True)
    _check_kept(config, kept)
    if kind == "DINOv3":
        tensors = _to_dinov3(model.state, config, kept)
    elif kind == "DINOv2":
        tensors = {to_dinov2(name, config.mlp.kind == "gated"): tensor for name, tensor in model.state.items()}
    else:
        decoder = {name.removeprefix(DECODER): t for name, t in kept.items() if name.startswith(DECODER)}
        tensors = model.state | decoder
    if kind != "MAE":
        tensors["mask_token"] = kept["mask_token"].reshape(1, config.width)
    sidecar = make_sidecar(config, model.classes, model.pipeline)
    return ForeignCheckpoint(tensors, {"sidecar": sidecar}, inside="model" if kind == "MAE" else None)


def _check_kept(c: ViTConfig, kept: State) -> None:
    """Raise a CheckpointError if tensors that a model file kept do not fit its model."""
    expected = {
        "bias_mask": 3 * c.depth,
        "qkv_bias": 3 * c.depth * c.width,
        "rope_periods": c.width // c.heads // 4,
        **{f"{_LOCAL_NORM}{kind}": c.width for kind in ("weight", "bias")},
    }
    if _kind(c) != "MAE":
        expected["mask_token"] = c.width
    for name, count in expected.items():
        if name in kept and kept[name].numel() != count:
            raise CheckpointError(f"the model's unused tensor {name} has {kept[name].numel()} values, expected {count}")


def _to_dinov3(ours: State, config: ViTConfig, kept: State) -> State:
    """Undo :func:`_from_dinov3`."""
    state = dict(ours)
    for number, block in enumerate(prefixes(state)):
        bias = f"{block}attn.qkv.bias"
        if bias in state and not config.attention.key_bias:
            state[bias], state[f"{bias}_mask"] = _biases(state[bias], number, kept)
        for kind in ("weight", "bias") if config.mlp.kind == "gated" else ():
            cut(state, f"{block}mlp.fc1.{kind}", [f"{block}mlp.w1.{kind}", f"{block}mlp.w2.{kind}"])
            state[f"{block}mlp.w3.{kind}"] = state.pop(f"{block}mlp.fc2.{kind}")
    if "reg_token" in state:
        state[_REGISTERS] = state.pop("reg_token")
    if "rope_periods" in kept:
        state[_PERIODS] = kept["rope_periods"]
    else:
        rounding = config.position.rounding if isinstance(config.position, Rope2d) else "none"
        dtype = torch.bfloat16 if rounding == "bfloat16" else torch.float32
        state[_PERIODS] = _periods(config.width // config.heads // 4).to(dtype)
    return state | {name: tensor for name, tensor in kept.items() if name.startswith(_LOCAL_NORM)}


def _biases(own: Tensor, number: int, kept: State) -> tuple[Tensor, Tensor]:
    """Return the biases of a block as they are stored, and their mask, (3 D,) each.

    Args:
        own: Biases of queries and values, (2 D,).
        number: Of the block.
        kept: What :func:`_mask_biases` returned. If the biases have changed since, the mask leaves them as they are.
    """
    queries, values = own.chunk(2)
    effective = torch.cat((queries, torch.zeros_like(queries), values))
    if "bias_mask" in kept:
        mask = kept["bias_mask"][number].repeat_interleave(len(queries))
        stored = kept["qkv_bias"][number] if "qkv_bias" in kept else effective
        if torch.equal((stored * mask).to(effective.dtype), effective):
            return stored, mask
    return effective, torch.tensor(_NO_KEYS).repeat_interleave(len(queries))


def _kind(c: ViTConfig) -> str:
    """Return which of facebookresearch's models has the most in common with one."""
    if isinstance(c.position, Rope2d):
        return "DINOv3"
    return "DINOv2" if c.block.layer_scale is not None else "MAE"


def _unsupported(c: ViTConfig, kind: str) -> dict[str, bool]:
    """Return what a kind of model lacks, and whether this one has it."""
    gated, rows, columns = c.mlp.kind == "gated", *c.grid
    return {
        **beyond_the_paper(c),
        f"mlp {c.mlp.kind}": gated and kind == "MAE",
        f"a gated MLP of {c.mlp_dim}, no multiple of {_MULTIPLE}": gated and c.mlp_dim % _MULTIPLE != 0,
        f"activation {c.mlp.activation}": c.mlp.activation != ("silu" if gated else "gelu"),
        "no biases of queries, keys and values": kind != "DINOv3" and not c.attention.qkv_bias,
        "a bias of queries and values, but not of keys": kind != "DINOv3" and not c.attention.key_bias,
        f"stem {c.stem.kind}": not c.stem.has_patch_kernel,
        f"stem.activation {c.stem.activation}": c.stem.activation != "none",
        f"patches of {c.patch_size}, not square": len(set(pair(c.patch_size))) > 1,
        f"a grid of {rows} x {columns} positions, not square": kind != "DINOv3" and rows != columns,
        "QK-norm": c.attention.qk_norm,
        "a model without class token": not c.has_class_token,
        "a class token without a position (--add cls_position writes one of zeros)": (
            isinstance(c.position, Learned) and c.position.prefix == "none"
        ),
        "pre_logits (--drop pre_logits leaves it out)": c.head.kind == "mlp",
    }


def _of_dino(c: ViTConfig, kept: State, kind: str) -> dict[str, bool]:
    """Return what DINOv2 or DINOv3 lacks, and whether the model has it."""
    plain = {"rounding": "none", "shift": 0.0, "jitter": 0.0, "rescale": 0.0, "resample": _ROTARY.resample}
    rotary = isinstance(c.position, Rope2d) and replace(c.position, **plain) == _ROTARY  # type: ignore[arg-type]
    learned = isinstance(c.position, Learned) and c.position.prefix in ("cls", "none")
    return {
        f"position {c.position.kind} as it is set here": not (rotary if kind == "DINOv3" else learned),
        "no LayerScale": c.block.layer_scale is None,
        f"pool {c.pool.kind}": c.pool.kind != "cls",
        f"final_norm {c.final_norm}": c.final_norm != "tokens",
        "a head (--drop head leaves it out)": c.num_classes > 0,
        "no mask token (--add mask_token writes one of zeros)": "mask_token" not in kept,
        "a decoder (--drop decoder leaves it out)": has_decoder(kept),
    }


def _of_mae(c: ViTConfig, kept: State) -> dict[str, bool]:
    """Return what MAE lacks, and whether the model has it."""
    on_token = c.pool.kind == "cls" and c.final_norm == "tokens"
    on_mean = c.pool.kind == "mean" and c.final_norm == "pooled" and not getattr(c.pool, "prefix", False)
    learned = isinstance(c.position, Learned) and c.position.prefix in ("cls", "none")
    theirs = any(name.startswith(f"{DECODER}decoder_layers.") for name in kept)
    return {
        f"position {c.position.kind} as it is set here": not learned,
        f"{c.registers} registers": c.registers > 0,
        f"pool {c.pool.kind} with final_norm {c.final_norm}": not (on_token or on_mean),
        "a mask token (--drop mask_token leaves it out)": "mask_token" in kept,
        "transformers' decoder (--drop decoder leaves it out)": theirs,
    }
