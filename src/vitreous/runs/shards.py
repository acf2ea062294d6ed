"""Checkpoints in shards: tensors of which each process of a run holds some rows, by torch's distributed checkpoints.

RUN/last.ckpt stays a file of state_file.py. In it, ``{"sharded": dtype, "shape": [...]}`` stands for such a tensor, and
"shards" names the folder beside it that has the tensors, with the SHA-256 of each of its files. A folder is written
under another name, then renamed, and then named by last.ckpt, so that a kill leaves the checkpoint before. Any number
of processes reads it, and one process without a group too. Reading executes no code: torch pickles the table of
contents, and only its own classes are admitted there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from vitreous.errors import CheckpointError, OutputError
from vitreous.files.opening import open_regular
from vitreous.runs.state_file import read_state

__all__ = ["Part", "fill", "open_shards", "read_whole", "remove_unused", "split", "write_shards"]

FOLDERS = "shards-*"
_NAME = re.compile(r"shards-[0-9a-f]{8}-\d{1,9}")
_CONTENTS = ".metadata"  # torch's name for the table of contents
_CHUNK = 1 << 26  # bytes hashed at a time
_LARGEST = 1 << 44  # bytes of a file of a folder
_DTYPES = re.compile(r"float32|float64|bfloat16|float16|int64|int32|uint8|bool")
_ADMITTED = {
    "torch": r"Size|" + _DTYPES.pattern,
    "torch.serialization": "_get_layout",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo",
    "torch.distributed.checkpoint.metadata": "Metadata|MetadataIndex|StorageMeta|TensorProperties|TensorStorageMetadata"
    "|ChunkStorageMetadata|_MEM_FORMAT_ENCODING",
    "pathlib": "PosixPath|WindowsPath",
    "pathlib._local": "PosixPath|WindowsPath",
}


@dataclass(frozen=True)
class Part:
    """Stands in a state for a tensor of the folder that has not been read yet."""

    folder: str  # in the run directory
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def split(content: Any, path: tuple[str, ...] = ()) -> tuple[Any, dict[str, Tensor]]:
    """Return a state without its sharded tensors, and these by their place in it."""
    if isinstance(content, DTensor):
        described = {"sharded": str(content.dtype).removeprefix("torch."), "shape": list(content.shape)}
        return described, {"/".join(path): content}
    if not isinstance(content, dict):
        return content, {}
    rest: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name, value in content.items():
        rest[name], own = split(value, (*path, name))
        tensors |= own
    return rest, tensors


def write_shards(run_dir: Path, name: str, tensors: dict[str, Tensor], group: Any) -> dict[str, Any] | None:
    """Write the rows that this process has of each tensor; all processes of a group on CPUs call this together.

    Returns:
        What last.ckpt says of the folder, in the first process; None in the others.

    Raises:
        OutputError: In all processes, if one of them cannot write.
    """
    hidden, folder = run_dir / f".{name}.tmp", run_dir / name
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    try:
        writer = FileSystemWriter(hidden, single_file_per_rank=True, sync_files=True)
        save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        shutil.rmtree(hidden, ignore_errors=True)
        cause = next(iter(error.failures.values()))[0]
        reason = getattr(cause, "strerror", None) or " ".join(str(cause).split())[:200]
        raise OutputError(f"cannot write '{folder}': {reason}. Free some space, or use another --out") from error
    files = sorted(each.name for each in hidden.iterdir())
    own = {each: _digest(hidden / each) for each in files[rank::world]}  # each process reads a share
    found: list[Any] | None = [None] * world if rank == 0 else None
    distributed.gather_object(own, found, dst=0, group=group)
    if found is None:
        return None
    os.replace(hidden, folder)
    handle = os.open(run_dir, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return {"folder": name, "files": {each: digest for part in found for each, digest in part.items()}}


def open_shards(run_dir: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Verify the folder of a state, and put a :class:`Part` in the place of each tensor in it."""
    shards = content.pop("shards")
    named = isinstance(shards, dict) and shards.keys() == {"folder", "files"}
    if not named or not isinstance(shards["files"], dict) or not _NAME.fullmatch(str(shards["folder"])):
        raise CheckpointError("it does not name the folder of its shards")
    folder, files = run_dir / shards["folder"], shards["files"]
    present = {each.name for each in folder.iterdir()} if folder.is_dir() and not folder.is_symlink() else set()
    if not files or present != files.keys() or _CONTENTS not in files:
        raise CheckpointError(f"'{folder}' does not have the {len(files)} files that belong to the checkpoint")
    for name, digest in files.items():
        if _digest(folder / name) != digest:
            raise CheckpointError(f"'{folder / name}' is damaged: it does not match its checksum")
    return {name: _as_parts(value, folder.name, (name,)) for name, value in content.items()}


def read_whole(run_dir: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return a state of :func:`open_shards` with whole tensors, read by this process alone."""
    return fill(run_dir, content, lambda part: torch.empty(part.shape, dtype=part.dtype))


def fill(run_dir: Path, content: dict[str, Any], make: Callable[[Part], Tensor]) -> dict[str, Any]:
    """Read the tensors of a state; `make` returns an empty tensor for each, whole or this process's rows of it."""
    parts = list(_parts(content))
    if not parts:
        return content
    tensors = {part.key: make(part) for part in parts}
    try:
        with warnings.catch_warnings():  # that there is no group is meant
            warnings.simplefilter("ignore", UserWarning)
            load(tensors, storage_reader=_Reader(run_dir / parts[0].folder), no_dist=True)
    except (CheckpointException, OSError, pickle.UnpicklingError, ValueError, KeyError, RuntimeError) as error:
        causes = [failure[0] for failure in getattr(error, "failures", {}).values()]
        reason = " ".join(str(causes[0] if causes else error).split())[:200]
        raise CheckpointError(f"'{run_dir / parts[0].folder}' cannot be read: {reason}") from error
    return {name: _filled(value, tensors) for name, value in content.items()}


def remove_unused(run_dir: Path, states: tuple[Path, ...]) -> None:
    """Remove the folders of shards that none of the states names."""
    folders = [each for each in run_dir.glob(FOLDERS) if _NAME.fullmatch(each.name) and not each.is_symlink()]
    used = set()
    for path in states if folders else ():
        with contextlib.suppress(CheckpointError, TypeError, LookupError, AttributeError):
            used.add(read_state(path)["shards"]["folder"])
    for folder in folders:
        if folder.name not in used:
            shutil.rmtree(folder, ignore_errors=True)


def _as_parts(value: Any, folder: str, path: tuple[str, ...]) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() != {"sharded", "shape"}:
        return {name: _as_parts(each, folder, (*path, name)) for name, each in value.items()}
    shape, dtype = value["shape"], str(value["sharded"])
    whole = isinstance(shape, list) and all(type(side) is int and 0 <= side < 1 << 40 for side in shape)
    if not whole or not _DTYPES.fullmatch(dtype):
        raise CheckpointError(f"it describes no tensor at {'/'.join(path)}")
    return Part(folder, "/".join(path), tuple(shape), getattr(torch, dtype))


def _parts(value: Any) -> Iterator[Part]:
    if isinstance(value, Part):
        yield value
    for each in value.values() if isinstance(value, dict) else ():
        yield from _parts(each)


def _filled(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Part):
        return tensors[value.key]
    return {name: _filled(each, tensors) for name, each in value.items()} if isinstance(value, dict) else value


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open_regular(path, _LARGEST) as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


class _Contents(pickle.Unpickler):
    """Reads torch's table of contents: its own classes of plain values, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an admitted class."""
        if not re.fullmatch(_ADMITTED.get(module, "(?!)"), name):
            raise pickle.UnpicklingError(f"{module}.{name} is not admitted")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """Torch's reader, with a table of contents that names no file outside its folder."""

    def read_metadata(self, *args: Any, **named: Any) -> Any:
        """Read the table of contents."""
        with Path(self.path, _CONTENTS).open("rb") as file:
            metadata = _Contents(file).load()
        present = {each.name for each in Path(self.path).iterdir()}
        if any(info.relative_path not in present for info in metadata.storage_data.values()):
            raise pickle.UnpicklingError("it names files that are not there")
        return metadata
