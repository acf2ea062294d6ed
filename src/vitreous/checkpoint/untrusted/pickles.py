"""A reader of the pickles in PyTorch's files that runs nothing: the few instructions of which tensors are made.

What it returns are plain values and descriptions of tensors; names of Python's are looked up in a table of this file's
own. Its cost is bounded by the pickle's length: values are never hashed, compared or copied as a whole, so nesting and
repetition cost nothing, and bytes that a pickle asks for are not made.
https://docs.python.org/3/library/pickletools.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch

from vitreous.checkpoint.untrusted.pickle_names import (
    KNOWN,
    MOST,
    DamagedPickleError,
    Name,
    Odd,
    StorageRef,
    UnsafePickleError,
    key_of,
)

__all__ = ["PickleReader"]

_MOST_STEPS = 500_000  # a training checkpoint of ViT-H with its optimiser takes 50,000
_LONGEST_NUMBER = 256  # bytes
_LONGEST_NAME = 1000  # letters


class PickleReader:
    """Reads pickles that lie one after the other, of the protocols 2 to 5.

    Args:
        data: Bytes.

    Attributes:
        at: Where the next pickle begins.
        storages: Type of the numbers in each storage that was named, by its key.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0
        self.storages: dict[str, torch.dtype] = {}
        self._charge = 0

    def load(self) -> Any:
        """Return the next pickle's value: tensors as :class:`TensorRef`, dictionaries with text as keys.

        Raises:
            UnsafePickleError: If it names something else than a state dict needs.
            DamagedPickleError: If it cannot be read for another reason, or takes too many steps.
        """
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        try:
            while True:
                self._pay(1)
                code = self._byte()
                if code == 0x2E:  # STOP
                    return self._stack.pop()
                step = _STEPS.get(code)
                if step is None:
                    raise DamagedPickleError(f"an instruction {bytes([code])!r} that no tensors need")
                step(self)
        except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
            raise DamagedPickleError(f"its pickle makes no sense at byte {self.at:,}") from error

    def _pay(self, steps: int) -> None:
        self._charge += steps
        if self._charge > _MOST_STEPS:
            raise DamagedPickleError(f"its pickle takes more than {_MOST_STEPS:,} steps")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise DamagedPickleError("its pickle ends too early")

    def _take(self, count: int) -> bytes:
        self._skip(count)
        return self._data[self.at - count : self.at]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._data.index(b"\n", self.at, self.at + _LONGEST_NAME)
        text = self._data[self.at : end].decode()
        self.at = end + 1
        return text

    def _long(self, form: str) -> None:
        count = self._number(form)
        if not 0 <= count <= _LONGEST_NUMBER:
            raise DamagedPickleError(f"a number of {count:,} bytes")
        self._push(int.from_bytes(self._take(count), "little", signed=True))

    def _text(self, form: str) -> None:
        self._push(str(self._take(self._number(form)), "utf-8", "surrogatepass"))

    def _bytes(self, form: str) -> None:
        self._skip(self._number(form))
        self._push(Odd("bytes"))

    def _string(self, form: str) -> None:  # a str of Python 2
        self._push(str(self._take(self._number(form)), "utf-8", "backslashreplace"))

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def _frozen(self) -> None:
        self._since_mark()
        self._push(Odd("frozenset"))

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise DamagedPickleError("a tuple of what is not there")
        self._stack[len(self._stack) - count :] = [tuple(self._stack[len(self._stack) - count :])]

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list | Odd):
            raise DamagedPickleError("a list that is none")
        if isinstance(target, list):
            target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise DamagedPickleError("a dictionary that is none")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key_of(key)] = value

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _global(self, module: str, name: str) -> None:
        module = {"__builtin__": "builtins", "copy_reg": "copyreg", "torch.tensor": "torch._tensor"}.get(module, module)
        full = f"{module}.{name}"
        if full not in KNOWN:
            raise UnsafePickleError(full.removeprefix("builtins."))
        self._push(KNOWN[full])

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise DamagedPickleError("a name that is none")
        self._global(module, name)

    def _reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise DamagedPickleError("a call of what cannot be called")
        self._pay(sum(len(each) for each in (arguments, *arguments[:1]) if isinstance(each, list | tuple)))
        self._push(function.call(arguments))

    def _build(self) -> None:
        """Attributes are never read: a dictionary's (the ``_metadata`` of a state dict) are left away."""
        self._stack.pop()
        if not isinstance(self._stack[-1], dict | Odd):
            raise DamagedPickleError("attributes of what has none")

    def _storage(self) -> None:
        named = self._stack.pop()
        if not isinstance(named, tuple) or not 5 <= len(named) <= 6:
            raise DamagedPickleError("a reference to what is no storage")
        kind, dtype, key, _, count, *view = named
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise DamagedPickleError("a storage without a type or a name")
        offset = view[0][1] if view and view[0] is not None else 0
        if not all(type(n) is int and 0 <= n < MOST for n in (count, offset)):
            raise DamagedPickleError("a storage without a length or a place")
        self.storages[key] = dtype
        self._push(StorageRef(key, dtype, count, offset))

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]


_Step = Callable[[PickleReader], Any]
_STEPS: dict[int, _Step] = {
    ord(code): step
    for code, step in {
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
        "U": lambda r: r._string("<B"),
        "T": lambda r: r._string("<I"),
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
        "\x8f": lambda r: r._push(Odd("set")),
        "\x90": lambda r: r._append(r._since_mark()),  # ADDITEMS
        "\x91": PickleReader._frozen,
        "q": lambda r: r._put(r._byte()),
        "r": lambda r: r._put(r._number("<I")),
        "\x94": lambda r: r._put(len(r._memo)),  # MEMOIZE
        "h": lambda r: r._push(r._memo[r._byte()]),
        "j": lambda r: r._push(r._memo[r._number("<I")]),
        "c": lambda r: r._global(r._line(), r._line()),
        "\x93": PickleReader._stack_global,
        "R": PickleReader._reduce,
        "\x81": PickleReader._reduce,  # NEWOBJ: of the same table, with the same arguments
        "b": PickleReader._build,
        "Q": PickleReader._storage,
    }.items()
}
"""Instructions by their byte."""
