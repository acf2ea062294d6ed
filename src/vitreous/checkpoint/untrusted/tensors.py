"""Reads the tensors of an untrusted file: safetensors, .npz without pickled objects, or a PyTorch file.

Nothing in the file is executed, and time and memory are bounded by the file's size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitreous.checkpoint.adapters.common import State, join_first
from vitreous.checkpoint.untrusted.container import MAX_FILE_BYTES, read_header, reject_other_formats
from vitreous.checkpoint.untrusted.npz import read_arrays
from vitreous.checkpoint.untrusted.pickle_globals import TensorRef, Unsupported
from vitreous.checkpoint.untrusted.torch_file import READABLE, PyTorchFile
from vitreous.errors import CheckpointError
from vitreous.files.opening import open_regular

__all__ = ["SUFFIXES", "read_tensors"]

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".tar", ".ckpt")
"""Endings of the files that are read."""

_CONTAINERS = ("state_dict", "model_state_dict", "model", "teacher", "module", "net")
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")  # safetensors' dtype names


def read_tensors(file: Path) -> State:
    """Return the tensors of a file by name, on the CPU; non-finite weights are an error."""
    try:
        if not file.is_file():
            raise CheckpointError(f"no model file '{file}'")
        with open_regular(file, MAX_FILE_BYTES) as stream:
            state = _read(stream, file)
    except OSError as error:
        raise CheckpointError(f"cannot read '{file}': {error.strerror or error}") from error
    if not state:
        raise CheckpointError(f"'{file}' holds no tensors")
    for name, tensor in state.items():
        if tensor.dtype not in READABLE:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(f"'{file}' has dtype {dtype} in '{name}', expected floating-point or integer numbers")
    if bad := [name for name, t in state.items() if t.is_floating_point() and t.numel() and not _is_finite(t)]:
        raise CheckpointError(
            f"'{file}' has non-finite weights ({join_first(bad)}): it is damaged, or training diverged"
        )
    return state


def _read(stream: IO[bytes], file: Path) -> State:
    start = stream.read(64)
    stream.seek(0)
    reject_other_formats(file, start)
    if file.suffix == ".npz":
        return read_arrays(stream, file)
    if start.startswith(b"PK") or file.suffix in (".pth", ".pt", ".bin", ".tar", ".ckpt"):
        stored = PyTorchFile(stream, file)
        return _strip_prefixes(stored.tensors(_find_state_dict(file, stored.value)))
    return _read_safetensors(file)


def _is_finite(tensor: Tensor) -> bool:
    minimum, maximum = tensor.aminmax()  # one pass; both are NaN if any value is
    return math.isfinite(minimum) and math.isfinite(maximum)


def _read_safetensors(file: Path) -> State:
    header = read_header(file)
    if unsupported := [f"{name} ({dtype})" for name, dtype in header.dtypes.items() if dtype not in _DTYPES]:
        raise CheckpointError(
            f"'{file}' has dtypes that are not supported, in {join_first(unsupported)}: expected one of "
            f"{', '.join(_DTYPES)}"
        )
    try:
        with safe_open(file, framework="pt") as stored:
            return {name: stored.get_tensor(name).clone() for name in header.shapes}
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"'{file}' is damaged: {error}") from error


def _find_state_dict(file: Path, loaded: Any) -> dict[str, TensorRef]:
    """Return the state dict, at the top level or under one of the usual keys, and check that its tensors are dense."""
    found = loaded
    for _ in range(3):
        if isinstance(found, Mapping) and found and not all(map(_is_tensor, found.values())):
            inner = next((key for key in _CONTAINERS if isinstance(found.get(key), Mapping)), None)
            if inner is None:
                break
            found = found[inner]
    if not isinstance(found, Mapping) or not all(map(_is_tensor, found.values())):
        is_tensor = isinstance(found, TensorRef)
        kind = found.kind if isinstance(found, Unsupported) else "a tensor" if is_tensor else type(found).__name__
        raise CheckpointError(
            f"'{file}' has {kind} and no state dict: expected tensors by name, at the top level or under "
            f"{', '.join(_CONTAINERS)}"
        )
    for name, value in found.items():
        if isinstance(value, Unsupported):
            raise CheckpointError(f"'{file}' has a {value.kind}, {name}: expected a dense tensor")
    return dict(found)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorRef) or (isinstance(value, Unsupported) and "tensor" in value.kind)


def _strip_prefixes(state: State) -> State:
    """Remove the prefixes that training wrappers add to every name."""
    for prefix in ("module.", "_orig_mod.", "backbone.", "model."):
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state
