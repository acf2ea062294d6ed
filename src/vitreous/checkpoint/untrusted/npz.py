"""Reads arrays of numbers from .npz files: no pickled objects, and every header must match the size of its data."""

from __future__ import annotations

import io
import math
import tokenize
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from vitreous.checkpoint.untrusted.archive import Archive
from vitreous.errors import CheckpointError

__all__ = ["read_arrays"]

_MAX_HEADER = 4096  # bytes; numpy writes 128
_MAX_DIMENSIONS = 16
_MAX_LENGTH = 1 << 48  # of one dimension


def read_arrays(stream: IO[bytes], file: Path) -> dict[str, Tensor]:
    """Return the arrays of an open file by name; the path is for messages."""
    archive = Archive(stream, file, ".npz file")
    for name in archive.entries:
        if not name.endswith((".npy", "/")):
            raise CheckpointError(f"'{file}' has '{name}', which is not an array: it is no .npz of weights")
    names = [name for name in archive.entries if name.endswith(".npy")]
    return {name.removesuffix(".npy"): _array(file, name, archive.read(name)) for name in names}


def _array(file: Path, name: str, content: Tensor) -> Tensor:
    """Convert the bytes (n,) of one .npy to a tensor, without a copy if order, byte order and alignment allow it."""
    raw = content.numpy()
    stream = io.BytesIO(raw[: _MAX_HEADER + 16].tobytes())
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream, _MAX_HEADER)
    except (
        *(ValueError, SyntaxError, TypeError, EOFError, LookupError, OverflowError, tokenize.TokenError),
        *(RecursionError, MemoryError),  # Python's parser raises them for long runs of brackets or signs
    ) as error:
        raise CheckpointError(f"'{file}' is damaged: the header of '{name}' is unreadable") from error
    if dtype.hasobject:
        raise CheckpointError(
            f"'{file}' has a pickled object in '{name}', which can run code when it is loaded: only arrays of numbers "
            "are read"
        )
    rest = raw[stream.tell() :]
    is_valid = all(type(n) is int and 0 <= n < _MAX_LENGTH for n in shape) and len(shape) <= _MAX_DIMENSIONS
    if not is_valid or math.prod(shape) * dtype.itemsize != len(rest):
        claim = str(list(shape))[:100]
        raise CheckpointError(f"'{file}' is damaged: '{name}' claims shape {claim}, and has {len(rest):,} bytes")
    is_bfloat16 = dtype == np.dtype("V2")  # JAX writes bfloat16, which numpy lacks, as raw 2-byte items
    if not is_bfloat16 and dtype.kind not in "fiub":
        raise CheckpointError(f"'{file}' has dtype {str(dtype)[:100]} in '{name}', expected numbers")
    array = rest.view(np.uint16 if is_bfloat16 else dtype)
    if not array.dtype.isnative:
        array = array.byteswap().view(array.dtype.newbyteorder("="))
    array = array.reshape(shape, order="F" if fortran else "C")
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C")
    try:
        tensor = torch.from_numpy(array)
    except TypeError as error:  # such as long double
        raise CheckpointError(f"'{file}' has dtype {dtype} in '{name}', which torch does not support") from error
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor
