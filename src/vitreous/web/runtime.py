"""ONNX Runtime for WebAssembly, as its authors published it: two files, compressed, with their checksums.

``runtime/manifest.json`` has the version, the checksum of the published package, and the size and SHA-256 of each file.
To take another version, unpack its package, compress the files with ``gzip -9n``, and write the manifest anew.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import zlib
from importlib.resources import files
from typing import Any

from vitreous.errors import OutputError

__all__ = ["LICENSE", "SCRIPT", "WASM", "license_text", "manifest", "runtime_file"]

SCRIPT = "ort.wasm.bundle.min.mjs"
"""The JavaScript side: a module."""

WASM = "ort-wasm-simd-threaded.wasm"
"""The WebAssembly side; it runs with one thread too."""

LICENSE = "LICENSE"
"""The file with the licences of what the page contains."""


@functools.cache
def manifest() -> dict[str, Any]:
    """Return name, version, licence and checksums."""
    stored: dict[str, Any] = json.loads(_stored("manifest.json"))
    return stored


def runtime_file(name: str) -> bytes:
    """Return a file of the runtime, compressed with gzip, after a check of its content.

    Raises:
        OutputError: If the file does not have the size and checksum of the manifest.
    """
    compressed, expected = _stored(f"{name}.gz"), manifest()["files"][name]
    try:
        content = gzip.decompress(compressed)
    except (OSError, EOFError, zlib.error) as error:
        content = b""
        reason = f"cannot be unpacked ({error})"
    else:
        reason = f"has {len(content):,} bytes and SHA-256 {hashlib.sha256(content).hexdigest()[:12]}..."
    if len(content) != expected["bytes"] or hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise OutputError(
            f"the file '{name}' of onnxruntime-web {reason}, not what was published: install vitreous again"
        )
    return compressed


def license_text() -> bytes:
    """Return the licence of the runtime."""
    return _stored(LICENSE)


def _stored(name: str) -> bytes:
    return files("vitreous.web").joinpath("runtime", name).read_bytes()
