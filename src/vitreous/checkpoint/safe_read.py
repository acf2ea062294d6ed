"""Tensors from files of strangers: nothing in them is executed, and no size that they claim is believed unseen.

Safetensors, .npz without pickled objects, and PyTorch's files by ``weights_only``; memory is bounded by the file.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitreous.checkpoint.adapters.common import State, few
from vitreous.checkpoint.container import read_header, refuse_other_kinds
from vitreous.errors import CheckpointError

__all__ = ["SUFFIXES", "read_tensors"]

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".tar", ".ckpt")
"""Ends of the names of files that are read."""

_SLACK = 1 << 24  # bytes: small files may compress well
_RATIO = 32  # random weights compress to 0.92, a bomb by a thousand
_CONTAINERS = ("state_dict", "model_state_dict", "model", "teacher", "module", "net")
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, KeyError)


def read_tensors(file: Path) -> State:
    """Return the tensors of a file by name, on the CPU.

    Raises:
        CheckpointError: If it is missing, damaged, of another kind, holds objects that would need code to be run, or
            numbers that are not finite. One line that says which.
    """
    try:
        if not file.is_file():
            raise CheckpointError(f"no model file '{file}'")
        with file.open("rb") as stream:
            start = stream.read(64)
        refuse_other_kinds(file, start)
        if file.suffix == ".npz":
            state = _npz(file)
        elif start.startswith(b"PK") or file.suffix in (".pth", ".pt", ".bin", ".tar", ".ckpt"):
            state = _pytorch(file)
        else:
            state = _safetensors(file)
    except OSError as error:
        raise CheckpointError(f"cannot read '{file}': {error.strerror or error}") from error
    if not state:
        raise CheckpointError(f"'{file}' holds no tensors")
    bad = [name for name, t in state.items() if t.is_floating_point() and t.numel() and not _is_finite(t)]
    if bad:
        raise CheckpointError(f"'{file}' has weights that are not finite ({few(bad)}): it is damaged, or diverged")
    return state


def _is_finite(tensor: Tensor) -> bool:
    least, most = tensor.aminmax()  # one pass, and NaN goes through
    return math.isfinite(least) and math.isfinite(most)


def _safetensors(file: Path) -> State:
    header = read_header(file)
    try:
        with safe_open(file, framework="pt") as stored:
            return {name: stored.get_tensor(name).clone() for name in header.shapes}
    except SafetensorError as error:
        raise CheckpointError(f"'{file}' is damaged: {error}") from error


def _npz(file: Path) -> State:
    """Read arrays of plain numbers; each one's header must agree with the bytes that follow."""
    state: State = {}
    try:
        with zipfile.ZipFile(file) as archive:
            _check_sizes(file, archive)
            for entry in archive.infolist():
                if entry.filename.endswith(".npy"):
                    state[entry.filename.removesuffix(".npy")] = _array(file, entry.filename, archive.read(entry))
                elif not entry.is_dir():
                    raise CheckpointError(f"'{file}' holds '{entry.filename}', which is no array: no .npz of weights")
    except _ZIP_ERRORS as error:
        raise CheckpointError(f"'{file}' is no whole .npz file, it was cut off or damaged: {_brief(error)}") from error
    return state


def _brief(error: Exception) -> str:
    """The first line of what another library says, short: it may cite the file's own bytes."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _array(file: Path, name: str, content: bytes) -> Tensor:
    """Turn one .npy into a tensor."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except (ValueError, SyntaxError, TypeError, EOFError, RecursionError, tokenize.TokenError) as error:
        raise CheckpointError(f"'{file}' is damaged: the header of '{name}' is unreadable") from error
    if dtype.hasobject:
        raise CheckpointError(
            f"'{file}' holds a pickled object in '{name}', which can run code when it is read: refused. "
            "Arrays of numbers are read"
        )
    rest = content[stream.tell() :]
    count = math.prod(shape)
    if any(n < 0 for n in shape) or count * dtype.itemsize != len(rest):
        raise CheckpointError(f"'{file}' is damaged: '{name}' claims shape {list(shape)}, and has {len(rest):,} bytes")
    half = dtype.kind == "V" and dtype.itemsize == 2  # numpy has no name for bfloat16: JAX writes it as raw bytes
    if not half and dtype.kind not in "fiub":
        raise CheckpointError(f"'{file}' holds {dtype} in '{name}', expected numbers")
    array = np.frombuffer(rest, np.uint16 if half else dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)
    if dtype.byteorder == ">":
        array = array.byteswap()
    array = array.reshape(shape, order="F" if fortran else "C")
    try:
        tensor = torch.from_numpy(np.array(array, order="C"))
    except TypeError as error:  # long double and the like
        raise CheckpointError(f"'{file}' holds {dtype} in '{name}', which torch has not") from error
    return tensor.view(torch.bfloat16) if half else tensor


def _check_sizes(file: Path, archive: zipfile.ZipFile) -> None:
    """Refuse an archive whose entries would unpack to far more than the file has, and names that come twice."""
    size = os.path.getsize(file)
    claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > _RATIO * size + _SLACK:
        raise CheckpointError(
            f"'{file}' has {size:,} bytes and would unpack to {claimed:,}: weights never compress that much, refused"
        )
    names = archive.namelist()
    if len(set(names)) != len(names):
        raise CheckpointError(f"'{file}' is damaged: it has two entries of one name")


def _pytorch(file: Path) -> State:
    """Read what torch.save wrote, by the unpickler that makes tensors and plain containers only."""
    if zipfile.is_zipfile(file):
        try:
            with zipfile.ZipFile(file) as archive:
                _check_sizes(file, archive)
                damaged = archive.testzip()  # torch itself does not compare the checksums
        except _ZIP_ERRORS as error:
            reason = f"is no whole PyTorch file, it was cut off or damaged: {_brief(error)}"
            raise CheckpointError(f"'{file}' {reason}") from error
        if damaged:
            raise CheckpointError(f"'{file}' is damaged: the checksum of '{damaged}' does not fit")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own, about deprecated storages
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # what a damaged pickle says may raise anything
        raise CheckpointError(f"'{file}' {_why_not(str(error), file)}") from error
    return _tensors_in(file, loaded)


def _why_not(said: str, file: Path) -> str:
    """Tell a file that wants code from a damaged one, by what torch's unpickler said and how the file begins."""
    wanted = re.search(r"GLOBAL (\S+)", said)
    with open(file, "rb") as stream:
        is_pickle = stream.read(1) == b"\x80"
    if wanted or ("Unsupported" in said and is_pickle):
        what = wanted[1] if wanted else "instructions of another protocol"
        return (
            f"holds more than tensors ({what}): reading it would run code that it names, so it is refused. Save the "
            "state dict alone, best as .safetensors"
        )
    detail = said.strip().splitlines()
    return f"is no whole PyTorch file, it was cut off or damaged{': ' + detail[0][:160] if detail else ''}"


def _tensors_in(file: Path, loaded: Any) -> State:
    """Find the state dict, bare or in the usual containers."""
    found = loaded
    for _ in range(3):
        if isinstance(found, Mapping) and found and not all(isinstance(v, Tensor) for v in found.values()):
            inner = next((key for key in _CONTAINERS if isinstance(found.get(key), Mapping)), None)
            if inner is None:
                break
            found = found[inner]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise CheckpointError(
            f"'{file}' holds {type(found).__name__} and no state dict: names with tensors are expected, bare or "
            f"under {', '.join(_CONTAINERS)}"
        )
    state: State = {}
    for name, tensor in found.items():
        if tensor.is_sparse or tensor.is_quantized or tensor.layout != torch.strided:
            raise CheckpointError(f"'{file}' holds a sparse or quantised tensor {name}: dense numbers are expected")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"'{file}' is damaged: {name} claims shape {list(tensor.shape)} on fewer bytes")
        state[str(name)] = tensor.detach()
    return _without_wrapper(state)


def _without_wrapper(state: State) -> State:
    """Take off what training wrappers put in front of every name."""
    for front in ("module.", "_orig_mod.", "backbone.", "model."):
        if state and all(name.startswith(front) for name in state):
            state = {name.removeprefix(front): tensor for name, tensor in state.items()}
    return state
