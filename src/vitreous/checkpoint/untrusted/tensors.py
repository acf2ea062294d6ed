"""Tensors from files of strangers: nothing in them is executed, and no size that they claim is believed unseen.

Safetensors, .npz without pickled objects, and PyTorch's files; time and memory are bounded by the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitreous.checkpoint.adapters.common import State, few
from vitreous.checkpoint.untrusted.container import LARGEST_FILE, read_header, refuse_other_kinds
from vitreous.checkpoint.untrusted.npz import read_arrays
from vitreous.checkpoint.untrusted.pickle_names import Odd, TensorRef
from vitreous.checkpoint.untrusted.torch_file import READABLE, PyTorchFile
from vitreous.errors import CheckpointError
from vitreous.files.opening import open_regular

__all__ = ["SUFFIXES", "read_tensors"]

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".tar", ".ckpt")
"""Ends of the names of files that are read."""

_CONTAINERS = ("state_dict", "model_state_dict", "model", "teacher", "module", "net")
_NUMBERS = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")  # in safetensors' words


def read_tensors(file: Path) -> State:
    """Return the tensors of a file by name, on the CPU.

    Raises:
        CheckpointError: If it is missing, damaged, of another kind, holds objects that would need code to be run, or
            numbers that are not finite. One line that says which.
    """
    try:
        if not file.is_file():
            raise CheckpointError(f"no model file '{file}'")
        with open_regular(file, LARGEST_FILE) as stream:
            state = _tensors(stream, file)
    except OSError as error:
        raise CheckpointError(f"cannot read '{file}': {error.strerror or error}") from error
    if not state:
        raise CheckpointError(f"'{file}' holds no tensors")
    for name, tensor in state.items():
        if tensor.dtype not in READABLE:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(f"'{file}' holds {kind} in '{name}', expected floating-point or whole numbers")
    bad = [name for name, t in state.items() if t.is_floating_point() and t.numel() and not _is_finite(t)]
    if bad:
        raise CheckpointError(f"'{file}' has weights that are not finite ({few(bad)}): it is damaged, or diverged")
    return state


def _tensors(stream: IO[bytes], file: Path) -> State:
    """Read a file by what it begins with, and by its name."""
    start = stream.read(64)
    stream.seek(0)
    refuse_other_kinds(file, start)
    if file.suffix == ".npz":
        return read_arrays(stream, file)
    if start.startswith(b"PK") or file.suffix in (".pth", ".pt", ".bin", ".tar", ".ckpt"):
        stored = PyTorchFile(stream, file)
        return _without_wrapper(stored.tensors(_dense(file, stored.value)))
    return _safetensors(file)


def _is_finite(tensor: Tensor) -> bool:
    least, most = tensor.aminmax()  # one pass, and NaN goes through
    return math.isfinite(least) and math.isfinite(most)


def _safetensors(file: Path) -> State:
    header = read_header(file)
    odd = [f"{name} ({dtype})" for name, dtype in header.dtypes.items() if dtype not in _NUMBERS]
    if odd:
        raise CheckpointError(
            f"'{file}' holds numbers of a type that is not read, in {few(odd)}: {', '.join(_NUMBERS)} are"
        )
    try:
        with safe_open(file, framework="pt") as stored:
            return {name: stored.get_tensor(name).clone() for name in header.shapes}
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"'{file}' is damaged: {error}") from error


def _dense(file: Path, loaded: Any) -> dict[str, TensorRef]:
    """Find the state dict, bare or in the usual containers, and see that its tensors are dense."""
    found = loaded
    for _ in range(3):
        if isinstance(found, Mapping) and found and not all(map(_is_tensor, found.values())):
            inner = next((key for key in _CONTAINERS if isinstance(found.get(key), Mapping)), None)
            if inner is None:
                break
            found = found[inner]
    if not isinstance(found, Mapping) or not all(map(_is_tensor, found.values())):
        kind = found.kind if isinstance(found, Odd) else "a tensor" if _is_tensor(found) else type(found).__name__
        raise CheckpointError(
            f"'{file}' holds {kind} and no state dict: names with tensors are expected, bare or "
            f"under {', '.join(_CONTAINERS)}"
        )
    for name, each in found.items():
        if isinstance(each, Odd):
            raise CheckpointError(f"'{file}' holds a {each.kind}, {name}: dense numbers are expected")
    return dict(found)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorRef) or (isinstance(value, Odd) and "tensor" in value.kind)


def _without_wrapper(state: State) -> State:
    """Take off what training wrappers put in front of every name."""
    for front in ("module.", "_orig_mod.", "backbone.", "model."):
        if state and all(name.startswith(front) for name in state):
            state = {name.removeprefix(front): tensor for name, tensor in state.items()}
    return state
