"""A teacher's answers to all views of the training images: computed once, and stored in the user's cache folder.

Each view is a file of its own, under a checksum, so that a killed computation loses at most one of them. Reading a file
executes no code.

Shapes: n training images, V views, K classes, N patches, D width of the teacher's features.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import CheckpointError, OutputError
from vitreous.files.user_cache import check_cache, make_cache, remove_abandoned, remove_oldest
from vitreous.runs.state_file import read_state, write_state

__all__ = ["FOLDER", "AnswerStore", "Answers", "gather"]

FOLDER = "teacher-cache"
"""The folder of teachers' answers in the user's cache."""
_MOST_BYTES = 8 << 30  # of all files together; the least recently used are removed first


@dataclass(frozen=True, eq=False)
class Answers:
    """What a teacher says of some images, or of all views of all images; None for what is not learnt."""

    logits: Tensor | None  # float32, (..., K), in the order of the data's classes
    features: Tensor | None  # standardised, (..., D) or (..., N, D)

    def at(self, *index: Tensor | slice) -> Answers:
        """Return the answers at an index into the leading dimensions."""
        return Answers(*(None if each is None else each[index] for each in _values(self)))

    def to(self, device: torch.device) -> Answers:
        """Return the answers on a device."""
        return Answers(*(None if each is None else each.to(device) for each in _values(self)))

    def digest(self) -> str:
        """Return the SHA-256 of all values."""
        sha = hashlib.sha256()
        for each in _values(self):
            if each is not None:
                sha.update(each.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return sha.hexdigest()


def gather(parts: list[Answers], join: Callable[[list[Tensor]], Tensor] = torch.cat) -> Answers:
    """Join the answers to several batches, or of several views."""
    logits, features = ([t for t in column if t is not None] for column in zip(*map(_values, parts), strict=True))
    return Answers(join(logits) if logits else None, join(features) if features else None)


def _values(answers: Answers) -> tuple[Tensor | None, Tensor | None]:
    return answers.logits, answers.features


class AnswerStore:
    """The stored answers of one teacher to one set of views; `made_from` is all that they depend on.

    A store that cannot be used, such as on a full disk, keeps nothing; `notify` is told why, once.
    """

    def __init__(self, made_from: Mapping[str, Any], notify: Callable[[str], None]) -> None:
        self._origin = json.dumps(made_from, sort_keys=True)
        self._name = hashlib.sha256(self._origin.encode()).hexdigest()[:32]
        self._notify, self._works = notify, True

    def load(self, view: int) -> Answers | None:
        """Return the stored answers to a view; None if there are none, or if the file is damaged."""
        try:
            path = self._path(check_cache(FOLDER), view)
            if not path.is_file():
                return None
            stored = read_state(path)
            os.utime(path)  # marks it as used now
        except FileNotFoundError:
            return None
        except (OSError, CheckpointError) as error:
            self._notify(f"{error}: the teacher's answers are computed again")
            return None
        if not isinstance(stored, dict) or stored.get("origin") != self._origin:
            return None
        return Answers(stored["logits"], stored["features"])

    def save(self, view: int, answers: Answers) -> None:
        """Store the answers to a view."""
        if not self._works:
            return
        try:
            folder = make_cache(FOLDER)
            remove_abandoned(folder.glob(".*.state.*.tmp"))  # how files/writing.py names a file until it is complete
            content = {"origin": self._origin, "logits": answers.logits, "features": answers.features}
            write_state(self._path(folder, view), content)
        except (OSError, OutputError) as error:
            self._works = False
            self._notify(f"cannot store the teacher's answers ({error}): another run has to compute them again")
        else:
            remove_oldest(self._entries(folder), _MOST_BYTES)

    def _path(self, folder: Path, view: int) -> Path:
        return folder / f"{self._name}-{view}.state"

    def _entries(self, folder: Path) -> Iterator[tuple[bool, float, int, Path]]:
        """Yield the files of all stores for :func:`remove_oldest`, which keeps those of this one."""
        for path in folder.glob("*.state"):
            with contextlib.suppress(OSError):  # another process is removing it
                status = path.lstat()
                yield path.name.startswith(self._name), status.st_mtime, status.st_size, path
