"""Dataclasses that a model file stores: to plain values, and back with strict checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Self, get_origin, get_type_hints

from vitreous.choices import unknown_choices, wrong_types
from vitreous.errors import ConfigError, did_you_mean

__all__ = ["Stored"]


class Stored:
    """Base class of a frozen dataclass that is stored. Its fields are numbers, words, tuples or other stored ones.

    Creation raises ConfigError for a value of the wrong type, NaN, infinity, an unknown choice, or what `problems`
    reports.
    """

    def __post_init__(self) -> None:
        nested = [field.name for field in _fields(self) if isinstance(getattr(self, field.name), Stored)]
        found = [*unknown_choices(self), *wrong_types(self, skip=nested)]
        if found := found or list(self.problems()):
            raise ConfigError("; ".join(found))

    def problems(self) -> Iterator[str]:
        """Yield one sentence for each field whose value has the right type but is outside its range."""
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        values = {field.name: getattr(self, field.name) for field in _fields(self)}
        return {
            name: value.to_dict() if isinstance(value, Stored) else list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, stored: Any) -> Self:
        """Return the object of :meth:`to_dict`, from untrusted values.

        Raises:
            ConfigError: If `stored` is no dictionary, a name is unknown or missing, or a value does not fit.
        """
        if not isinstance(stored, dict):
            raise ConfigError(f"{cls.__name__} is stored as {type(stored).__name__}, it must be a dictionary")
        hints = get_type_hints(cls)
        names = [field.name for field in _fields(cls)]
        for name in stored:
            if name not in names:
                raise ConfigError(f"{cls.__name__} has no field '{name!s:.60}'.{did_you_mean(str(name), names)}")
        if missing := [name for name in names if name not in stored]:
            raise ConfigError(f"{cls.__name__} lacks {', '.join(missing)}: every field must be stored")
        values = {}
        for name in names:
            value, hint = stored[name], hints[name]
            if isinstance(hint, type) and issubclass(hint, Stored):
                value = hint.from_dict(value)
            elif get_origin(hint) is tuple and isinstance(value, list):
                value = tuple(value)
            values[name] = value
        return cls(**values)


def _fields(stored: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(stored)
