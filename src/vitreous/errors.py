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
import os
from collections.abc import Iterable

from vitreous.files.text import LONGEST, printable, visible

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


_LONGEST = 1600  # characters of a message


class VitreousError(Exception):
    """Base of all errors raised on purpose. The message names the value, the limit and the remedy.

    The message may cite what a stranger's file says: it is kept to a bounded length, without its middle where it is
    longer, and characters that would steer a terminal are spelled out.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        """Keep the message to what may be shown; line feeds in it are the author's."""
        super().__init__("\n".join(printable(line, _LONGEST) for line in message.split("\n", maxsplit=99)))


class UsageError(VitreousError):
    """What the user typed cannot be meant: unknown option, recipe or model, or a value out of range."""

    exit_code = 2


class ConfigError(UsageError, ValueError):
    """A configuration contradicts itself, or does not fit the data it meets."""


class DataError(VitreousError):
    """Images or labels are missing, unreadable, or do not fit what was asked."""


class CheckpointError(VitreousError):
    """A model file is damaged, foreign, of another format version, or does not fit the model.

    A line feed in the message is the file's, and is spelled out too.
    """

    def __init__(self, message: str = "") -> None:
        """Keep the message to one line that may be shown."""
        super().__init__(printable(message, _LONGEST))


class TrainingError(VitreousError):
    """Training cannot go on."""


class NonFiniteError(TrainingError):
    """The loss or the gradient norm became NaN or infinite."""


class OutputError(VitreousError):
    """A result cannot be written: the disk is full, the folder is read-only or gone."""


class MissingExtraError(VitreousError):
    """An optional package is needed that is not installed; the message gives the ``pip install`` line."""


def did_you_mean(word: str, known: Iterable[str], folder: str = "") -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known word, or an empty string where none is near.

    Args:
        word: What was given.
        known: What there is.
        folder: Where the words are names of files: it is put before the one that is proposed.
    """
    if len(word) > LONGEST:  # nobody typed that, and the time that it takes grows with its square
        return ""
    near = difflib.get_close_matches(word, [one for one in known if len(one) <= LONGEST], n=1, cutoff=0.55)
    return f" Did you mean '{visible(os.path.join(folder, near[0]))}'?" if near else ""
