"""Converted graphs on disk, in the user's own cache folder and nowhere else.

A graph decides what an engine answers, so none is trusted that somebody else could have made: not one beside a model
file, which comes with the file, and not one in a folder that others can write to. A graph is a folder with the engine's
files and a record, which holds what the graph was made from (the model's weights, the code and the packages, by digest
and version) and the SHA-256 of each file. All of it is compared each time, and what differs is made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.metadata
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from vitreous import __version__
from vitreous.engines.private import (
    check_private,
    digest_private,
    make_private_folder,
    read_private,
    write_private,
)
from vitreous.errors import OutputError
from vitreous.model.vit import VisionTransformer

__all__ = ["FOLDER", "GraphCache", "cache_folder", "digest", "remember_speed", "remembered_speed"]

FOLDER = "engine-cache"
_RECORD, _SPEED = "record.json", "speed.json"
_LARGEST_RECORD = 1 << 20  # bytes
_MOST_BYTES = 4 << 30  # of all graphs together: those used longest ago go first
_LEFT_BEHIND = 24 * 3600  # seconds after which a graph that is still being written is that of a process that died
_OPEN_TO_ALL = 0o002  # the folder above may be open to the user's group, as a umask of 002 makes it


def digest(model: VisionTransformer) -> str:
    """SHA-256 of a model's configuration and weights: 2 GB/s on today's CPUs."""
    found = hashlib.sha256(json.dumps(dataclasses.asdict(model.config), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return found.hexdigest()


def cache_folder() -> Path:
    """Return where graphs are kept: ``$XDG_CACHE_HOME/vitreous/engine-cache``, by custom below ``~/.cache``.

    Raises:
        OSError: If the user has no home folder.
    """
    said = os.environ.get("XDG_CACHE_HOME", "")
    try:  # a relative path there is to be ignored, says the XDG Base Directory Specification
        home = Path(said) if os.path.isabs(said) else Path("~/.cache").expanduser()
    except RuntimeError as error:
        raise OSError(0, "there is no home folder: set XDG_CACHE_HOME") from error
    return home / "vitreous" / FOLDER


class GraphCache:
    """The graphs of one model.

    Args:
        made_from: All that a graph depends on beside the engine: the model's digest, the size of the images, options.
    """

    def __init__(self, made_from: Sequence[Any]) -> None:
        self._made_from = list(made_from)

    def find(self, engine: str, packages: Sequence[str]) -> Path | None:
        """Return the folder of an engine's graph if it is there and all in it is as it was written, else None.

        Raises:
            OutputError: If the cache folder is not the user's alone.
        """
        try:
            place = cache_folder()
            check_private(place.parent, _OPEN_TO_ALL)
            check_private(place)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refusal(engine, error) from error
        origin = self._origin(engine, packages)
        folder = place / _name(origin)
        if not _is_sound(folder, origin):
            return None
        with contextlib.suppress(OSError):
            os.utime(folder / _RECORD)  # used now
        return folder

    def write(self, engine: str, packages: Sequence[str], convert: Callable[[Path], None]) -> Path:
        """Have a graph written, and return its folder.

        Raises:
            OutputError: If the cache folder cannot be written, or is not the user's alone.
        """
        origin = self._origin(engine, packages)
        aside = None
        try:
            place = cache_folder()
            place.parent.parent.mkdir(parents=True, exist_ok=True)
            make_private_folder(place.parent, _OPEN_TO_ALL)
            make_private_folder(place)
            aside = place / f".{_name(origin)}.{secrets.token_hex(4)}"
            make_private_folder(aside)
            convert(aside)
            _record(aside, origin)
            _publish(aside, place / _name(origin), origin)
        except OSError as error:  # read-only, the disk is full, or not the user's alone
            raise _refusal(engine, error) from error
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)
        _forget_unfinished(place)
        _make_room(place, place / _name(origin))
        return place / _name(origin)

    def discard(self, folder: Path) -> None:
        """Remove a graph that turned out to be wrong, as far as the system lets us."""
        _remove(folder)

    def _origin(self, engine: str, packages: Sequence[str]) -> dict[str, Any]:
        """All that a graph is made from, as the record holds it."""
        origin = {"engine": engine, "made_from": self._made_from, "code": _code(), "versions": _versions(packages)}
        plain: dict[str, Any] = json.loads(json.dumps(origin))
        return plain


def remembered_speed(folder: Path, machine: str) -> float | None:
    """Return how many times as fast as PyTorch a graph was on this machine, if it was ever measured there."""
    speed = _read(folder / _SPEED).get(machine)
    return speed if isinstance(speed, float) else None


def remember_speed(folder: Path, machine: str, speed: float) -> None:
    """Note how many times as fast as PyTorch a graph is on this machine; where nothing can be written it is not."""
    aside = folder / f".{_SPEED}.{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        write_private(aside, json.dumps(_read(folder / _SPEED) | {machine: speed}).encode())
        os.replace(aside, folder / _SPEED)


def _refusal(engine: str, error: OSError) -> OutputError:
    """Why no graph can be kept, and what helps."""
    where = f"'{error.filename}': " if error.filename else ""
    remedy = "Use --engine torch, or set XDG_CACHE_HOME to a folder that only you can write to"
    return OutputError(f"a graph for {engine} cannot be kept: {where}{error.strerror or error}. {remedy}")


def _name(origin: dict[str, Any]) -> str:
    return f"{origin['engine']}-{hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:32]}"


@cache
def _code() -> str:
    """SHA-256 of the code that graphs are made of: another version of it makes others."""
    found = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for room in ("model", "accelerate", "engines"):
        for file in sorted((package / room).rglob("*.py")):
            found.update(f"\n{file.relative_to(package)}\n".encode() + file.read_bytes())
    return found.hexdigest()


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of what takes part in a conversion."""
    return {"vitreous": __version__, "torch": torch.__version__} | {name: _version(name) for name in packages}


def _version(name: str) -> str:
    """Of a package, by its module where it was installed under another name, as onnxruntime is by onnxruntime-gpu."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))


def _record(folder: Path, origin: dict[str, Any]) -> None:
    """Close what a converter wrote to others, and write what it was made from with the digest of each file."""
    files = sorted(folder.iterdir())
    for file in files:
        file.chmod(0o600)
    digests = {file.name: digest_private(file) for file in files}
    write_private(folder / _RECORD, json.dumps({"origin": origin, "files": digests}, indent=2).encode())


def _is_sound(folder: Path, origin: dict[str, Any]) -> bool:
    """Whether a graph is there, the user's alone, of this origin, with each file as it was written and no other."""
    try:
        check_private(folder)
        record = _read(folder / _RECORD)
        files = record.get("files")
        there = {file.name for file in folder.glob("[!.]*")} - {_RECORD, _SPEED}
        if record.get("origin") != origin or not isinstance(files, dict) or not files or there != files.keys():
            return False
        return all(digest_private(folder / name) == value for name, value in files.items())
    except OSError:
        return False


def _publish(aside: Path, folder: Path, origin: dict[str, Any]) -> None:
    """Put a whole graph in its place. Where another process was first, its graph stays."""
    if _is_sound(folder, origin):
        return
    _remove(folder)
    try:
        aside.rename(folder)
    except OSError:
        if not _is_sound(folder, origin):
            raise


def _remove(path: Path) -> None:
    """Remove a folder, or a file or link that stands where one would be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _forget_unfinished(place: Path) -> None:
    """Remove what processes left that were killed while they wrote a graph."""
    for aside in place.glob(".*-*.*"):
        with contextlib.suppress(OSError):
            if time.time() - aside.lstat().st_mtime > _LEFT_BEHIND:
                _remove(aside)


def _make_room(place: Path, kept: Path) -> None:
    """Remove the graphs that were used longest ago, as far as all together take too much room; one stays."""
    graphs = []
    for folder in place.glob("[!.]*"):
        with contextlib.suppress(OSError):  # another process removes it
            size = sum(file.lstat().st_size for file in folder.iterdir())
            graphs.append((folder == kept, (folder / _RECORD).lstat().st_mtime, size, folder))
    total = sum(size for _, _, size, _ in graphs)
    for is_kept, _, size, folder in sorted(graphs):
        if total <= _MOST_BYTES or is_kept:
            return
        _remove(folder)
        total -= size


def _read(file: Path) -> dict[str, Any]:
    """A small JSON object of the user's, or an empty one where there is none that can be read."""
    try:
        found = json.loads(read_private(file, _LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
