"""What a pickle in a file of PyTorch's may name: a table of this file's own, in which nothing of Python's is called.

Calls give descriptions of tensors and of the storages that their numbers lie in; what is no part of a state dict is an
:class:`Odd` value, which is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "KNOWN",
    "MOST",
    "DamagedPickleError",
    "Name",
    "Odd",
    "StorageRef",
    "TensorRef",
    "UnsafePickleError",
    "key_of",
]

MOST = 1 << 48
"""Of anything that is counted."""

_MOST_AXES = 16
_LONGEST_KEY = 1000  # letters of a text within a key that is a tuple
_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
    "QInt8": torch.int8, "QUInt8": torch.uint8, "QInt32": torch.int32,
}  # fmt: skip
"""Number types of storages; those of quantised numbers are never read, only passed over."""


class DamagedPickleError(Exception):
    """The pickle is no whole one, or makes no sense."""


class UnsafePickleError(Exception):
    """The pickle names something of Python's that is no part of a state dict; the message is that name."""


@dataclass(frozen=True, eq=False)
class StorageRef:
    """A block of numbers in the file.

    Args:
        key: Its name there.
        dtype: Type of its numbers; uint8 where only the tensors on it know.
        count: How many numbers the block has.
        offset: Where the numbers begin that are meant, in files of before 2020.
    """

    key: str
    dtype: torch.dtype
    count: int
    offset: int = 0


@dataclass(frozen=True, eq=False)
class TensorRef:
    """A dense tensor: where its numbers lie, counted in numbers of its type."""

    storage: StorageRef
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Odd:
    """A value that is no part of a state dict, and is not made: by its kind, such as ``sparse tensor``."""

    kind: str


@dataclass(frozen=True, eq=False)
class Name:
    """Something of Python's that may be named: what calling it makes of a tuple of arguments."""

    name: str
    call: Callable[[tuple[Any, ...]], Any]


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any, dtype: Any = None) -> TensorRef:
    """torch._utils._rebuild_tensor and its successors; what follows the strides concerns autograd alone."""
    if not (isinstance(storage, StorageRef) and isinstance(shape, tuple) and isinstance(strides, tuple)):
        raise DamagedPickleError("a tensor without a storage, shape or strides")
    if len(shape) != len(strides) or len(shape) > _MOST_AXES:
        raise DamagedPickleError(f"a tensor with {len(shape):,} sides and {len(strides):,} strides")
    if not all(type(n) is int and 0 <= n < MOST for n in (offset, *shape, *strides)):
        raise DamagedPickleError("a tensor with a shape, strides or an offset that are none")
    return TensorRef(storage, storage.dtype if dtype is None else dtype, offset, shape, strides)


def _of_type(function: Any, kind: Any, arguments: Any, *rest: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor that has attributes of Python's besides."""
    if not isinstance(function, Name) or not isinstance(arguments, tuple) or "_rebuild_from" in function.name:
        raise DamagedPickleError("a tensor with attributes that cannot be read")
    return function.call(arguments)


def _third(arguments: tuple[Any, ...]) -> Any:
    storage, offset, shape, strides, _, _, dtype, *_ = arguments
    if not isinstance(dtype, torch.dtype):
        raise DamagedPickleError("a tensor without a type")
    return _tensor(storage, offset, shape, strides, dtype=dtype)


def _mapping(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """OrderedDict and Counter, empty as they are written since Python 3, or of pairs."""
    made: dict[str, Any] = {}
    for pair in arguments[0] if arguments and isinstance(arguments[0], list | tuple) else ():
        key, value = pair
        made[key_of(key)] = value
    return made


def key_of(value: Any) -> str:
    """A dictionary's key as text: nothing else is hashed here, as hashing may take for ever."""
    if isinstance(value, str):
        return value
    if _is_short(value):
        return str(value)
    if isinstance(value, tuple) and len(value) <= _MOST_AXES and all(map(_is_short, value)):
        return str(value)
    raise DamagedPickleError(f"a dictionary with a {type(value).__name__} as a key")


def _is_short(value: Any) -> bool:
    """Whether it is plain and short, so that a million of them are written soon."""
    if isinstance(value, str):
        return len(value) <= _LONGEST_KEY
    return value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 64)


def _odd(kind: str) -> Callable[[tuple[Any, ...]], Any]:
    return lambda arguments: Odd(kind)


def _known() -> dict[str, Any]:
    """What a pickle may name: no entry calls anything outside this file."""
    table: dict[str, Any] = {
        "collections.OrderedDict": _mapping,
        "collections.Counter": lambda arguments: _mapping(()),  # of a scheduler: its numbers are never read
        "torch.Size": lambda arguments: arguments[0] if isinstance(arguments[0], tuple) else tuple(arguments[0]),
        "torch._utils._rebuild_tensor": lambda arguments: _tensor(*arguments),
        "torch._utils._rebuild_tensor_v2": lambda arguments: _tensor(*arguments),
        "torch._utils._rebuild_tensor_v3": _third,
        "torch._utils._rebuild_parameter": lambda arguments: arguments[0],
        "torch._utils._rebuild_parameter_with_state": lambda arguments: arguments[0],
        "torch._tensor._rebuild_from_type_v2": lambda arguments: _of_type(*arguments),
        "torch._utils._rebuild_sparse_tensor": _odd("sparse tensor"),
        "torch._utils._rebuild_qtensor": _odd("quantised tensor"),
        "torch._utils._rebuild_meta_tensor_no_storage": _odd("tensor without numbers (of the meta device)"),
        "torch._utils._rebuild_nested_tensor": _odd("nested tensor"),
        "torch._utils._rebuild_wrapper_subclass": _odd("wrapped tensor"),
        "torch._utils._rebuild_device_tensor_from_numpy": _odd("tensor of another device"),
        "torch._utils._rebuild_device_tensor_from_cpu_tensor": lambda arguments: arguments[0],
        "torch.nn.parameter.Parameter": lambda arguments: arguments[0],
        "torch.Tensor": _odd("tensor of another kind"),
        "torch.device": _odd("device"),
        "torch.serialization._get_layout": _odd("layout"),
        **{f"builtins.{name}": _odd(name) for name in ("set", "frozenset", "bytearray", "complex", "bytes")},
        "_codecs.encode": _odd("bytes"),
    }
    names: dict[str, Any] = {name: Name(name, call) for name, call in table.items()}
    for front, dtype in _DTYPES.items():
        for module in ("torch", "torch.cuda", "torch.storage"):
            names[f"{module}.{front}Storage"] = dtype
    names["torch.UntypedStorage"] = names["torch.storage.UntypedStorage"] = torch.uint8
    names |= {f"torch.{name}": value for name in dir(torch) if isinstance(value := getattr(torch, name), torch.dtype)}
    for axis in ("tensor", "channel"):
        for kind in ("affine", "symmetric", "affine_float_qparams"):
            names[f"torch.per_{axis}_{kind}"] = Odd("scheme")
    return names


KNOWN = _known()
"""Names with what they stand for."""
