"""The exception tree. Every error a user can meet is one of these; the command line makes it one line and an exit code.

VitreousError (exit 1)
├── UsageError (exit 2)         the command, an option or a value is wrong: change what you typed
│   └── ConfigError             a configuration contradicts itself or does not fit the data
├── DataError (exit 1)          the images or labels are missing, unreadable or do not fit
├── CheckpointError (exit 1)    a model file is damaged, foreign or does not fit
├── TrainingError (exit 1)      training cannot go on
│   └── NonFiniteError          the loss or a gradient is not finite any more
├── OutputError (exit 1)        a result cannot be written: disk full, read-only, gone
└── MissingExtraError (exit 1)  an optional package is not installed
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "MissingExtraError",
    "NonFiniteError",
    "OutputError",
    "TrainingError",
    "UsageError",
    "VitreousError",
    "did_you_mean",
]


_LONGEST = 1600  # characters
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # control, line and direction


class VitreousError(Exception):
    """Base of all errors raised on purpose. The message names the value, the limit and the remedy."""

    exit_code = 1


class UsageError(VitreousError):
    """What the user typed cannot be meant: unknown option, recipe or model, or a value out of range."""

    exit_code = 2


class ConfigError(UsageError, ValueError):
    """A configuration contradicts itself, or does not fit the data it meets."""


class DataError(VitreousError):
    """Images or labels are missing, unreadable, or do not fit what was asked."""


class CheckpointError(VitreousError):
    """A model file is damaged, foreign, of another format version, or does not fit the model.

    The message may cite what a stranger's file says: it is kept to one line of bounded length, and characters that
    would steer a terminal are spelled out.
    """

    def __init__(self, message: str) -> None:
        """Keep the message to what may be shown."""
        text = _STEERING.sub(lambda found: repr(found[0])[1:-1], message)
        super().__init__(text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}")


class TrainingError(VitreousError):
    """Training cannot go on."""


class NonFiniteError(TrainingError):
    """The loss or the gradient norm became NaN or infinite."""


class OutputError(VitreousError):
    """A result cannot be written: the disk is full, the folder is read-only or gone."""


class MissingExtraError(VitreousError):
    """An optional package is needed that is not installed; the message gives the ``pip install`` line."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known word, or an empty string where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.55)
    return f" Did you mean '{near[0]}'?" if near else ""
