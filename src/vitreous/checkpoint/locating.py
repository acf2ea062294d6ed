"""Where a checkpoint lies: a file, a folder or a hub id, to its tensors and the documents beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.checkpoint import hub
from vitreous.checkpoint.adapters.common import Foreign, State, few
from vitreous.checkpoint.model_file import KEY
from vitreous.checkpoint.untrusted.container import read_header
from vitreous.checkpoint.untrusted.documents import read_object
from vitreous.checkpoint.untrusted.tensors import SUFFIXES, read_tensors
from vitreous.errors import CheckpointError, did_you_mean

__all__ = ["Located", "locate", "read_foreign"]

_IN_FOLDER = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin", "model.npz", "model.pth")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_DOCUMENTS = ("config.json", "preprocessor_config.json")
_EXPORTED = {".onnx": "ONNX Runtime", ".pt2": "torch.export.load"}


@dataclass(frozen=True)
class Located:
    """A checkpoint on this machine.

    Args:
        file: Its weights, or the list of its parts.
        name: What the user gave.
        own: Whether it is a model file of this package.
    """

    file: Path
    name: str
    own: bool


def locate(source: str | os.PathLike[str]) -> Located:
    """Find a checkpoint; a path that exists comes before a hub id of the same letters.

    Raises:
        CheckpointError: If there is none.
        MissingExtraError: If it is a hub id and huggingface_hub is not installed.
    """
    name = os.fspath(source)
    try:
        path = Path(name).expanduser()
        found = "\0" not in name and path.exists()
    except OSError as error:  # a name too long, a folder that may not be looked into
        raise CheckpointError(f"cannot read '{name}': {error.strerror or error}") from error
    except RuntimeError as error:  # ~ of a user that there is not
        raise CheckpointError(f"no model file '{name}': {error}") from error
    if not found:
        if "://" in name:
            raise CheckpointError(f"'{name}' is a URL, and no file is fetched from one: download it first")
        looks_local = path.suffix in SUFFIXES or name.startswith((".", "/", "~")) or path.parent.is_dir()
        if not hub.HUB_ID.fullmatch(name) or looks_local:
            beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = did_you_mean(path.name, beside, os.path.dirname(path))
            as_id = (
                "" if hint else f" On the hub? Write hf-hub:{name}" if hub.HUB_ID.fullmatch(name) else hub.meant(name)
            )
            raise CheckpointError(f"no model {'file' if path.suffix else 'file or folder'} '{name}'.{hint}{as_id}")
        path = hub.fetch(name)
    file = _in_folder(path, name) if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"'{name}' is no regular file")
    if file.suffix in _EXPORTED:
        raise CheckpointError(
            f"'{name}' is an exported model, which {_EXPORTED[file.suffix]} runs: it is not read back. Give the model "
            "file that it was made from"
        )
    own = file.suffix == ".safetensors" and KEY in read_header(file).metadata
    return Located(file, name, own)


def _in_folder(folder: Path, name: str) -> Path:
    """Choose the weights in a folder."""
    for known in (*_IN_FOLDER, *_INDEX):
        if (folder / known).is_file():
            return folder / known
    found = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if len(found) == 1:
        return found[0]
    if not found:
        runs = sorted(folder.glob("*/model.safetensors"), key=lambda file: file.stat().st_mtime)
        hint = f" The newest below it is '{runs[-1]}'." if runs else " `vitreous train` writes one when it ends."
        raise CheckpointError(f"the folder '{name}' has no model.safetensors, nor other weights.{hint}")
    raise CheckpointError(
        f"the folder '{name}' has {len(found)} files of weights ({few(f.name for f in found)}): name one"
    )


def read_foreign(located: Located) -> Foreign:
    """Read a checkpoint of another family.

    Raises:
        CheckpointError: If it is damaged, or needs code to be read.
    """
    file = located.file
    documents: dict[str, Any] = {}
    if file.stem in ("model", "pytorch_model") or file.name in _INDEX:
        documents = {name: read_object(file.parent / name) for name in _DOCUMENTS if (file.parent / name).is_file()}
    beside = file.with_suffix(".json")
    if beside.is_file() and beside.name not in _DOCUMENTS:
        documents["sidecar"] = read_object(beside)
    tensors = _parts(file) if file.name in _INDEX else read_tensors(file)
    return Foreign(tensors, documents, located.name)


def _parts(index: Path) -> State:
    """Read weights that lie in several files."""
    places = read_object(index).get("weight_map")
    if not isinstance(places, Mapping) or not all(isinstance(place, str) for place in places.values()):
        raise CheckpointError(f"'{index}' is damaged: it has no weight_map")
    state: State = {}
    for part in sorted(set(places.values())):
        if Path(part).name != part:
            raise CheckpointError(f"'{index}' names a file outside its folder, '{part}': refused")
        state |= read_tensors(index.parent / part)
    if set(state) != set(places):
        raise CheckpointError(f"'{index}' and its files differ: {few(sorted(set(state) ^ set(places)))}")
    return state
