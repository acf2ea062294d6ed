"""What a source of images is, before anything of it is opened: a known dataset, a folder, shards or a manifest."""

from __future__ import annotations

import os
from pathlib import Path

from vitreous.data.sources.known import KNOWN
from vitreous.data.sources.manifest import MANIFEST_SUFFIXES
from vitreous.data.sources.urls import is_store, refuse_url
from vitreous.errors import DataError, UsageError, did_you_mean

__all__ = ["find_source"]

_FILES = (*MANIFEST_SUFFIXES, ".tar")  # how the names of sources end that are files


def find_source(source: str) -> Path | None:
    """Return the path of a folder or manifest, without opening anything; None for a known dataset or a store."""
    if source in KNOWN or is_store(source):
        return None
    path = Path(os.path.expanduser(source))
    if path.is_dir() or (path.is_file() and path.suffix.lower() in _FILES):
        return path
    if path.is_file():
        kinds = f"a folder of images, unpacked if it is an archive, or a manifest ({', '.join(MANIFEST_SUFFIXES)})"
        raise UsageError(f"{source} is a file: give {kinds}")
    if path.exists():
        raise UsageError(f"{source} is neither a folder nor a regular file: give a folder of images, or a manifest")
    refuse_url(source, as_data=True)
    near = path.parent if path.parent.is_dir() else Path()
    if os.sep in source or "/" in source or "." in source or source.startswith("~"):
        is_file = path.suffix.lower() in _FILES
        names = [each.name for each in _content(near) if (each.suffix.lower() in _FILES if is_file else each.is_dir())]
        hint = did_you_mean(path.name, names, os.path.dirname(path)) or " Check the spelling and the current folder"
        raise DataError(f"{'file' if is_file else 'folder'} not found: {source}.{hint}")
    hint = did_you_mean(source, [*KNOWN, *(each.name for each in _content(near) if each.is_dir())])
    raise UsageError(f"'{source}' is neither a folder nor a known dataset ({', '.join(KNOWN)}).{hint}")


def _content(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
