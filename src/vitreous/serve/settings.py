"""Options and limits of a service, as plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.errors import UsageError
from vitreous.files.text import visible

__all__ = ["Limits", "ModelSource", "Settings", "parse_models"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take. Sizes are in bytes, times in seconds."""

    body_bytes: int = 32 << 20  # of one request
    pixels: int = 50_000_000  # of one image; each format has a limit of its own too
    images: int = 64  # in one request
    seconds: float = 30.0  # from the first byte of a request to its answer
    queue: int = 256  # images that wait or are computed, per model
    batch: int = 32  # images in one forward pass
    buffered_bytes: int = 256 << 20  # bodies of all requests together
    connections: int = 1000
    header_seconds: float = 10.0  # to send the head of the first request
    idle_seconds: float = 30.0  # between requests on a connection
    body_seconds: float = 20.0  # to send its body


@dataclass(frozen=True)
class ModelSource:
    """A model to serve: the name that requests use, and what `vitreous.load` takes."""

    name: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)  # of `vitreous.load`, besides the path


@dataclass(frozen=True)
class Settings:
    """A service."""

    models: tuple[ModelSource, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = Limits()
    keys: Path | None = None  # the file of API keys; None: no key is needed
    hosts: tuple[str, ...] = ()  # names that the Host header may have; empty: loopback names if bound to loopback
    reload: bool = True  # whether a changed model file is loaded
    access_log: bool = True

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the service."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def parse_models(words: Iterable[str], options: Mapping[str, Any]) -> tuple[ModelSource, ...]:
    """Return the models of a command line: each a path or hub id, or ``name=path``.

    Without a name, a model is called after its run directory, or after its file.

    Raises:
        UsageError: If two models have one name, or a name has other characters than letters, digits and ``_ . -``.
    """
    models: dict[str, ModelSource] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            name, path = "", word
        name = name or _default_name(path)
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"'{visible(name)}' is no name for a model: write name={visible(path)} with up to 64 letters, digits, "
                "'_', '.' or '-'"
            )
        if name in models:
            raise UsageError(
                f"two models are called '{name}', '{visible(models[name].path)}' and '{visible(path)}': write name=path"
            )
        models[name] = ModelSource(name, path, dict(options))
    return tuple(models.values())


def _default_name(path: str) -> str:
    file = Path(path)
    generic = file.stem in ("model", "pytorch_model") and file.suffix and file.resolve().parent.name
    plain = file.resolve().parent.name if generic else file.stem if file.suffix else Path(path).resolve().name
    return re.sub(r"[^\w.-]", "-", plain, flags=re.ASCII).lstrip("-._")[:64] or "model"
