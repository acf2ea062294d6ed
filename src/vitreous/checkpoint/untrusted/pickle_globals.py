"""The Python names that a pickle in a PyTorch file may use, each with a substitute defined in this file.

No function of Python or PyTorch is ever called for a pickle. The substitutes return descriptions of tensors and of
their storages; anything that is not part of a state dict becomes an :class:`Unsupported` value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "ALLOWED_GLOBALS",
    "MAX_COUNT",
    "AllowedCallable",
    "DamagedPickleError",
    "StorageRef",
    "TensorRef",
    "UnsafePickleError",
    "Unsupported",
    "key_text",
]

MAX_COUNT = 1 << 48
"""Upper limit of any count in a file: elements, strides, offsets."""

_MAX_DIMENSIONS = 16
_MAX_KEY_LENGTH = 1000  # characters of a string within a tuple that is a dictionary key
_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
    "QInt8": torch.int8, "QUInt8": torch.uint8, "QInt32": torch.int32,
}  # fmt: skip
"""Dtypes by the names of storage classes; quantised tensors are recognised but never read."""


class DamagedPickleError(Exception):
    """The pickle is truncated or invalid."""


class UnsafePickleError(Exception):
    """The pickle uses a Python name that a state dict does not need; the message is that name."""


@dataclass(frozen=True, eq=False)
class StorageRef:
    """A storage in the file, by its name there."""

    key: str
    dtype: torch.dtype  # uint8 for an untyped storage
    count: int  # of elements
    offset: int = 0  # first element of the view, in the format before PyTorch 1.6


@dataclass(frozen=True, eq=False)
class TensorRef:
    """A dense tensor: a strided view of a storage, with offset and strides in elements."""

    storage: StorageRef
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Unsupported:
    """Stands for a value that is not constructed; `kind` describes it, such as ``sparse tensor``."""

    kind: str


@dataclass(frozen=True, eq=False)
class AllowedCallable:
    """The substitute for a function or class; `call` takes the tuple of arguments."""

    name: str
    call: Callable[[tuple[Any, ...]], Any]


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any, dtype: Any = None) -> TensorRef:
    """Substitute for torch._utils._rebuild_tensor and its successors; arguments after `strides` concern autograd."""
    if not (isinstance(storage, StorageRef) and isinstance(shape, tuple) and isinstance(strides, tuple)):
        raise DamagedPickleError("a tensor without a storage, shape or strides")
    if len(shape) != len(strides) or len(shape) > _MAX_DIMENSIONS:
        raise DamagedPickleError(f"a tensor with {len(shape):,} dimensions and {len(strides):,} strides")
    if not all(type(n) is int and 0 <= n < MAX_COUNT for n in (offset, *shape, *strides)):
        raise DamagedPickleError("a tensor with an invalid shape, strides or offset")
    return TensorRef(storage, storage.dtype if dtype is None else dtype, offset, shape, strides)


def _tensor_with_attributes(function: Any, kind: Any, arguments: Any, *rest: Any) -> Any:
    """Substitute for torch._tensor._rebuild_from_type_v2; the attributes are ignored."""
    is_readable = isinstance(function, AllowedCallable) and "_rebuild_from" not in function.name
    if not (is_readable and isinstance(arguments, tuple)):
        raise DamagedPickleError("a tensor with attributes that cannot be read")
    return function.call(arguments)


def _tensor_v3(arguments: tuple[Any, ...]) -> Any:
    """Substitute for torch._utils._rebuild_tensor_v3, which states the dtype."""
    storage, offset, shape, strides, _, _, dtype, *_ = arguments
    if not isinstance(dtype, torch.dtype):
        raise DamagedPickleError("a tensor without a dtype")
    return _tensor(storage, offset, shape, strides, dtype=dtype)


def _mapping(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Substitute for OrderedDict: empty, as Python 3 writes it, or of pairs."""
    pairs = arguments[0] if arguments and isinstance(arguments[0], list | tuple) else ()
    return {key_text(key): value for key, value in pairs}


def key_text(value: Any) -> str:
    """Return a dictionary key as a string. No other value is ever hashed, because hashing could take forever."""
    if isinstance(value, str):
        return value
    if _is_short(value) or (isinstance(value, tuple) and len(value) <= _MAX_DIMENSIONS and all(map(_is_short, value))):
        return str(value)
    raise DamagedPickleError(f"a dictionary with a {type(value).__name__} as a key")


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_KEY_LENGTH
    return value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 64)


def _unsupported(kind: str) -> Callable[[tuple[Any, ...]], Any]:
    return lambda arguments: Unsupported(kind)


def _allowed_globals() -> dict[str, Any]:
    """Return the table of names. No entry calls anything outside this file."""
    substitutes: dict[str, Callable[[tuple[Any, ...]], Any]] = {
        "collections.OrderedDict": _mapping,
        "collections.Counter": lambda arguments: _mapping(()),  # in the state of a scheduler; its counts are ignored
        "torch.Size": lambda arguments: arguments[0] if isinstance(arguments[0], tuple) else tuple(arguments[0]),
        "torch._utils._rebuild_tensor": lambda arguments: _tensor(*arguments),
        "torch._utils._rebuild_tensor_v2": lambda arguments: _tensor(*arguments),
        "torch._utils._rebuild_tensor_v3": _tensor_v3,
        "torch._utils._rebuild_parameter": lambda arguments: arguments[0],
        "torch._utils._rebuild_parameter_with_state": lambda arguments: arguments[0],
        "torch._tensor._rebuild_from_type_v2": lambda arguments: _tensor_with_attributes(*arguments),
        "torch._utils._rebuild_sparse_tensor": _unsupported("sparse tensor"),
        "torch._utils._rebuild_qtensor": _unsupported("quantised tensor"),
        "torch._utils._rebuild_meta_tensor_no_storage": _unsupported("tensor without data (of the meta device)"),
        "torch._utils._rebuild_nested_tensor": _unsupported("nested tensor"),
        "torch._utils._rebuild_wrapper_subclass": _unsupported("wrapped tensor"),
        "torch._utils._rebuild_device_tensor_from_numpy": _unsupported("tensor of another device"),
        "torch._utils._rebuild_device_tensor_from_cpu_tensor": lambda arguments: arguments[0],
        "torch.nn.parameter.Parameter": lambda arguments: arguments[0],
        "torch.Tensor": _unsupported("tensor of another kind"),
        "torch.device": _unsupported("device"),
        "torch.serialization._get_layout": _unsupported("layout"),
        **{f"builtins.{name}": _unsupported(name) for name in ("set", "frozenset", "bytearray", "complex", "bytes")},
        "_codecs.encode": _unsupported("bytes"),
    }
    names: dict[str, Any] = {name: AllowedCallable(name, call) for name, call in substitutes.items()}
    for prefix, dtype in _DTYPES.items():
        for module in ("torch", "torch.cuda", "torch.storage"):
            names[f"{module}.{prefix}Storage"] = dtype
    names["torch.UntypedStorage"] = names["torch.storage.UntypedStorage"] = torch.uint8
    names |= {f"torch.{name}": value for name in dir(torch) if isinstance(value := getattr(torch, name), torch.dtype)}
    for axis in ("tensor", "channel"):
        for kind in ("affine", "symmetric", "affine_float_qparams"):
            names[f"torch.per_{axis}_{kind}"] = Unsupported("scheme")
    return names


ALLOWED_GLOBALS = _allowed_globals()
"""What each allowed name stands for."""
