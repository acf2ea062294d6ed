"""What tells that a model was written anew: the files that loading it reads, their times and sizes.

The HTTP process looks, which imports no torch; :mod:`vitreous.checkpoint.locating` is what finds these files.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["WEIGHTS", "model_stamp"]

Stamp = tuple[tuple[str, int, int, int], ...]

WEIGHTS = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".tar", ".ckpt")
"""Endings of the files of weights in a folder."""

_ALONE = "model.safetensors"  # if a folder has it, other weights in it are not read
_DOCUMENTS = ("config.json", "preprocessor_config.json")


def model_stamp(path: str) -> Stamp:
    """Return what changes when a model is written anew; empty if it is on the hub, not on this machine."""
    found = []
    for file in _files(Path(path).expanduser()):
        with contextlib.suppress(OSError):
            status = os.stat(file)
            found.append((file.name, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _files(place: Path) -> list[Path]:
    """Return the files of a model, some of which need not exist."""
    try:
        names = sorted(os.listdir(place))
    except OSError:  # a file; OpenVINO has its weights in a second one, and so have large ONNX models
        return [place, place.with_suffix(".bin"), place.with_name(f"{place.name}.data")]
    weights = [_ALONE] if _ALONE in names else [name for name in names if name.endswith(WEIGHTS)]
    return [place / name for name in (*weights, *_DOCUMENTS)]
