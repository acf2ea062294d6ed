"""A run's folder: which one it is, who may write there, and the recipe in it that can be run again as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.errors import OutputError, UsageError
from vitreous.files.writing import replacing
from vitreous.train.config import RunConfig
from vitreous.train.lock import Lock, locked

__all__ = ["Place", "choose_folder", "differing", "held", "is_finished", "recipe_text", "write_text"]

_TRACES = ("recipe.yaml", "metrics.csv", "last.ckpt", "previous.ckpt", "model.safetensors", "report.json")
_LEFT_OVER = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")  # as files/writing.py names what it has not finished

# What two runs may differ in and still be one: where things are, how they are read and written, what follows the run.
# Device and precision are compared as they were chosen.
_FREE = (
    *("data.source", "data.dir", "data.workers", "data.strict", "device", "precision", "loggers", "out"),
    *("compile", "checkpoint_every", "checkpoint_epochs"),
)


@dataclasses.dataclass(frozen=True)
class Place:
    """The folder of a run, held.

    Attributes:
        folder: Its path.
        lock: Says what the run is doing.
        begun: Whether a run of the same settings has begun here already.
    """

    folder: Path
    lock: Lock
    begun: bool


def choose_folder(out: str | None, name: str, recipe: str, resume: bool) -> Path:
    """Find or make the folder of a run.

    Args:
        out: The folder that was asked for. None is ``runs/NAME-1``, ``-2`` and so on: a new one, or, to resume, the
            newest in which a run with the same recipe has begun.
        name: Of the data.
        recipe: The text of recipe.yaml.
        resume: Whether a run that has begun there is to be taken up.

    Raises:
        UsageError: If the folder that was asked for holds a run, and none is to be resumed.
        OutputError: If it cannot be made.
    """
    if out is None:
        return _numbered_folder(name, recipe if resume else None)
    folder = _asked_folder(Path(out).expanduser())
    if not resume:
        _refuse_taken(folder)
    return folder


def is_finished(folder: Path, recipe: str) -> bool:
    """Whether a run has ended in a folder: what is written last is there.

    Raises:
        UsageError: If it is a run with other settings.
    """
    return _begun(folder, recipe) and (folder / "report.json").exists()


@contextlib.contextmanager
def held(folder: Path, recipe: str, resume: bool) -> Iterator[Place]:
    """Hold a folder, and remove what a killed process has not finished writing.

    Args:
        folder: As :func:`choose_folder` gave it.
        recipe: As there.
        resume: As there.

    Raises:
        UsageError: If the folder holds a run that is not to be resumed, or one with other settings.
        TrainingError: If another run holds it.
        OutputError: If it cannot be written to.
    """
    with locked(folder) as lock:
        begun = resume and _begun(folder, recipe)
        if not begun:
            _refuse_taken(folder)  # once more: nobody else can begin now
        for path in folder.iterdir():
            if _LEFT_OVER.fullmatch(path.name):
                path.unlink(missing_ok=True)
        yield Place(folder, lock, begun)


def _asked_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_make(folder, error) from error
    return folder


def _numbered_folder(name: str, recipe: str | None) -> Path:
    """The newest folder whose recipe is the given one, else a new one."""
    slug = re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-.") or "run"
    numbers = [
        int(path.name[len(slug) + 1 :])
        for path in Path("runs").glob(f"{glob.escape(slug)}-*")
        if path.name[len(slug) + 1 :].isdecimal()
    ]
    for number in sorted(numbers, reverse=True) if recipe is not None else ():
        folder = Path("runs") / f"{slug}-{number}"
        if (there := _read(folder / "recipe.yaml")) is not None and not differing(there, str(recipe)):
            return folder
    number = 1
    while True:
        folder = Path("runs") / f"{slug}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise _cannot_make(folder, error) from error
        else:
            return folder


def _cannot_make(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"the run's folder '{folder}' cannot be made: {error.strerror or error}. Give another with --out"
    )


def _refuse_taken(folder: Path) -> None:
    taken = [trace for trace in _TRACES if (folder / trace).exists()]
    if taken:
        raise UsageError(
            f"'{folder}' holds a run already ({', '.join(taken)}): give another --out, move it away, or go on with it "
            "by --resume"
        )


def _begun(folder: Path, recipe: str) -> bool:
    """Whether a run has begun in a folder, with the same settings."""
    there = _read(folder / "recipe.yaml")
    if there is None:
        return False
    wrong = differing(there, recipe)
    if wrong:
        raise UsageError(
            f"'{folder}' holds a run with other settings: {'; '.join(wrong)}. Give it the same, or another --out"
        )
    return True


def differing(there: str, now: str) -> list[str]:
    """What two recipes differ in, each as ``name was X, now Y``; what does not change the run's course is left out."""
    old, new = _settings(there), _settings(now)
    shared = [name for name in new if name in old and name not in _FREE]
    return [f"{name} was {old[name]}, now {new[name]}" for name in shared if old[name] != new[name]]


def _settings(recipe: str) -> dict[str, str]:
    """The lines of a :func:`recipe_text` by their full names."""
    found, group = {}, ""
    for line in recipe.splitlines():
        name, _, value = line.strip().partition(": ")
        if line.endswith(":"):
            group = line[:-1]
        else:
            found[f"{group}.{name}" if line.startswith(" ") else name] = value
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


def recipe_text(config: RunConfig) -> str:
    """A configuration as YAML for ``vitreous train --config``: every field, `out` open, paths absolute."""
    source, start = config.data.source, config.tune.source
    if os.path.exists(os.path.expanduser(source)) and not re.fullmatch(r"[\w-]+", source):
        source = os.path.abspath(os.path.expanduser(source))
    if start is not None and os.path.exists(os.path.expanduser(start)):
        start = os.path.abspath(os.path.expanduser(start))
    data, tune = dataclasses.replace(config.data, source=source), dataclasses.replace(config.tune, source=start)
    config = dataclasses.replace(config, out=None, data=data, tune=tune)
    lines = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            lines.append(f"{field.name}:")
            lines += [f"  {f.name}: {_scalar(getattr(value, f.name))}" for f in dataclasses.fields(value)]
        else:
            lines.append(f"{field.name}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """A value in JSON, which YAML reads the same; a float keeps its point, without which YAML 1.1 sees text."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return (mantissa if "." in mantissa else mantissa + ".0") + exponent + power
    return json.dumps(value, ensure_ascii=False)


def write_text(path: Path, text: str) -> None:
    """Write a small file of the run, whole or not at all.

    Raises:
        OutputError: If it cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
