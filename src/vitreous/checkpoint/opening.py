"""Any checkpoint to a model of ours: recognised by its names, mapped by its adapter, checked tensor by tensor."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.checkpoint.adapters import google, huggingface, timm, torchvision
from vitreous.checkpoint.adapters.common import Foreign, Hints, Imported, State, few
from vitreous.checkpoint.locating import locate, read_foreign
from vitreous.checkpoint.memory_check import check_image
from vitreous.checkpoint.model_file import MOST_BLOCKS, ModelInfo, load_model, skeleton
from vitreous.checkpoint.provenance import unpacked
from vitreous.checkpoint.resize import Resample, resized
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.vit import VisionTransformer

__all__ = ["FAMILIES", "OpenOptions", "Opened", "build", "open_checkpoint", "open_fully"]

FAMILIES: dict[str, ModuleType] = {
    "google": google,
    "timm": timm,
    "huggingface": huggingface,
    "torchvision": torchvision,
}
"""Adapters by the name of their family."""

Activation = Literal["gelu", "gelu-tanh", "relu"]
_PARTS = {"pre_logits", "head", "mask_token", "cls_position", "float64"}  # left out of the model, not of the source


@dataclass(frozen=True)
class OpenOptions:
    """What may be asked of a checkpoint while it is opened.

    Args:
        image_size: Height and width in pixels that the model is to see; positions are resampled to it.
        patch_size: Height and width of a patch in pixels; the patch kernel is resampled to it (FlexiViT).
        resample: Whose function resizes positions; None: that of the family that the checkpoint comes from.
        activation: Of the MLPs, in place of the source's own. `gelu` gives timm's numbers with Google's weights.
        drop: What may be left out: a tensor's name or a part of it, `pre_logits`, `head`, `mask_token`, or
            `cls_position`, which is added to the class token itself.
        add: What may be added: `mask_token` (of zeros), `cls_position` (of zeros).
        heads: Attention heads per block, where nothing beside the weights says.
        source_size: Height and width in pixels that the file's positions are laid out for, where nothing says.
    """

    image_size: Size2d | None = None
    patch_size: Size2d | None = None
    resample: Resample | None = None
    activation: Activation | None = None
    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    heads: int | None = None
    source_size: Size2d | None = None


@dataclass(frozen=True)
class Opened:
    """An opened checkpoint.

    Args:
        model: On the CPU, in evaluation mode, float32.
        info: Its classes, pipeline and provenance.
        family: Where it comes from.
        reasons: Lines for people: what was recognised and why, what was changed.
        layout: What the way back to the same family needs.
        kept: Tensors that no forward pass reads.
    """

    model: VisionTransformer
    info: ModelInfo
    family: str
    reasons: list[str]
    layout: dict[str, Any] = field(default_factory=dict)
    kept: State = field(default_factory=dict)


def open_checkpoint(
    source: str | os.PathLike[str], options: OpenOptions | None = None
) -> tuple[VisionTransformer, ModelInfo]:
    """Open a checkpoint of any family, from a file, a folder or a hub id.

    Raises:
        CheckpointError: If it is missing, damaged, of no known family, or has tensors that would be lost.
        ConfigError: If a size asked for does not fit.
        MissingExtraError: If it is a hub id and huggingface_hub is not installed.
    """
    opened = open_fully(source, options or OpenOptions())
    return opened.model, opened.info


def open_fully(source: str | os.PathLike[str], options: OpenOptions) -> Opened:
    """Open a checkpoint as :func:`open_checkpoint` does, with what was recognised and why."""
    located = locate(source)
    if located.own:
        model, info = load_model(located.file)
        layout = dict(info.provenance.get("layout") or {})
        kept = unpacked(layout.pop("kept", {}), located.name)
        reasons = [f"read as a model file of vitreous, format {info.format_version}, as its metadata says"]
        opened = Opened(model, info, "vitreous", reasons, layout, kept)
    else:
        opened = _import(read_foreign(located), options)
    _check(opened, options, located.name)
    return _changed(opened, options, located.name)


def _check(opened: Opened, options: OpenOptions, name: str) -> None:
    """See that an image fits into the memory, at the size that is meant, before anything of that size is made."""
    pipeline, config = opened.info.pipeline, opened.model.config
    if pipeline.channels != config.in_channels:
        raise CheckpointError(
            f"the evaluation pipeline beside '{name}' gives {pipeline.channels} channels, the model expects "
            f"{config.in_channels}"
        )
    check_image(name, config, pipeline, options.image_size, options.patch_size)


def _recognise(foreign: Foreign) -> tuple[str, str]:
    """Return the family whose names these are, and why.

    Raises:
        CheckpointError: If no family's are.
    """
    for family, adapter in FAMILIES.items():
        why = adapter.recognise(foreign.tensors)
        if why:
            return family, str(why)
    document = foreign.documents.get("config.json") or {}
    said = str(document.get("model_type") or document.get("architecture") or "")
    claim = f", and config.json says {said[:100]}" if said else ""
    raise CheckpointError(
        f"'{foreign.name}' has names of no known family ({few(sorted(foreign.tensors))}){claim}: google, timm, "
        "huggingface and torchvision Vision Transformers are read"
    )


def _import(foreign: Foreign, options: OpenOptions) -> Opened:
    """Map a foreign checkpoint to a model, and account for every tensor."""
    family, why = _recognise(foreign)
    dropped = [name for name in foreign.tensors if _named(name, set(options.drop) - _PARTS)]
    tensors = {name: tensor for name, tensor in foreign.tensors.items() if name not in dropped}
    hints = Hints(options.heads, pair(options.source_size) if options.source_size else None)
    try:
        found: Imported = FAMILIES[family].read(Foreign(tensors, foreign.documents, foreign.name), hints)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise CheckpointError(f"'{foreign.name}': {error}") from error
        raise CheckpointError(
            f"the configuration beside '{foreign.name}' is damaged ({type(error).__name__}: {str(error)[:160]})"
        ) from error
    wide = {key: t for key, t in found.state.items() if t.dtype not in (torch.float32, torch.float16, torch.bfloat16)}
    odd = [key for key, t in wide.items() if not torch.equal(t.to(torch.float32).to(t.dtype), t)]
    if odd and "float64" not in options.drop:
        raise CheckpointError(
            f"'{foreign.name}' has numbers that float32 would round, in {few(odd)}: --drop float64 accepts that"
        )
    model = build(found.config, found.state, foreign.name)
    reasons = [f"{family}: {why}", *found.reasons]
    idle = [name for name in options.drop if name not in _PARTS and not any(_named(key, [name]) for key in dropped)]
    if idle:
        raise CheckpointError(f"'{foreign.name}' has nothing called {few(idle)} to drop")
    if dropped:
        reasons.append(f"left out: {few(dropped)}")
    layout = found.layout | _dtypes(tensors)
    info = _info(found, layout, foreign.name, reasons)
    return Opened(model, info, family, reasons, layout, found.kept)


def _named(name: str, drop: Iterable[str]) -> bool:
    return bool({name, *name.replace("/", ".").split(".")} & set(drop))


def build(config: ViTConfig, state: Mapping[str, Tensor], name: str) -> VisionTransformer:
    """Make the model of a configuration and give it its tensors, as float32.

    Raises:
        CheckpointError: If a tensor would be left over, is missing or has another shape: all of them in one error.
    """
    if config.depth > MOST_BLOCKS or sum(config.resnet_layers) > MOST_BLOCKS:
        raise CheckpointError(f"'{name}' claims {config.depth} blocks: no model has as many")
    try:
        model = skeleton(config)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch cannot even count the elements
        raise CheckpointError(f"'{name}' has sizes that no model has: {str(error).splitlines()[0][:160]}") from error
    expected = model.state_dict()
    left = [key for key in state if key not in expected]
    missing = [key for key in expected if key not in state]
    misfits = [
        f"{key} has shape {list(state[key].shape)}, expected {list(like.shape)}"
        for key, like in expected.items()
        if key in state and state[key].shape != like.shape
    ]
    problems = [f"would be lost: {few(left)} (--drop leaves out what it names)"] * bool(left)
    problems += [f"missing: {few(missing)}"] * bool(missing) + misfits[:3]
    if problems:
        raise CheckpointError(f"'{name}' does not fit: {'; '.join(problems)}")
    full = {key: state[key].to(like.dtype).contiguous().clone() for key, like in expected.items()}
    model.load_state_dict(full, assign=True)
    return model.eval()


def _dtypes(tensors: State) -> dict[str, Any]:
    """What the way back needs to know of number formats, where they are not all float32."""
    kinds = {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()}
    if set(kinds.values()) <= {"float32"}:
        return {}
    one = set(kinds.values())
    return {"dtypes": {"*": one.pop()} if len(one) == 1 else {k: v for k, v in kinds.items() if v != "float32"}}


def _info(found: Imported, layout: dict[str, Any], name: str, reasons: list[str]) -> ModelInfo:
    """Return what the artifact says beside the weights."""
    config = found.config
    classes, renamed = _distinct(found.classes or tuple(str(i) for i in range(config.num_classes)))
    if found.classes is None and config.num_classes:
        reasons.append("classes are numbered: the source names none")
    if renamed:
        layout["class_names"] = {str(i): found.classes[i] for i in renamed if found.classes}
        reasons.append(
            f"{len(renamed)} classes share a name and got their number after it: {few(classes[i] for i in renamed)}"
        )
    pipeline = found.pipeline
    if pipeline is None:
        half = (0.5,) * config.in_channels
        pipeline = EvalPipeline(
            pair(config.image_size), config.in_channels, PreprocessConfig("squash", 1.0, "bilinear", half, half)
        )
        reasons.append("pictures are squashed and scaled to [-1, 1]: nothing beside the weights says how")
    kept = {key: _pack(tensor) for key, tensor in found.kept.items()}
    provenance = {
        "source": name,
        "family": found.family,
        "layout": layout | ({"kept": kept} if kept else {}),
    }
    try:
        return ModelInfo(classes, pipeline, provenance=provenance)
    except ConfigError as error:
        raise CheckpointError(f"'{name}': {error}") from error


def _distinct(classes: tuple[str, ...]) -> tuple[tuple[str, ...], list[int]]:
    """Give classes of one name (ImageNet has two cranes) their number; return which ones."""
    count: dict[str, int] = {}
    for name in classes:
        count[name] = count.get(name, 0) + 1
    renamed = [i for i, name in enumerate(classes) if count[name] > 1]
    names = list(classes)
    for i in renamed:
        names[i] = f"{classes[i]} #{i}"
    return tuple(names), renamed


def _changed(opened: Opened, options: OpenOptions, name: str) -> Opened:
    """Apply what was asked for: parts left out or added, another activation, another size."""
    config, state = opened.model.config, dict(opened.model.state_dict())
    kept, info, reasons = dict(opened.kept), opened.info, list(opened.reasons)
    provenance = dict(info.provenance)
    config = _without_parts(config, state, kept, options, reasons)
    if options.activation and options.activation != config.activation:
        reasons.append(f"activation {options.activation} in place of {config.activation}, as asked: logits differ")
        provenance["activation"] = {"source": config.activation, "chosen": options.activation}
        config = replace(config, activation=options.activation)
    if options.image_size or options.patch_size or options.resample:
        config, state, record = resized(config, state, options.image_size, options.patch_size, options.resample)
        if record:
            provenance["resampled"] = record
            reasons.append(f"resampled: {record}")
        info = replace(info, pipeline=replace(info.pipeline, size=pair(config.image_size)))
    if config == opened.model.config and kept.keys() == opened.kept.keys():
        return replace(opened, reasons=reasons)
    layout = opened.layout
    if layout:
        provenance["layout"] = layout | ({"kept": {key: _pack(t) for key, t in kept.items()}} if kept else {})
    classes = info.classes if config.num_classes else ()
    info = replace(info, provenance=provenance, classes=classes)
    return Opened(build(config, state, name), info, opened.family, reasons, layout, kept)


def _without_parts(config: ViTConfig, state: State, kept: State, options: OpenOptions, reasons: list[str]) -> ViTConfig:
    """Leave out or add the parts that were named; tensors change in place."""
    has_place = config.has_class_token and "pos_embed" in state
    for name in options.drop:
        if name == "head" and config.num_classes:
            config = replace(config, num_classes=0)
            _remove(state, "head.")
        elif name == "pre_logits" and config.head == "mlp":
            hidden = config.head_hidden or config.width
            if hidden != config.width and config.num_classes and "head" not in options.drop:
                raise ConfigError(
                    f"the head reads the {hidden} outputs of pre_logits, without it there are {config.width}: "
                    "drop pre_logits and head"
                )
            config = replace(config, head="linear", head_hidden=None)
            _remove(state, "pre_logits.")
        elif name == "mask_token" and name in kept:
            del kept[name]
        elif name == "cls_position" and has_place and config.position_prefix == "cls":
            state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
            state["pos_embed"] = state["pos_embed"][:, 1:]
            config = replace(config, position_prefix="none")
        elif name in _PARTS - {"float64"}:
            raise CheckpointError(f"there is no {name} to drop")
        else:
            continue
        reasons.append("added to the class token itself: cls_position" if "cls_" in name else f"left out: {name}")
    for name in options.add:
        if name == "mask_token" and name not in kept:
            kept[name] = torch.zeros(1, config.width)
        elif name == "cls_position" and has_place and config.position_prefix == "none":
            state["pos_embed"] = torch.cat((torch.zeros(1, 1, config.width), state["pos_embed"]), 1)
            config = replace(config, position_prefix="cls")
        else:
            raise CheckpointError(f"--add {name}: it is there already, or nothing of that name can be added")
        reasons.append(f"added, of zeros: {name}")
    return config


def _remove(state: State, front: str) -> None:
    for key in [key for key in state if key.startswith(front)]:
        del state[key]


def _pack(tensor: Tensor) -> dict[str, Any]:
    """A small tensor as JSON, to the last bit."""
    plain = tensor.detach().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {
        "shape": list(plain.shape),
        "dtype": str(plain.dtype).removeprefix("torch."),
        "base64": base64.b64encode(raw).decode("ascii"),
    }
