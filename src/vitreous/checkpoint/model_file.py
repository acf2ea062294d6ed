"""The model file: a .safetensors with the weights and, as JSON in its metadata, everything needed to use them.

Reading is safe for untrusted files: nothing in the file is executed, and a size that it claims is used only after it
was compared with the file's bytes. The container itself is read by :mod:`vitreous.checkpoint.untrusted.container`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.checkpoint.adapters.common import DECODER
from vitreous.checkpoint.model_config import invalid_fields, too_many_blocks, upgraded
from vitreous.checkpoint.model_info import FORMAT_VERSION, NEWEST_VERSION, ModelInfo
from vitreous.checkpoint.provenance import check_provenance
from vitreous.checkpoint.stored_thresholds import THRESHOLDS, parse_thresholds, thresholds_to_dict
from vitreous.checkpoint.untrusted.container import Header, read_header
from vitreous.checkpoint.untrusted.documents import parse_object
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError, OutputError, did_you_mean, first_line, pluralize
from vitreous.files.writing import atomic_write
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer

__all__ = ["FORMAT_VERSION", "ModelInfo", "build_on_meta", "load_kept", "load_model", "recalibrate", "save_model"]

KEY = "vitreous"
_DIGEST = "vitreous_sha256"  # of the metadata and every tensor; safetensors has no checksum

_KEPT = "kept."  # before the names of tensors that belong to no part of the model
_FEWEST_OF_BLOCK = 4  # weights: two matrices of attention, two of the MLP
_SHOWN = 5  # problems that one error lists
_FLOATS = ("F64", "F32", "F16", "BF16")  # safetensors' dtype names
_INTEGERS = {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


def save_model(
    path: str | os.PathLike[str],
    model: VisionTransformer,
    info: ModelInfo,
    *,
    follow: bool = True,
    kept: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model file atomically: a concurrent reader sees the old file or the complete new one.

    The weights keep their dtype. Without `follow`, a symbolic link at the path is replaced, not written through. `kept`
    are tensors that no part of the model has, such as those of a decoder; :func:`load_kept` returns them.

    Raises:
        ConfigError: If the number of classes differs from the model's, or the pipeline has no mean and std.
        OutputError: If the file cannot be written.
    """
    if len(info.classes) != model.config.num_classes:
        raise ConfigError(f"{len(info.classes)} classes are named, the model has {model.config.num_classes} outputs")
    if not info.pipeline.has_statistics:
        raise ConfigError("the pipeline has no mean and std: a model file needs both")
    document = {
        "format_version": info.format_version,
        "model": model.config.to_dict(),
        "classes": info.classes,
        "pipeline": info.pipeline.to_dict(),
        "temperature": info.temperature,
        "provenance": info.provenance,
        "scores": info.scores,
        **thresholds_to_dict(info),
    }
    named = {**model.state_dict(), **{f"{_KEPT}{name}": tensor for name, tensor in (kept or {}).items()}}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
    _write(path, document, tensors, follow)


def recalibrate(
    source: str | os.PathLike[str], path: str | os.PathLike[str], info: ModelInfo, record: Mapping[str, Any]
) -> None:
    """Write a model file again with the temperature and thresholds of `info`; all else is kept, weights bit for bit.

    `record` becomes `provenance.calibration`. The source may be the path itself: the file is replaced atomically.

    Raises:
        CheckpointError: If the source is no model file.
        OutputError: If the file cannot be written.
    """
    file = _resolve(Path(source))
    document = _parse_metadata(file, read_header(file))
    document = {name: value for name, value in document.items() if name not in THRESHOLDS}
    provenance = {**document["provenance"], "calibration": record}
    document |= {
        "temperature": info.temperature,
        "provenance": provenance,
        **thresholds_to_dict(info),
    }
    try:
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  not a dictionary
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from error
    _write(path, document, tensors, follow=True)


def _write(path: str | os.PathLike[str], document: Mapping[str, Any], tensors: dict[str, Tensor], follow: bool) -> None:
    text = json.dumps(_plain(document), ensure_ascii=False, allow_nan=False)
    # os.fsdecode represents undecodable bytes of folder names by lone surrogates; the JSON escape \udcff keeps them.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    with atomic_write(path, follow=follow) as written:
        try:
            save_file(tensors, written, metadata={KEY: text, _DIGEST: _digest(text, tensors)})
        except SafetensorError as error:  # wraps errors of the system, such as a full disk
            raise OutputError(f"cannot write '{os.fspath(path)}': {error}") from error


def load_model(path: str | os.PathLike[str]) -> tuple[FastVisionTransformer, ModelInfo]:
    """Read a model file, or the ``model.safetensors`` in a folder such as a run directory.

    Returns the model on the CPU in evaluation mode with float32 weights, and the rest of the file's contents.

    Raises:
        CheckpointError: If the file is missing, a pickle, damaged, written by another program or in another format
            version, or its weights do not fit its configuration.
    """
    file = _resolve(Path(path))
    header = read_header(file)
    document = _parse_metadata(file, header)
    config = _parse_config(file, document, header)
    info = _parse_info(file, document, config)
    try:
        model = build_on_meta(config)
    except (RuntimeError, OverflowError, TypeError) as error:  # the number of elements overflows
        raise CheckpointError(f"'{file}': its configuration has impossible sizes: {first_line(error)}") from error
    expected = model.state_dict()
    _check_tensors(file, header, expected)
    try:
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in header.shapes}
            digest = header.metadata.get(_DIGEST)  # absent if another program assembled the file
            if digest is not None and digest != _digest(header.metadata[KEY], tensors):
                raise CheckpointError(
                    f"'{file}' is damaged or was changed by another program: its SHA-256 differs from the one stored "
                    "in it. Copy or download it again"
                )
            state = {name: tensors[name].to(like.dtype, copy=True) for name, like in expected.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from error
    model.load_state_dict(state, assign=True)
    return model.eval(), info


def load_kept(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the tensors of a model file that no part of its model has; the file was read with :func:`load_model`."""
    file = _resolve(Path(path))
    names = [name for name in read_header(file).shapes if name.startswith(_KEPT)]
    try:
        with safe_open(file, framework="pt") as stored:
            return {name.removeprefix(_KEPT): stored.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from error


def build_on_meta(config: ViTConfig) -> FastVisionTransformer:
    """Build a model on the meta device: its weights have shapes but take no memory."""
    with torch.device("meta"):
        return build(config)


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the metadata and of the tensors' names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _resolve(path: Path) -> Path:
    if path.is_dir():
        inside = path / "model.safetensors"
        if inside.exists():
            return inside
        runs = sorted(path.glob("*/model.safetensors"), key=lambda file: file.stat().st_mtime)
        hint = f" The newest one below is '{runs[-1]}'." if runs else " `vitreous train` writes one at its end."
        raise CheckpointError(f"the folder '{path}' has no model.safetensors.{hint}")
    if not path.exists():
        beside = [file.name for file in path.parent.glob("*.safetensors")] if path.parent.is_dir() else []
        raise CheckpointError(f"no model file '{path}'.{did_you_mean(path.name, beside, os.path.dirname(path))}")
    return path


def _parse_metadata(file: Path, header: Header) -> dict[str, Any]:
    """Return the JSON in the metadata, once its format version and the types of its entries are checked."""
    if KEY not in header.metadata:
        found = ", ".join(sorted(header.metadata)) or "nothing"
        raise CheckpointError(
            f"'{file}' is a safetensors file of another program: its metadata has {found}, and no '{KEY}' entry. "
            "Give a model.safetensors written by `vitreous train` or `save_model`"
        )
    document = parse_object(header.metadata[KEY], f"'{file}': its '{KEY}' metadata", unique=True)
    version = document.get("format_version")
    if type(version) is not int or not 1 <= version <= NEWEST_VERSION:
        newer = ": it needs a newer vitreous" if type(version) is int and version > NEWEST_VERSION else ""
        raise CheckpointError(f"'{file}' has format version {version!r}, expected 1 to {NEWEST_VERSION}{newer}")
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
        raise CheckpointError(f"'{file}': {', '.join(wrong)} missing or of the wrong type in its '{KEY}' metadata")
    return document


def _parse_config(file: Path, document: dict[str, Any], header: Header) -> ViTConfig:
    """Return the model's configuration, and check it against the stored tensors before a model is built from it."""
    stored = document["model"] if document["format_version"] > 1 else upgraded(document["model"])
    values = {name: _tuples(value) for name, value in stored.items()}
    if problems := list(invalid_fields(values)):
        raise CheckpointError(f"'{file}': the model's configuration does not fit this vitreous: {_few(problems)}")
    try:
        config = ViTConfig(**values)
    except ConfigError as error:
        raise CheckpointError(f"'{file}': the model's configuration contradicts itself: {error}") from error
    if reason := too_many_blocks(config):
        raise CheckpointError(f"'{file}' cannot be read: {reason}")
    in_blocks = [name.split(".")[1] for name in header.shapes if name.startswith("blocks.")]
    if (blocks := len(set(in_blocks))) != config.depth:  # building the claimed depth would take time and memory
        raise CheckpointError(f"'{file}' has weights of {pluralize(blocks, 'block')}, expected depth {config.depth}")
    if len(in_blocks) < _FEWEST_OF_BLOCK * blocks:  # likewise
        raise CheckpointError(
            f"'{file}' has {len(in_blocks)} weights in {pluralize(blocks, 'block')}, too few for whole blocks"
        )
    if (layers := sum(getattr(config.stem, "layers", ()))) > len(header.shapes):  # likewise
        raise CheckpointError(f"'{file}' has {len(header.shapes)} weights, too few for its {layers} resnet layers")
    return config


def _tuples(value: Any) -> Any:
    """Return JSON's lists as tuples, also those of a part's options."""
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _parse_info(file: Path, document: dict[str, Any], config: ViTConfig) -> ModelInfo:
    classes = document["classes"]
    if not all(isinstance(name, str) for name in classes) or len(classes) != config.num_classes:
        raise CheckpointError(f"'{file}' names {len(classes)} classes, expected {config.num_classes} names")
    rules = parse_thresholds(file, document)
    try:
        pipeline = EvalPipeline.from_dict(document["pipeline"])
        temperature = float(document["temperature"])
        info = ModelInfo(tuple(classes), pipeline, temperature, document["provenance"], document["scores"], **rules)
    except (CheckpointError, ConfigError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"'{file}': its metadata is damaged: {error}") from error
    if pipeline.channels != config.in_channels:
        raise CheckpointError(
            f"'{file}': its pipeline produces {pipeline.channels} channels, expected {config.in_channels}"
        )
    check_provenance(file, info.provenance)
    return info


def _check_tensors(file: Path, header: Header, expected: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and dtypes of the stored tensors with the model's; one error lists all differences."""
    problems = [f"{name} is missing" for name in expected if name not in header.shapes]
    others = [name for name in header.shapes if name not in expected]
    problems += [f"{name} is unexpected" for name in others if not name.startswith(f"{_KEPT}{DECODER}")]
    for name, like in expected.items():
        if name in header.shapes:
            problems += _misfits(name, header.shapes[name], header.dtypes[name], like)
    if problems:
        raise CheckpointError(f"the weights in '{file}' do not fit its configuration: {_few(problems)}")


def _misfits(name: str, shape: tuple[int, ...], dtype: str, like: Tensor) -> Iterator[str]:
    """Yield what is wrong with one stored tensor; every floating-point dtype is accepted."""
    if shape != tuple(like.shape):
        yield f"{name} has shape {list(shape)}, expected {list(like.shape)}"
    elif dtype not in _FLOATS if like.is_floating_point() else _INTEGERS.get(dtype) != like.dtype:
        yield f"{name} holds {dtype}, expected {str(like.dtype).removeprefix('torch.')}"


def _few(problems: list[str]) -> str:
    """Join the first problems and state how many more there are."""
    rest = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + rest


def _plain(value: Any) -> Any:
    """Convert paths, tuples, dataclasses, arrays and tensors to strict JSON values; non-finite numbers become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
