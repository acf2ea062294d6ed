"""Opens a checkpoint of any family: recognises it by its tensor names, maps it by its adapter, checks every tensor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.checkpoint.adapters import facebookresearch, google, huggingface, timm, torchvision
from vitreous.checkpoint.adapters.common import (
    DECODER,
    ForeignCheckpoint,
    Hints,
    ImportedModel,
    State,
    distinct,
    has_decoder,
    join_first,
)
from vitreous.checkpoint.adapters.others import refuse_others
from vitreous.checkpoint.licence import with_origin
from vitreous.checkpoint.locating import locate, read_foreign
from vitreous.checkpoint.memory_check import check_image
from vitreous.checkpoint.model_config import too_many_blocks
from vitreous.checkpoint.model_file import ModelInfo, build_on_meta, load_kept, load_model
from vitreous.checkpoint.provenance import stored_dtypes, stored_layout, unpack_tensors
from vitreous.checkpoint.resize import Resample, resize_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError, first_line
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.positions import Learned

__all__ = [
    "FAMILIES",
    "THRESHOLDS_OMITTED",
    "THRESHOLDS_VOID",
    "OpenOptions",
    "OpenedCheckpoint",
    "build_model",
    "open_checkpoint",
    "open_with_details",
]

THRESHOLDS_OMITTED = "the format has no place for the thresholds of `vitreous calibrate`: they are left out"
"""The note on a file whose format cannot hold thresholds."""
THRESHOLDS_VOID = "the thresholds of `vitreous calibrate` are left out: they hold only for the model as it was"
"""The note on a file whose computation changed after calibration."""

FAMILIES: dict[str, ModuleType] = {
    "google": google,
    "facebookresearch": facebookresearch,
    "timm": timm,
    "huggingface": huggingface,
    "torchvision": torchvision,
}
"""Adapters by family, in the order in which they are tried."""

Activation = Literal["gelu", "gelu-tanh", "relu", "quick-gelu", "silu"]
_PARTS = {"pre_logits", "head", "mask_token", "cls_position", "float64", "decoder"}  # `drop` values that name no tensor


@dataclass(frozen=True)
class OpenOptions:
    """Changes to a checkpoint while it is opened, and facts that it may not state itself.

    Args:
        image_size: New input size in pixels (height, width); position embeddings are resampled to it.
        patch_size: New patch size in pixels (height, width); the patch kernel is resampled to it (FlexiViT).
        resample: Library whose interpolation resizes the position embeddings. None uses the source family's.
        activation: Replaces the MLPs' activation. `gelu` reproduces timm's numbers with Google's weights.
        drop: Parts to leave out: a tensor name or one component of it, `pre_logits`, `head`, `mask_token`, or
            `cls_position` (its values are added to the class token). `float64` permits rounding to float32.
        add: Parts to add, filled with zeros: `mask_token`, `cls_position`.
        keep: Parts to keep that no command computes: `decoder`, of a masked autoencoder.
        heads: Attention heads per block, if the checkpoint does not state them.
        source_size: Image size in pixels of the checkpoint's position embeddings, if it does not state it.
    """

    image_size: Size2d | None = None
    patch_size: Size2d | None = None
    resample: Resample | None = None
    activation: Activation | None = None
    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    heads: int | None = None
    source_size: Size2d | None = None


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A model together with what is known about its checkpoint."""

    model: FastVisionTransformer  # on the CPU, in evaluation mode, float32
    info: ModelInfo
    family: str  # one of ``FAMILIES``, or ``vitreous``
    reasons: list[str]  # one line per conclusion drawn from the checkpoint and per change made to it, for the user
    layout: dict[str, Any] = field(default_factory=dict)  # what writing the same family's format again requires
    kept: State = field(default_factory=dict)  # tensors that no forward pass reads, such as a mask token
    assumed_pipeline: bool = False  # whether the pipeline is an assumption, because nothing beside the weights says it
    terms: str = ""  # what its licence allows, for the user; empty if nothing is to be said


def open_checkpoint(
    source: str | os.PathLike[str], options: OpenOptions | None = None
) -> tuple[FastVisionTransformer, ModelInfo]:
    """Open a checkpoint of any family from a file, a folder or a hub id."""
    opened = open_with_details(source, options or OpenOptions())
    return opened.model, opened.info


def open_with_details(source: str | os.PathLike[str], options: OpenOptions) -> OpenedCheckpoint:
    """Open a checkpoint like :func:`open_checkpoint`, and also return its family, layout and the lines for the user."""
    located = locate(source)
    if located.is_vitreous:
        if names := [name for name in options.drop if name not in _PARTS]:
            raise CheckpointError(
                f"'{located.name}' is a vitreous model file, whose tensors are all used: omit --drop {' '.join(names)}"
            )
        model, info = load_model(located.file)
        layout = dict(info.provenance.get("layout") or {})
        kept = unpack_tensors(layout.pop("kept", {}), located.name) | load_kept(located.file)
        if "decoder" in options.keep and not has_decoder(kept):
            raise CheckpointError(f"'{located.name}' has no decoder that can be kept: omit --keep decoder")
        reasons = [f"a vitreous model file, format {info.format_version}: its metadata"]
        opened = OpenedCheckpoint(model, info, "vitreous", reasons, layout, kept)
    else:
        opened = _import(read_foreign(located), options)
    info, terms = with_origin(opened.info, located)
    opened = replace(opened, info=info, terms=terms, reasons=[*opened.reasons, *([f"licence {terms}"] * bool(terms))])
    _check_input(opened, options, located.name)
    return _apply_options(opened, options, located.name)


def _check_input(opened: OpenedCheckpoint, options: OpenOptions, name: str) -> None:
    """Check channels, and that one image at the requested size fits in memory before anything of that size exists."""
    pipeline, config = opened.info.pipeline, opened.model.config
    if pipeline.channels != config.in_channels:
        raise CheckpointError(
            f"the evaluation pipeline beside '{name}' produces {pipeline.channels} channels, the model expects "
            f"{config.in_channels}"
        )
    check_image(name, config, pipeline, options.image_size, options.patch_size)


def _recognise(foreign: ForeignCheckpoint) -> tuple[str, str]:
    """Return the family that the tensor names belong to, and the reason."""
    for family, adapter in FAMILIES.items():
        if why := adapter.recognise(foreign.tensors):
            return family, str(why)
    document = foreign.documents.get("config.json") or {}
    stated = str(document.get("model_type") or document.get("architecture") or "")
    claim = f", and config.json says {stated[:100]}" if stated else ""
    raise CheckpointError(
        f"'{foreign.name}' has tensor names of no known family ({join_first(sorted(foreign.tensors))}){claim}. "
        "Supported are Vision Transformers of google, timm, huggingface, torchvision and facebookresearch"
    )


def _import(foreign: ForeignCheckpoint, options: OpenOptions) -> OpenedCheckpoint:
    """Convert a foreign checkpoint to a model; every tensor is used, dropped on request, or reported."""
    refuse_others(foreign)
    family, why = _recognise(foreign)
    dropped = [name for name in foreign.tensors if _matches(name, set(options.drop) - _PARTS)]
    tensors = {name: tensor for name, tensor in foreign.tensors.items() if name not in dropped}
    keep_decoder = "decoder" in options.keep and "decoder" not in options.drop
    hints = Hints(options.heads, pair(options.source_size) if options.source_size else None, keep_decoder)
    try:
        imported: ImportedModel = FAMILIES[family].read(replace(foreign, tensors=tensors), hints)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        if isinstance(error, ConfigError):
            raise CheckpointError(f"'{foreign.name}': {error}") from error
        raise CheckpointError(
            f"the configuration beside '{foreign.name}' is damaged ({type(error).__name__}: {str(error)[:160]})"
        ) from error
    exact = (torch.float32, torch.float16, torch.bfloat16)
    rounded = [
        key
        for key, t in imported.state.items()
        if t.dtype not in exact and not torch.equal(t.to(torch.float32).to(t.dtype), t)
    ]
    if rounded and "float64" not in options.drop:
        raise CheckpointError(
            f"'{foreign.name}' has values that float32 would round, in {join_first(rounded)}: --drop float64 permits it"
        )
    model = build_model(imported.config, imported.state, foreign.name)
    reasons = [f"{family}: {why}", *imported.reasons]
    if keep_decoder and not has_decoder(imported.kept):
        raise CheckpointError(
            f"'{foreign.name}' has no decoder that can be kept: only Hugging Face's ViTMAEForPreTraining and the MAE "
            "of facebookresearch have one"
        )
    unmatched = [name for name in options.drop if name not in _PARTS and not any(_matches(k, [name]) for k in dropped)]
    if unmatched:
        raise CheckpointError(f"'{foreign.name}' has nothing called {join_first(unmatched)} to drop")
    if dropped:
        reasons.append(f"dropped: {join_first(dropped)}")
    layout = imported.layout | stored_dtypes(tensors)
    info = _model_info(imported, layout, foreign.name, reasons)
    return OpenedCheckpoint(model, info, family, reasons, layout, imported.kept, imported.pipeline is None)


def _matches(name: str, drop: Iterable[str]) -> bool:
    """Return whether `drop` lists a tensor's name or one component of it."""
    return bool({name, *name.replace("/", ".").split(".")} & set(drop))


def build_model(config: ViTConfig, state: Mapping[str, Tensor], name: str) -> FastVisionTransformer:
    """Build a model from its configuration and its tensors, converted to float32; one error lists all that misfit."""
    if reason := too_many_blocks(config):
        raise CheckpointError(f"'{name}' cannot be read: {reason}")
    try:
        model = build_on_meta(config)
    except (RuntimeError, OverflowError, TypeError) as error:  # the number of elements overflows
        raise CheckpointError(f"'{name}' has impossible sizes: {first_line(error)}") from error
    expected = model.state_dict()
    unexpected = [key for key in state if key not in expected]
    missing = [key for key in expected if key not in state]
    misfits = [
        f"{key} has shape {list(state[key].shape)}, expected {list(like.shape)}"
        for key, like in expected.items()
        if key in state and state[key].shape != like.shape
    ]
    problems = [f"unexpected tensors: {join_first(unexpected)} (--drop leaves them out)"] * bool(unexpected)
    problems += [f"missing tensors: {join_first(missing)}"] * bool(missing) + misfits[:3]
    if problems:
        raise CheckpointError(f"'{name}' does not fit: {'; '.join(problems)}")
    full = {key: state[key].to(like.dtype).contiguous().clone() for key, like in expected.items()}
    model.load_state_dict(full, assign=True)
    return model.eval()


def _model_info(imported: ImportedModel, layout: dict[str, Any], name: str, reasons: list[str]) -> ModelInfo:
    """Return classes, pipeline and provenance; append what had to be assumed to `reasons`."""
    config = imported.config
    classes, renamed = distinct(imported.classes or tuple(str(i) for i in range(config.num_classes)))
    if imported.classes is None and config.num_classes:
        reasons.append("classes are numbered: the source does not name them")
    if renamed:
        layout["class_names"] = {str(i): imported.classes[i] for i in renamed if imported.classes}
        reasons.append(
            f"{len(renamed)} classes share a name, their index is appended: {join_first(classes[i] for i in renamed)}"
        )
    pipeline = imported.pipeline
    if pipeline is None:
        half = (0.5,) * config.in_channels
        pipeline = EvalPipeline(
            pair(config.image_size), config.in_channels, PreprocessConfig("squash", 1.0, "bilinear", half, half)
        )
        reasons.append("images are squashed and scaled to [-1, 1]: nothing beside the weights says how")
    provenance = {"source": name, "family": imported.family, "layout": stored_layout(layout, imported.kept)}
    try:
        rule = LabelRule.plain(len(classes)) if imported.several else None
        return ModelInfo(classes, pipeline, provenance=provenance, multilabel=rule)
    except ConfigError as error:
        raise CheckpointError(f"'{name}': {error}") from error


def _apply_options(opened: OpenedCheckpoint, options: OpenOptions, name: str) -> OpenedCheckpoint:
    """Apply the requested changes: drop and add parts, replace the activation, resample to another size."""
    config, state = opened.model.config, dict(opened.model.state_dict())
    kept, info, reasons = dict(opened.kept), opened.info, list(opened.reasons)
    provenance = dict(info.provenance)
    config = _drop_and_add(config, state, kept, options, reasons)
    if options.activation and options.activation != config.mlp.activation:
        reasons.append(f"activation {options.activation} replaces {config.mlp.activation} on request: logits change")
        provenance["activation"] = {"source": config.mlp.activation, "chosen": options.activation}
        config = config.with_options({"mlp": {"activation": options.activation}})
    if options.image_size or options.patch_size or options.resample:
        config, state, record = resize_model(config, state, options.image_size, options.patch_size, options.resample)
        if record:
            provenance["resampled"] = record
            reasons.append(f"resampled: {record}")
        info = replace(info, pipeline=replace(info.pipeline, size=pair(config.image_size)))
        if record and has_decoder(kept):
            _remove(kept, DECODER)
            reasons.append("the decoder is left out: its positions are for the size before")
    if config == opened.model.config and kept.keys() == opened.kept.keys():
        return replace(opened, reasons=reasons)
    layout = opened.layout
    if layout:
        provenance["layout"] = stored_layout(layout, kept)
    if config != opened.model.config and info != (plain := info.without_thresholds()):
        info = plain
        reasons.append(THRESHOLDS_VOID)
    classes = info.classes if config.num_classes else ()
    info = replace(info, provenance=provenance, classes=classes, multilabel=info.multilabel if classes else None)
    return replace(opened, model=build_model(config, state, name), info=info, reasons=reasons, kept=kept)


def _drop_and_add(config: ViTConfig, state: State, kept: State, options: OpenOptions, reasons: list[str]) -> ViTConfig:
    """Drop and add the parts that the options name; `state` and `kept` change in place."""
    for name in options.drop:
        if name == "head" and config.num_classes:
            config = replace(config, num_classes=0)
            _remove(state, "head.")
        elif name == "pre_logits" and config.head.kind == "mlp":
            if config.features != config.width and config.num_classes and "head" not in options.drop:
                raise ConfigError(
                    f"the head takes the {config.features} outputs of pre_logits, without it there are {config.width}: "
                    "drop both pre_logits and head"
                )
            config = config.with_options({"head": {"kind": "linear", "zero": config.head.zero}})
            _remove(state, "pre_logits.")
        elif name in {key.split(".")[0] for key in kept} & {"mask_token", "decoder"}:
            _remove(kept, name)
        elif name == "cls_position" and _position_prefix(config) == "cls":
            state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
            state["pos_embed"] = state["pos_embed"][:, 1:]
            config = config.with_options({"position": {"prefix": "none"}})
        elif name in _PARTS - {"float64"}:
            raise CheckpointError(f"there is no {name} to drop")
        else:
            continue
        reasons.append("added to the class token: cls_position" if "cls_" in name else f"dropped: {name}")
    for name in options.add:
        if name == "mask_token" and name not in kept:
            kept[name] = torch.zeros(1, config.width)
        elif name == "cls_position" and _position_prefix(config) == "none":
            state["pos_embed"] = torch.cat((torch.zeros(1, 1, config.width), state["pos_embed"]), 1)
            config = config.with_options({"position": {"prefix": "cls"}})
        else:
            raise CheckpointError(f"--add {name}: the model has it already, or it is no part that can be added")
        reasons.append(f"added, filled with zeros: {name}")
    return config


def _position_prefix(config: ViTConfig) -> str | None:
    """Return which prefix tokens have a learned position; None unless one can move to the token."""
    position = config.position
    if not config.has_class_token or not isinstance(position, Learned) or position.layers != "first":
        return None  # with other layers, blocks add positions to the token as well
    return position.prefix


def _remove(state: State, prefix: str) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        del state[key]
