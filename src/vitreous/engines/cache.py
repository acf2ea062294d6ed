"""Stores converted graphs in the user's cache folder, and nowhere else.

A graph determines what an engine answers, so none is trusted that another user could have made: not one beside a model
file, which came with that file, and not one in a folder that others can write to. A graph is a folder with the engine's
files and a record: the SHA-256 of each file, and what the graph was made from (the model's weights, the code and the
packages). A graph that differs from its record in anything is converted again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from vitreous import __version__
from vitreous.errors import OutputError
from vitreous.files.private import check_private, digest_private, make_private_folder, read_private, write_private
from vitreous.files.user_cache import check_cache, make_cache, remove, remove_abandoned, remove_oldest, user_cache
from vitreous.model.vit import VisionTransformer

__all__ = ["FOLDER", "GraphCache", "cache_folder", "digest", "remember_speed", "remembered_speed"]

FOLDER = "engine-cache"
"""The folder of converted graphs in the user's cache."""
_RECORD, _SPEED = "record.json", "speed.json"
_LARGEST_RECORD = 1 << 20  # bytes
_MOST_BYTES = 4 << 30  # of all graphs together; the least recently used are removed first


def digest(model: VisionTransformer) -> str:
    """Return the SHA-256 of a model's configuration and weights."""
    sha = hashlib.sha256(json.dumps(model.config.to_dict(), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha.update(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return sha.hexdigest()


def cache_folder() -> Path:
    """Return the folder of all graphs: ``$XDG_CACHE_HOME/vitreous/engine-cache``, by default below ``~/.cache``."""
    return user_cache(FOLDER)


class GraphCache:
    """The stored graphs of one model; `made_from` is what they depend on besides the engine: digest, size, options."""

    def __init__(self, made_from: Sequence[Any]) -> None:
        self._made_from = list(made_from)

    def find(self, engine: str, packages: Sequence[str]) -> Path | None:
        """Return the folder of an engine's graph; None if there is none, or if anything in it has changed."""
        try:
            folder = check_cache(FOLDER)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _cannot_store(engine, error) from error
        origin = self._origin(engine, packages)
        graph = folder / _name(origin)
        if not _is_intact(graph, origin):
            return None
        with contextlib.suppress(OSError):
            os.utime(graph / _RECORD)  # marks it as used now
        return graph

    def write(self, engine: str, packages: Sequence[str], convert: Callable[[Path], None]) -> Path:
        """Make a graph, whose files `convert` writes into the folder that it receives; return the graph's folder."""
        origin = self._origin(engine, packages)
        try:
            folder = make_cache(FOLDER)
            graph = folder / _name(origin)
            unfinished = folder / f".{graph.name}.{secrets.token_hex(4)}"
            try:
                make_private_folder(unfinished)
                convert(unfinished)
                _write_record(unfinished, origin)
                _publish(unfinished, graph, origin)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        except OSError as error:  # read-only, the disk is full, or others can write to it
            raise _cannot_store(engine, error) from error
        _clean_up(folder, graph)
        return graph

    def _origin(self, engine: str, packages: Sequence[str]) -> dict[str, Any]:
        versions = {"vitreous": __version__, "torch": torch.__version__} | {name: _version(name) for name in packages}
        origin = {"engine": engine, "made_from": self._made_from, "code": _code(), "versions": versions}
        return json.loads(json.dumps(origin))  # tuples become lists, as in a record that was read


def remembered_speed(graph: Path, machine: str) -> float | None:
    """Return how many times as fast as PyTorch a graph is on a machine; None if that was never measured."""
    speed = _read(graph / _SPEED).get(machine)
    return speed if isinstance(speed, float) else None


def remember_speed(graph: Path, machine: str, speed: float) -> None:
    """Record how many times as fast as PyTorch a graph is on a machine, if the folder can be written."""
    unfinished = graph / f".{_SPEED}.{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        write_private(unfinished, json.dumps(_read(graph / _SPEED) | {machine: speed}).encode())
        os.replace(unfinished, graph / _SPEED)


def _cannot_store(engine: str, error: OSError) -> OutputError:
    where = f"'{error.filename}': " if error.filename else ""
    remedy = "Use --engine torch, or set XDG_CACHE_HOME to a folder that only you can write to"
    return OutputError(f"cannot store a graph for {engine}: {where}{error.strerror or error}. {remedy}")


def _name(origin: dict[str, Any]) -> str:
    return f"{origin['engine']}-{hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:32]}"


@cache
def _code() -> str:
    """Return the SHA-256 of the code that determines a graph."""
    sha = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for room in ("model", "accelerate", "engines", "export/graph"):
        for file in sorted((package / room).rglob("*.py")):
            sha.update(f"\n{file.relative_to(package)}\n".encode() + file.read_bytes())
    return sha.hexdigest()


def _version(package: str) -> str:
    """Return the version of a package; its module knows it if the distribution's name differs, as onnxruntime-gpu."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def _write_record(graph: Path, origin: dict[str, Any]) -> None:
    """Make the converter's files private, and write the record of them."""
    files = sorted(graph.iterdir())
    for file in files:
        file.chmod(0o600)
    digests = {file.name: digest_private(file) for file in files}
    write_private(graph / _RECORD, json.dumps({"origin": origin, "files": digests}, indent=2).encode())


def _is_intact(graph: Path, origin: dict[str, Any]) -> bool:
    """Return whether a graph is private, of this origin, and has exactly the files of its record."""
    try:
        check_private(graph)
        record = _read(graph / _RECORD)
        files = record.get("files")
        names = {file.name for file in graph.glob("[!.]*")} - {_RECORD, _SPEED}
        if record.get("origin") != origin or not isinstance(files, dict) or not files or names != files.keys():
            return False
        return all(digest_private(graph / name) == value for name, value in files.items())
    except OSError:
        return False


def _publish(unfinished: Path, graph: Path, origin: dict[str, Any]) -> None:
    """Rename a finished graph to its final name, unless another process has stored the same graph first."""
    if _is_intact(graph, origin):
        return
    remove(graph)
    try:
        unfinished.rename(graph)
    except OSError:
        if not _is_intact(graph, origin):
            raise


def _clean_up(folder: Path, kept: Path) -> None:
    """Remove the unfinished graphs of processes that died, and others than `kept` beyond `_MOST_BYTES`."""
    remove_abandoned(folder.glob(".*-*.*"))
    graphs = []
    for graph in folder.glob("[!.]*"):
        with contextlib.suppress(OSError):  # another process is removing it
            size = sum(file.lstat().st_size for file in graph.iterdir())
            graphs.append((graph == kept, (graph / _RECORD).lstat().st_mtime, size, graph))
    remove_oldest(graphs, _MOST_BYTES)


def _read(file: Path) -> dict[str, Any]:
    """Read a small private JSON object; empty if it cannot be read."""
    try:
        content = json.loads(read_private(file, _LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
