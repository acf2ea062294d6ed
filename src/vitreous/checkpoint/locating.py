"""Finds a checkpoint given as a file, a folder or a hub id, and reads its tensors and the documents beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.checkpoint import hub
from vitreous.checkpoint.adapters.common import ForeignCheckpoint, State, join_first
from vitreous.checkpoint.model_file import KEY
from vitreous.checkpoint.pretrained import ROWS, find_hub_id, find_row
from vitreous.checkpoint.shipped import SHIPPED, shipped_file
from vitreous.checkpoint.untrusted.container import read_header
from vitreous.checkpoint.untrusted.documents import read_object
from vitreous.checkpoint.untrusted.tensors import SUFFIXES, read_tensors
from vitreous.errors import CheckpointError, did_you_mean
from vitreous.files.exported import EXPORTED

__all__ = ["Located", "locate", "read_foreign"]

_IN_FOLDER = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin", "model.npz", "model.pth")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_DOCUMENTS = ("config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class Located:
    """A checkpoint on this machine."""

    file: Path  # its weights, or the index of a checkpoint in several files
    name: str  # what the user gave; the full hub id for a short name of the table
    is_vitreous: bool  # whether it is a model file of this package
    commit: str | None = None  # of the hub's repository, if it is a download


def locate(source: str | os.PathLike[str]) -> Located:
    """Find a checkpoint. An existing path takes precedence over a hub id, a short name of the table, and `shipped`."""
    name = os.fspath(source)
    try:
        path = Path(name).expanduser()
        exists = "\0" not in name and path.exists()
    except OSError as error:  # a name too long, a folder without permission
        raise CheckpointError(f"cannot read '{name}': {error.strerror or error}") from error
    except RuntimeError as error:  # ~ of an unknown user
        raise CheckpointError(f"no model file '{name}': {error}") from error
    commit = None
    if not exists and name == SHIPPED:
        path = shipped_file()
    elif not exists:
        row = find_row(name)
        name, path = (name, _fetch(name, path)) if row is None else (row.full_id, hub.fetch(row.full_id))
        commit = hub.commit_of(path)
    file = _find_weights(path, name) if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"'{name}' is not a regular file")
    if file.suffix in EXPORTED.values():
        raise CheckpointError(
            f"'{name}' is an exported graph, which predict, evaluate and embed accept: this needs its weights. "
            "Give the model file that it was made from"
        )
    return Located(file, name, _is_model_file(file), commit)


def _is_model_file(file: Path) -> bool:
    """Return whether a file is one of this package, also under another name."""
    try:
        return KEY in read_header(file).metadata
    except CheckpointError:
        if file.suffix == ".safetensors":
            raise
        return False


def _fetch(name: str, path: Path) -> Path:
    """Download a name that is no existing path, if it can be a hub id.

    A folder with the owner's name makes an id look like a file in it, unless the table has the id, or it has a prefix
    or a revision.
    """
    hub_id = hub.HUB_ID.fullmatch(name)
    if hub_id is None and "://" in name:
        raise CheckpointError(f"'{name}' is a URL, and URLs are not fetched: download the file first")
    has_folder = path.parent.is_dir()
    is_certain = hub_id is not None and (hub_id[1] != name or find_hub_id(name) is not None)
    if hub_id and path.suffix not in SUFFIXES and (is_certain or not has_folder):
        return hub.fetch(name)
    neighbours = [file.name for file in path.parent.iterdir()] if has_folder else []
    hint = did_you_mean(path.name, neighbours, os.path.dirname(path))
    hint = hint or did_you_mean(name.lower(), [SHIPPED, *(row.name for row in ROWS)])
    if not hint:
        hint = f" On the hub? Write hf-hub:{name}" if hub_id else hub.suggest_id(name)
    raise CheckpointError(f"no model {'file' if path.suffix else 'file or folder'} '{name}'.{hint}")


def _find_weights(folder: Path, name: str) -> Path:
    for known in (*_IN_FOLDER, *_INDEX):
        if (folder / known).is_file():
            return folder / known
    found = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if len(found) == 1:
        return found[0]
    if not found:
        exported = [file for file in folder.iterdir() if file.suffix in EXPORTED.values()]
        if len(exported) == 1:
            raise CheckpointError(f"the folder '{name}' has an exported model: name its file, '{exported[0]}'")
        runs = sorted(folder.glob("*/model.safetensors"), key=lambda file: file.stat().st_mtime)
        hint = f" The newest one below is '{runs[-1]}'." if runs else " `vitreous train` writes one at its end."
        raise CheckpointError(f"the folder '{name}' has no model.safetensors and no other weights.{hint}")
    raise CheckpointError(
        f"the folder '{name}' has {len(found)} files of weights ({join_first(f.name for f in found)}): name one"
    )


def read_foreign(located: Located) -> ForeignCheckpoint:
    """Read a checkpoint of another family."""
    file = located.file
    documents: dict[str, Any] = {}
    if file.stem in ("model", "pytorch_model") or file.name in _INDEX:
        documents = {name: read_object(file.parent / name) for name in _DOCUMENTS if (file.parent / name).is_file()}
    sidecar = file.with_suffix(".json")
    if sidecar.is_file() and sidecar.name not in _DOCUMENTS:
        documents["sidecar"] = read_object(sidecar)
    tensors = _read_shards(file) if file.name in _INDEX else read_tensors(file)
    return ForeignCheckpoint(tensors, documents, located.name)


def _read_shards(index: Path) -> State:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"'{index}' is damaged: it has no weight_map")
    state: State = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"'{index}' names a file outside its folder, '{shard}': not read")
        state |= read_tensors(index.parent / shard)
    if set(state) != set(weight_map):
        raise CheckpointError(f"'{index}' and its files differ: {join_first(sorted(set(state) ^ set(weight_map)))}")
    return state
