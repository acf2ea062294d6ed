"""The exception tree. Every expected error is one of these; the command line prints it and exits with its code.

VitreousError (exit 1)
├── UsageError (exit 2)         the command, an option or a value is wrong
│   └── ConfigError             a configuration is inconsistent or does not fit the data
├── DataError (exit 1)          images or labels are missing, unreadable or inconsistent
├── CheckpointError (exit 1)    a model file is damaged, unsupported or does not fit
├── TrainingError (exit 1)      training cannot continue
│   └── NonFiniteError          the loss or a gradient is NaN or infinite
├── StoreError (exit 1)         a store such as S3 fails, also when asked again
├── OutputError (exit 1)        a result cannot be written
└── MissingExtraError (exit 1)  an optional package is not installed
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from typing import ClassVar

from vitreous.files.text import MAX_NAME_LENGTH, printable, visible

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "MissingExtraError",
    "NonFiniteError",
    "OutputError",
    "StoreError",
    "TrainingError",
    "UsageError",
    "VitreousError",
    "did_you_mean",
    "first_line",
    "pluralize",
]

_MAX_MESSAGE = 1600  # characters of a line


class VitreousError(Exception):
    """Base class of all expected errors. The message names the value, the limit and the remedy.

    Messages may quote untrusted files, so each line is limited in length and unprintable characters are escaped.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__("\n".join(printable(line, _MAX_MESSAGE) for line in message.split("\n", maxsplit=99)))


class UsageError(VitreousError):
    """The user passed an unknown option, recipe or model, or a value that does not fit."""

    exit_code = 2


class ConfigError(UsageError, ValueError):
    """A configuration is inconsistent, or does not fit the data."""


class DataError(VitreousError):
    """Images or labels are missing, unreadable, or do not fit the request."""


class CheckpointError(VitreousError):
    """A model file is damaged, of an unsupported format or version, or does not fit the model.

    The message is a single line: its line feeds come from the file and are escaped too.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message, _MAX_MESSAGE))


class TrainingError(VitreousError):
    """Training cannot continue."""

    repeats: ClassVar[bool] = False
    """Whether the same command with --resume would end in the same error, so that nothing suggests it."""


class NonFiniteError(TrainingError):
    """The loss or the gradient norm is NaN or infinite."""


class StoreError(VitreousError):
    """An object of a store (s3://, gs://, az://, hf://) cannot be read or written; the message names its key."""


class OutputError(VitreousError):
    """A result cannot be written, for example because the disk is full or the folder is read-only."""


class MissingExtraError(VitreousError):
    """A required optional package is not installed; the message gives the ``pip install`` command."""


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, at most 160 characters; errors may be empty, or pages long."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return lines[0][:160]


def did_you_mean(word: str, known: Iterable[str], folder: str = "") -> str:
    """Return ``" Did you mean 'x'?"`` for the most similar known word, or an empty string if none is similar.

    ``folder`` is put before the suggestion, if the words are names of files in a folder.
    """
    if len(word) > MAX_NAME_LENGTH:  # matching takes quadratic time
        return ""
    near = difflib.get_close_matches(word, [one for one in known if len(one) <= MAX_NAME_LENGTH], n=1, cutoff=0.55)
    return f" Did you mean '{visible(os.path.join(folder, near[0]))}'?" if near else ""


def pluralize(count: int, what: str, plural: str | None = None) -> str:
    """Return a count with its noun: ``1 image``, ``2 images``. ``plural`` is given if it is not formed with an s."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"
