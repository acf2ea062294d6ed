"""Converted graphs on disk: beside the model file, or in the user's cache folder where that cannot be written.

A graph is a folder with the engine's files and ``about.json``. Its name is a hash of all that it was made from, so that
another model, size or version never meets it. It is written aside and renamed, so a reader finds it whole or not at
all; its files' checksums are compared each time, and what is damaged is made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import importlib
import importlib.metadata
import json
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vitreous import __version__
from vitreous.errors import OutputError
from vitreous.files.writing import replacing
from vitreous.model.vit import VisionTransformer

__all__ = ["FOLDER", "GraphCache", "digest", "remember_speed", "remembered_speed"]

FOLDER = "engine-cache"
_USER = "~/.cache/vitreous"
_ABOUT, _SPEED = "about.json", "speed.json"
_CHUNK = 1 << 24  # bytes read at a time
_GRAPH = 3  # counts the changes of what engines convert
_LEFT_BEHIND = 24 * 3600  # seconds after which a graph that is still being written is that of a process that died


def digest(model: VisionTransformer) -> str:
    """SHA-256 of a model's configuration and weights: 2 GB/s on today's CPUs."""
    found = hashlib.sha256(json.dumps(dataclasses.asdict(model.config), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return found.hexdigest()


class GraphCache:
    """The graphs of one model.

    Args:
        made_from: All that a graph depends on beside the engine: the model's digest, the size of the pictures, options.
        source: The model's file: graphs are kept beside it, and go when the file is another. None: the model has no
            file of its own, and graphs are kept in the user's folder.
    """

    def __init__(self, made_from: Sequence[Any], source: Path | None) -> None:
        self._made_from = list(made_from)
        self._source = source.name if source else None
        self._stem = source.stem[:60] if source else "model"
        self._stamp = _stamp(source) if source else None
        folders = ([source.parent] if source else []) + [Path(_USER).expanduser()]
        self.places = [folder / FOLDER for folder in folders]

    def find(self, engine: str, packages: Sequence[str]) -> Path | None:
        """Return the folder of an engine's graph, whole and undamaged, or None."""
        name = self._name(engine, packages)
        return next((place / name for place in self.places if _undamaged(place / name)), None)

    def write(self, engine: str, packages: Sequence[str], convert: Callable[[Path], None]) -> Path:
        """Have a graph written, in the first place that takes it, and return its folder.

        Raises:
            OutputError: If no place can be written.
        """
        name = self._name(engine, packages)
        reasons = []
        for place in self.places:
            aside = place / f".{name}.{secrets.token_hex(4)}"
            try:
                aside.mkdir(parents=True)
                convert(aside)
                facts = {"engine": engine, "source": self._source, "file": self._stamp}
                _describe(aside, facts | {"versions": _versions(packages)})
                _publish(aside, place / name)
            except OSError as error:  # read-only, or the disk is full
                reasons.append(f"'{place}': {error.strerror or error}")
                continue
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            if self._stamp and place == self.places[0]:
                self._forget_former(place)
            _forget_unfinished(place)
            return place / name
        raise OutputError(f"a graph for {engine} cannot be kept: {'; '.join(reasons)}. Use --engine torch")

    def discard(self, folder: Path) -> None:
        """Remove a graph that turned out to be wrong, as far as the system lets us."""
        shutil.rmtree(folder, ignore_errors=True)

    def _forget_former(self, place: Path) -> None:
        """Remove graphs of what the model's file held before: they are large, and nothing would read them again."""
        for folder in place.glob(f"{glob.escape(self._stem)}-*"):
            about = _read(folder / _ABOUT)
            if about.get("source") == self._source and about.get("file") != self._stamp:
                shutil.rmtree(folder, ignore_errors=True)

    def _name(self, engine: str, packages: Sequence[str]) -> str:
        made_from = json.dumps([_GRAPH, self._made_from, engine, _versions(packages)])
        return f"{self._stem}-{engine}-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"


def remembered_speed(folder: Path, machine: str) -> float | None:
    """Return how many times as fast as PyTorch a graph was on this machine, if it was ever measured there."""
    speed = _read(folder / _SPEED).get(machine)
    return speed if isinstance(speed, float) else None


def remember_speed(folder: Path, machine: str, speed: float) -> None:
    """Note how many times as fast as PyTorch a graph is on this machine; where nothing can be written it is not."""
    with contextlib.suppress(OutputError), replacing(folder / _SPEED) as file:
        file.write_text(json.dumps(_read(folder / _SPEED) | {machine: speed}), encoding="utf-8")


def _stamp(source: Path) -> str | None:
    """What changes when a file is written anew."""
    try:
        status = source.stat()
    except OSError:
        return None
    return f"{status.st_size} {status.st_mtime_ns}"


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of what takes part in a conversion."""
    return {"vitreous": __version__, "torch": torch.__version__} | {name: _version(name) for name in packages}


def _version(name: str) -> str:
    """Of a package, by its module where it was installed under another name, as onnxruntime is by onnxruntime-gpu."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))


def _forget_unfinished(place: Path) -> None:
    """Remove what processes left that were killed while they wrote a graph."""
    for aside in place.glob(".*-*.*"):
        with contextlib.suppress(OSError):
            if time.time() - aside.stat().st_mtime > _LEFT_BEHIND:
                shutil.rmtree(aside, ignore_errors=True)


def _describe(folder: Path, facts: dict[str, Any]) -> None:
    """Write what a graph is, with the checksum of each of its files."""
    files = {file.name: _checksum(file) for file in sorted(folder.iterdir())}
    (folder / _ABOUT).write_text(json.dumps(facts | {"files": files}, indent=2), encoding="utf-8")


def _undamaged(folder: Path) -> bool:
    """Whether a graph is there, and each of its files is as it was written."""
    files = _read(folder / _ABOUT).get("files")
    if not isinstance(files, dict) or not files:
        return False
    try:
        return all(Path(name).name == name and _checksum(folder / name) == value for name, value in files.items())
    except OSError:
        return False


def _checksum(file: Path) -> int:
    """CRC-32: enough against damage, and several GB/s. Against a wrong graph there is the check picture."""
    found = 0
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def _publish(aside: Path, folder: Path) -> None:
    """Put a whole graph in its place. Where another process was first, its graph stays."""
    if _undamaged(folder):
        return
    if folder.exists():
        shutil.rmtree(folder)
    try:
        aside.rename(folder)
    except OSError:
        if not _undamaged(folder):
            raise


def _read(file: Path) -> dict[str, Any]:
    """A small JSON object, or an empty one where there is none that can be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
