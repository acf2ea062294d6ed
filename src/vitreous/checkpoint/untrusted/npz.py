"""Arrays of plain numbers from .npz files: no pickled objects, and headers that agree with the bytes that follow."""

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

_LONGEST_HEADER = 4096  # bytes: numpy writes 128
_MOST_AXES = 16
_LONGEST_SIDE = 1 << 48


def read_arrays(stream: IO[bytes], file: Path) -> dict[str, Tensor]:
    """Return the arrays of a file by name.

    Args:
        stream: The open file.
        file: Its path, for messages.

    Raises:
        CheckpointError: If it is no whole archive of arrays, or one holds something else than numbers.
    """
    archive = Archive(stream, file, ".npz file")
    for name in archive.entries:
        if not name.endswith((".npy", "/")):
            raise CheckpointError(f"'{file}' holds '{name}', which is no array: no .npz of weights")
    names = [name for name in archive.entries if name.endswith(".npy")]
    return {name.removesuffix(".npy"): _array(file, name, archive.read(name)) for name in names}


def _array(file: Path, name: str, content: Tensor) -> Tensor:
    """Turn the bytes of one .npy (n,) into a tensor; it keeps their memory where they are in order."""
    raw = content.numpy()
    stream = io.BytesIO(raw[: _LONGEST_HEADER + 16].tobytes())
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream, _LONGEST_HEADER)
    except (
        *(ValueError, SyntaxError, TypeError, EOFError, LookupError, OverflowError, tokenize.TokenError),
        *(RecursionError, MemoryError),  # of Python's parser, about brackets or signs in a row
    ) as error:
        raise CheckpointError(f"'{file}' is damaged: the header of '{name}' is unreadable") from error
    if dtype.hasobject:
        raise CheckpointError(
            f"'{file}' holds a pickled object in '{name}', which can run code when it is read: refused. "
            "Arrays of numbers are read"
        )
    rest = raw[stream.tell() :]
    whole = all(type(n) is int and 0 <= n < _LONGEST_SIDE for n in shape) and len(shape) <= _MOST_AXES
    if not whole or math.prod(shape) * dtype.itemsize != len(rest):
        said = str(list(shape))[:100]
        raise CheckpointError(f"'{file}' is damaged: '{name}' claims shape {said}, and has {len(rest):,} bytes")
    half = dtype == np.dtype("V2")  # numpy has no name for bfloat16: JAX writes it as raw bytes
    if not half and dtype.kind not in "fiub":
        raise CheckpointError(f"'{file}' holds {str(dtype)[:100]} in '{name}', expected numbers")
    array = rest.view(np.uint16 if half else dtype)
    if not array.dtype.isnative:
        array = array.byteswap().view(array.dtype.newbyteorder("="))
    array = array.reshape(shape, order="F" if fortran else "C")
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C")
    try:
        tensor = torch.from_numpy(array)
    except TypeError as error:  # long double and the like
        raise CheckpointError(f"'{file}' holds {dtype} in '{name}', which torch has not") from error
    return tensor.view(torch.bfloat16) if half else tensor
