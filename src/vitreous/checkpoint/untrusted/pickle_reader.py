"""An interpreter for the pickles in PyTorch files that executes no code and knows only the opcodes of state dicts.

It returns plain values and descriptions of tensors; Python names are looked up in
:data:`~vitreous.checkpoint.untrusted.pickle_globals.ALLOWED_GLOBALS`. Its cost is bounded by the pickle's length:
containers are never hashed, compared or deeply copied, so nesting and repetition are cheap, and a size that a pickle
claims is never allocated. Opcodes: https://docs.python.org/3/library/pickletools.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch

from vitreous.checkpoint.untrusted.pickle_globals import (
    ALLOWED_GLOBALS,
    MAX_COUNT,
    AllowedCallable,
    DamagedPickleError,
    StorageRef,
    UnsafePickleError,
    Unsupported,
    key_text,
)

__all__ = ["PickleReader"]

_MAX_STEPS = 500_000  # ten times those of a ViT-H training checkpoint with its optimiser
_MAX_INT_BYTES = 256
_MAX_NAME_LENGTH = 1000  # characters


class PickleReader:
    """Reads consecutive pickles of protocols 2 to 5; the next one begins at `position`."""

    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0
        self.storages: dict[str, torch.dtype] = {}  # of each storage that the pickles refer to, by its key
        self._steps = 0

    def load(self) -> Any:
        """Return the value of the next pickle, with tensors as :class:`TensorRef` and strings as dictionary keys."""
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []  # the stacks below each open mark
        self._memo: dict[int, Any] = {}
        try:
            while True:
                self._count_steps(1)
                code = self._byte()
                if code == 0x2E:  # STOP
                    return self._stack.pop()
                opcode = _OPCODES.get(code)
                if opcode is None:
                    raise DamagedPickleError(f"the opcode {bytes([code])!r}, which no state dict needs")
                opcode(self)
        except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
            raise DamagedPickleError(f"its pickle is invalid at byte {self.position:,}") from error

    def _count_steps(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise DamagedPickleError(f"its pickle takes more than {_MAX_STEPS:,} steps")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self._data):
            raise DamagedPickleError("its pickle ends too early")

    def _take(self, count: int) -> bytes:
        self._skip(count)
        return self._data[self.position - count : self.position]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._data.index(b"\n", self.position, self.position + _MAX_NAME_LENGTH)
        text = self._data[self.position : end].decode()
        self.position = end + 1
        return text

    def _long(self, form: str) -> None:
        count = self._number(form)
        if not 0 <= count <= _MAX_INT_BYTES:
            raise DamagedPickleError(f"an integer of {count:,} bytes")
        self._push(int.from_bytes(self._take(count), "little", signed=True))

    def _text(self, form: str, errors: str = "surrogatepass") -> None:
        self._push(str(self._take(self._number(form)), "utf-8", errors))

    def _bytes(self, form: str) -> None:
        self._skip(self._number(form))
        self._push(Unsupported("bytes"))

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def _frozenset(self) -> None:
        self._since_mark()
        self._push(Unsupported("frozenset"))

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise DamagedPickleError("a tuple with missing items")
        self._stack[len(self._stack) - count :] = [tuple(self._stack[len(self._stack) - count :])]

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list | Unsupported):
            raise DamagedPickleError("items for a value that is not a list")
        if isinstance(target, list):
            target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise DamagedPickleError("items for a value that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key_text(key)] = value

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _global(self, module: str, name: str) -> None:
        module = {"__builtin__": "builtins", "copy_reg": "copyreg", "torch.tensor": "torch._tensor"}.get(module, module)
        full = f"{module}.{name}"
        if full not in ALLOWED_GLOBALS:
            raise UnsafePickleError(full.removeprefix("builtins."))
        self._push(ALLOWED_GLOBALS[full])

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise DamagedPickleError("a global name that is not a string")
        self._global(module, name)

    def _reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, AllowedCallable) or not isinstance(arguments, tuple):
            raise DamagedPickleError("a call of a value that is not callable")
        self._count_steps(sum(len(each) for each in (arguments, *arguments[:1]) if isinstance(each, list | tuple)))
        self._push(function.call(arguments))

    def _build(self) -> None:
        """Ignore attributes, such as the ``_metadata`` of a state dict."""
        self._stack.pop()
        if not isinstance(self._stack[-1], dict | Unsupported):
            raise DamagedPickleError("attributes for a value that has none")

    def _storage(self) -> None:
        reference = self._stack.pop()
        if not isinstance(reference, tuple) or not 5 <= len(reference) <= 6:
            raise DamagedPickleError("a reference to a value that is not a storage")
        kind, dtype, key, _, count, *view = reference
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise DamagedPickleError("a storage without a dtype or key")
        offset = view[0][1] if view and view[0] is not None else 0
        if not all(type(n) is int and 0 <= n < MAX_COUNT for n in (count, offset)):
            raise DamagedPickleError("a storage with an invalid length or offset")
        self.storages[key] = dtype
        self._push(StorageRef(key, dtype, count, offset))

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]


_OPCODES: dict[int, Callable[[PickleReader], Any]] = {
    ord(code): function
    for code, function in {
        "\x80": lambda r: r._skip(1),  # PROTO
        "\x95": lambda r: r._skip(8),  # FRAME
        "(": PickleReader._mark,
        "N": lambda r: r._push(None),
        "\x88": lambda r: r._push(True),
        "\x89": lambda r: r._push(False),
        "K": lambda r: r._push(r._byte()),
        "M": lambda r: r._push(r._number("<H")),
        "J": lambda r: r._push(r._number("<i")),
        "G": lambda r: r._push(r._number(">d")),
        "\x8a": lambda r: r._long("<B"),
        "\x8b": lambda r: r._long("<i"),
        "X": lambda r: r._text("<I"),
        "\x8c": lambda r: r._text("<B"),
        "\x8d": lambda r: r._text("<Q"),
        "U": lambda r: r._text("<B", "backslashreplace"),  # SHORT_BINSTRING, of Python 2
        "T": lambda r: r._text("<I", "backslashreplace"),
        "B": lambda r: r._bytes("<I"),
        "C": lambda r: r._bytes("<B"),
        "\x8e": lambda r: r._bytes("<Q"),
        "\x96": lambda r: r._bytes("<Q"),  # BYTEARRAY8
        "]": lambda r: r._push([]),
        "a": lambda r: r._append([r._stack.pop()]),
        "e": lambda r: r._append(r._since_mark()),
        "}": lambda r: r._push({}),
        "s": PickleReader._set_item,
        "u": lambda r: r._set_items(r._since_mark()),
        ")": lambda r: r._push(()),
        "t": lambda r: r._push(tuple(r._since_mark())),
        "\x85": lambda r: r._tuple(1),
        "\x86": lambda r: r._tuple(2),
        "\x87": lambda r: r._tuple(3),
        "\x8f": lambda r: r._push(Unsupported("set")),
        "\x90": lambda r: r._append(r._since_mark()),  # ADDITEMS
        "\x91": PickleReader._frozenset,
        "q": lambda r: r._put(r._byte()),
        "r": lambda r: r._put(r._number("<I")),
        "\x94": lambda r: r._put(len(r._memo)),  # MEMOIZE
        "h": lambda r: r._push(r._memo[r._byte()]),
        "j": lambda r: r._push(r._memo[r._number("<I")]),
        "c": lambda r: r._global(r._line(), r._line()),
        "\x93": PickleReader._stack_global,
        "R": PickleReader._reduce,
        "\x81": PickleReader._reduce,  # NEWOBJ
        "b": PickleReader._build,
        "Q": PickleReader._storage,
    }.items()
}
