"""The model file: one .safetensors with the weights and, as JSON in its metadata, all that is needed to use them.

Reading is safe for files of strangers: nothing in the file is executed, and no size that it claims is believed before
it fits the bytes that are there. The raw container is read in :mod:`vitreous.checkpoint.untrusted.container`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous.checkpoint.provenance import check_provenance
from vitreous.checkpoint.untrusted.container import Header, read_header
from vitreous.checkpoint.untrusted.documents import fits, parse_object
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError, OutputError, did_you_mean
from vitreous.files.writing import replacing
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer

__all__ = ["FORMAT_VERSION", "MOST_BLOCKS", "ModelInfo", "load_model", "save_model", "skeleton"]

FORMAT_VERSION = 1
KEY = "vitreous"
_DIGEST = "vitreous_sha256"  # of the description and every tensor; the container itself has no checksum
MOST_BLOCKS = 1000
"""Encoder blocks, or a ResNet's, that a file may claim: each takes time to build."""

_SHOWN = 5  # problems of one kind that an error spells out
_LONE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # the others keep bytes that are no UTF-8, as os.fsdecode does
_FLOATS = ("F64", "F32", "F16", "BF16")  # in the format's words
_INTEGERS = {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


@dataclass(frozen=True)
class ModelInfo:
    """What a model file says beside the weights and the model's configuration.

    Args:
        classes: Name of each output, in the order of the logits.
        pipeline: How a picture becomes the model's input.
        temperature: Logits are divided by it before the softmax, above 0; 1 where nobody calibrated.
        provenance: Where the model comes from: recipe, data fingerprint, seed, versions, date, machine.
        scores: What it reached, by the name of the split. Numbers that are not finite are stored as null.
        format_version: Of the file.

    Raises:
        ConfigError: If two classes have one name, one is no text, or the temperature is not above 0.
    """

    classes: tuple[str, ...]
    pipeline: EvalPipeline
    temperature: float = 1.0
    provenance: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        """Check the relations that every user of the file relies on."""
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(set(self.classes)) != len(self.classes):
            twice = sorted(name for name, count in Counter(self.classes).items() if count > 1)
            raise ConfigError(f"classes must have names of their own, these come twice: {', '.join(twice[:_SHOWN])}")
        if (no_text := _no_text(self.classes)) is not None:
            raise ConfigError(f"the class name {no_text!a:.100} is no text: it has half of a pair of UTF-16")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(f"temperature is {self.temperature}, it must be above 0")


def save_model(path: str | os.PathLike[str], model: VisionTransformer, info: ModelInfo, *, follow: bool = True) -> None:
    """Write a model file; a reader sees the old file or the whole new one.

    Args:
        path: The file, by custom ``model.safetensors``. Its folder must exist.
        model: Its weights are stored as they are, on whatever device.
        info: Must name as many classes as the model has outputs.
        follow: Whether a link at ``path`` is followed; False replaces it.

    Raises:
        ConfigError: If the number of classes is another, or the pipeline has no mean and std.
        OutputError: If the file cannot be written.
    """
    if len(info.classes) != model.config.num_classes:
        raise ConfigError(f"{len(info.classes)} classes are named, the model has {model.config.num_classes} outputs")
    if not info.pipeline.has_statistics:
        raise ConfigError("the pipeline has no mean and std yet: a model file needs both")
    document = {
        "format_version": info.format_version,
        "model": dataclasses.asdict(model.config),
        "classes": info.classes,
        "pipeline": info.pipeline.to_dict(),
        "temperature": info.temperature,
        "provenance": info.provenance,
        "scores": info.scores,
    }
    text = json.dumps(_plain(document), ensure_ascii=False, allow_nan=False)
    # Bytes of folder names that are no text are lone surrogates in Python; as \udcff they are JSON and come back.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(path, follow=follow) as written:
        try:
            save_file(tensors, written, metadata={KEY: text, _DIGEST: _digest(text, tensors)})
        except SafetensorError as error:  # its writer wraps the system's errors: disk full, read-only
            raise OutputError(f"cannot write '{os.fspath(path)}': {error}") from error


def load_model(path: str | os.PathLike[str]) -> tuple[VisionTransformer, ModelInfo]:
    """Read a model file.

    Args:
        path: The file, or a folder that has a ``model.safetensors``, as every run folder has.

    Returns:
        The model on the CPU in evaluation mode, its weights float32, and what the file says about it.

    Raises:
        CheckpointError: If the file is missing, a pickle, damaged, of another program or another format version, or
            its weights do not fit its configuration. The message says what was found and what was expected.
    """
    file = _find(Path(path))
    header = read_header(file)
    document = _document(file, header)
    config = _config(file, document, header)
    info = _info(file, document, config)
    try:
        model = skeleton(config)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch cannot even count the elements
        raise CheckpointError(
            f"'{file}': its configuration has sizes that no model has: {str(error).splitlines()[0]}"
        ) from error
    expected = model.state_dict()
    _check_tensors(file, header, expected)
    try:
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in expected}
            digest = header.metadata.get(_DIGEST)  # absent in files that other programs put together
            if digest is not None and digest != _digest(header.metadata[KEY], tensors):
                raise CheckpointError(
                    f"'{file}' is damaged, or was changed by another program: its SHA-256 is not the one that it was "
                    "written with. Copy or download it again"
                )
            state = {name: tensors[name].to(like.dtype, copy=True) for name, like in expected.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from error
    model.load_state_dict(state, assign=True)
    return model.eval(), info


def skeleton(config: ViTConfig) -> VisionTransformer:
    """Build a model whose weights have shapes and no memory: nothing is taken for sizes that a file does not hold."""
    with torch.device("meta"):
        # Any initialisation would be overwritten, and one of them takes time for each head.
        model = VisionTransformer(dataclasses.replace(config, init="torch"))
    model.config = config
    return model


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a description and of the tensors' names, types, shapes and bytes: 2 GB/s on today's CPUs."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _find(path: Path) -> Path:
    """Return the model file that a path means."""
    if path.is_dir():
        inside = path / "model.safetensors"
        if inside.exists():
            return inside
        runs = sorted(path.glob("*/model.safetensors"), key=lambda file: file.stat().st_mtime)
        hint = f" The newest below it is '{runs[-1]}'." if runs else " `vitreous train` writes one when it ends."
        raise CheckpointError(f"the folder '{path}' has no model.safetensors.{hint}")
    if not path.exists():
        beside = [file.name for file in path.parent.glob("*.safetensors")] if path.parent.is_dir() else []
        raise CheckpointError(f"no model file '{path}'.{did_you_mean(path.name, beside, os.path.dirname(path))}")
    return path


def _document(file: Path, header: Header) -> dict[str, Any]:
    """Return our JSON of a file's metadata, of the format version that this code reads."""
    if KEY not in header.metadata:
        found = ", ".join(sorted(header.metadata)) or "nothing"
        raise CheckpointError(
            f"'{file}' is a safetensors file of another program: its metadata has {found}, and no '{KEY}' entry. "
            "Give a model.safetensors that `vitreous train` or vitreous' save_model wrote"
        )
    document = parse_object(header.metadata[KEY], f"'{file}': its '{KEY}' metadata", unique=True)
    version = document.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        newer = ": it needs a newer vitreous" if type(version) is int and version > FORMAT_VERSION else ""
        raise CheckpointError(f"'{file}' has format version {version!r}, expected {FORMAT_VERSION}{newer}")
    kinds = {
        "model": dict,
        "classes": list,
        "pipeline": dict,
        "temperature": int | float,
        "provenance": dict,
        "scores": dict,
    }
    wrong = [name for name, kind in kinds.items() if not isinstance(document.get(name), kind)]
    if wrong:
        raise CheckpointError(f"'{file}': {', '.join(wrong)} missing or of the wrong kind in its '{KEY}' metadata")
    return document


def _config(file: Path, document: dict[str, Any], header: Header) -> ViTConfig:
    """Return the model's configuration, all of its fields known and of the right kind."""
    hints = typing.get_type_hints(ViTConfig)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in document["model"].items()}
    problems = [f"unknown field '{name}'" for name in values if name not in hints]
    problems += [
        f"{name} is {value!r}" for name, value in values.items() if name in hints and not fits(value, hints[name])
    ]
    if problems:
        raise CheckpointError(f"'{file}': the model's configuration does not fit this vitreous: {_few(problems)}")
    try:
        config = ViTConfig(**values)
    except ConfigError as error:
        raise CheckpointError(f"'{file}': the model's configuration contradicts itself: {error}") from error
    if config.depth > MOST_BLOCKS:
        raise CheckpointError(f"'{file}' claims {config.depth} blocks: no model has as many")
    blocks = len({name.split(".")[1] for name in header.shapes if name.startswith("blocks.")})
    if blocks != config.depth:  # before the model is built: a claimed depth would cost time and memory
        raise CheckpointError(f"'{file}' has weights of {blocks} blocks, expected depth {config.depth}")
    if config.stem == "resnet" and sum(config.resnet_layers) > len(header.shapes):  # likewise
        layers = sum(config.resnet_layers)
        raise CheckpointError(f"'{file}' has {len(header.shapes)} weights, too few for its {layers} resnet layers")
    return config


def _info(file: Path, document: dict[str, Any], config: ViTConfig) -> ModelInfo:
    """Return what the file says beside the configuration."""
    classes = document["classes"]
    if not all(isinstance(name, str) for name in classes) or len(classes) != config.num_classes:
        raise CheckpointError(f"'{file}' names {len(classes)} classes, expected {config.num_classes} names")
    try:
        pipeline = EvalPipeline.from_dict(document["pipeline"])
        info = ModelInfo(
            classes=tuple(classes),
            pipeline=pipeline,
            temperature=float(document["temperature"]),
            provenance=document["provenance"],
            scores=document["scores"],
        )
    except (CheckpointError, ConfigError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"'{file}': its description is damaged: {error}") from error
    if pipeline.channels != config.in_channels:
        raise CheckpointError(
            f"'{file}': its pipeline gives {pipeline.channels} channels, expected {config.in_channels}"
        )
    check_provenance(file, info.provenance)
    return info


def _no_text(classes: tuple[str, ...]) -> str | None:
    """The first name that cannot be written anywhere: with a surrogate that stands for no byte of a folder's name."""
    return next((name for name in classes if _LONE.search(name)), None)


def _check_tensors(file: Path, header: Header, expected: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and types of the stored tensors with the model's; raise one error for all problems."""
    problems = [f"{name} is missing" for name in expected if name not in header.shapes]
    problems += [f"{name} belongs to no part of the model" for name in header.shapes if name not in expected]
    for name, like in expected.items():
        if name in header.shapes:
            problems += _misfits(name, header.shapes[name], header.dtypes[name], like)
    if problems:
        raise CheckpointError(f"the weights in '{file}' do not fit its configuration: {_few(problems)}")


def _misfits(name: str, shape: tuple[int, ...], dtype: str, like: Tensor) -> Iterator[str]:
    """Yield what is wrong with one stored tensor; any floating-point type is good, it becomes float32."""
    if shape != tuple(like.shape):
        yield f"{name} has shape {list(shape)}, expected {list(like.shape)}"
    elif dtype not in _FLOATS if like.is_floating_point() else _INTEGERS.get(dtype) != like.dtype:
        yield f"{name} holds {dtype}, expected {str(like.dtype).removeprefix('torch.')}"


def _few(problems: list[str]) -> str:
    """Join the first problems, and count the rest."""
    rest = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + rest


def _plain(value: Any) -> Any:
    """Turn paths, tuples, dataclasses and numbers of numpy or torch into what strict JSON has; NaN becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
