"""A cache of inspected files, keyed by path, size and modification time, outside the data folder.

A cache that is damaged, or written by another version of this code or of its libraries, is ignored and rewritten.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import imagehash
import numpy as np
import numpy.typing as npt
import PIL

from vitreous.audit.look import THUMB, Inspection
from vitreous.audit.watch import DECODER_EXIT_PREFIX
from vitreous.data.images.stored import ImagePath, StoredImage
from vitreous.errors import OutputError
from vitreous.files.opening import open_regular
from vitreous.files.user_cache import user_cache
from vitreous.files.writing import atomic_write

__all__ = ["Cache", "cache_folder", "stamp_of"]

_VERSIONS = ["3", PIL.__version__, imagehash.__version__]  # increase the first with any change to the inspection
_MAX_BYTES = 4 << 30  # about three million images
_DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, MemoryError)
_UNKEPT = "the results of the inspection cannot be cached for the next audit"

Stamp = tuple[int, int]
"""Size of a file in bytes, and its modification time in nanoseconds."""


def cache_folder() -> Path:
    """Return `vitreous/audit` in $XDG_CACHE_HOME, or in ~/.cache if that is not set."""
    return user_cache("audit")


class Cache:
    """The inspected files of the data folder `root`; `fresh` ignores an existing cache."""

    def __init__(self, root: Path, fresh: bool = False) -> None:
        real = os.path.realpath(root)
        name = hashlib.blake2b(os.fsencode(real), digest_size=16).hexdigest()
        self.file: Path | None = None
        self.problem = ""  # why nothing is kept, although it might be
        try:
            folder = cache_folder()
            if not Path(os.path.realpath(folder)).is_relative_to(real):  # the data may be the home folder
                self.file = folder / f"{name}.npz"
        except OSError as error:  # there is no home folder
            self.problem = f"{_UNKEPT}: {error.strerror}"
        self.facts: dict[str, tuple[Stamp, Inspection]] = {}  # by absolute path
        self.pixels: dict[str, str] = {}  # hash of the pixels by digest of the file
        if self.file is not None and not fresh:
            with contextlib.suppress(*_DAMAGED):
                self._read(self.file)

    def find(self, path: ImagePath, stamp: Stamp | None) -> Inspection | None:
        """Return the inspection of a file that has not changed since; None if there is none."""
        known = self.facts.get(os.path.abspath(path))
        return known[1] if known is not None and known[0] == stamp else None

    def replace(self, facts: Mapping[ImagePath, Inspection], stamps: Mapping[ImagePath, Stamp | None]) -> None:
        """Replace the content of the cache; `stamps` are those of the files before their inspection."""
        # Files that crashed a process or could not be opened are not kept: the next attempt may succeed.
        self.facts = {
            os.path.abspath(path): (stamp, one)
            for path, one in facts.items()
            if (stamp := stamps[path]) is not None and one.digest and not one.reason.startswith(DECODER_EXIT_PREFIX)
        }

    def save(self) -> str:
        """Write the cache; return an error message, or an empty string."""
        if self.file is None:
            return self.problem
        digests = {facts.digest for _, facts in self.facts.values()}
        header = {
            "version": _VERSIONS,
            "pixels": {digest: hashed for digest, hashed in self.pixels.items() if digest in digests},
            "files": [[path, *stamp, *_to_fields(facts)] for path, (stamp, facts) in self.facts.items()],
        }
        thumbs = b"".join(facts.thumb.ljust(THUMB * THUMB, b"\0") for _, facts in self.facts.values())
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.file) as temporary, open(temporary, "wb") as file:
                np.savez(
                    file,
                    header=np.frombuffer(json.dumps(header).encode("ascii"), np.uint8),
                    thumbs=np.frombuffer(thumbs, np.uint8).reshape(-1, THUMB * THUMB),
                )
        except (OSError, OutputError) as error:
            return f"{_UNKEPT}: {error}"
        return ""

    def _read(self, file: Path) -> None:
        with open_regular(file, _MAX_BYTES) as stream, np.load(stream, allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            thumbs: npt.NDArray[np.uint8] = stored["thumbs"]
        if header["version"] != _VERSIONS or thumbs.shape != (len(header["files"]), THUMB * THUMB):
            return
        facts = {
            path: ((size, modified), _from_fields(fields, thumb.tobytes()))
            for (path, size, modified, *fields), thumb in zip(header["files"], thumbs, strict=True)
        }
        self.facts, self.pixels = facts, {str(digest): str(hashed) for digest, hashed in header["pixels"].items()}


def stamp_of(path: ImagePath) -> Stamp | None:
    """Return size and modification time of a file, of an image in a shard size and hash; None if they are unknown."""
    if isinstance(path, StoredImage):
        return (path.length, int(path.digest[:15], 16)) if path.digest else None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _to_fields(facts: Inspection) -> list[object]:
    return [value for name, value in dataclasses.asdict(facts).items() if name != "thumb"]


def _from_fields(fields: list[object], thumb: bytes) -> Inspection:
    known = dict(
        zip((each.name for each in dataclasses.fields(Inspection) if each.name != "thumb"), fields, strict=True)
    )
    size, hashes = known.pop("size"), known.pop("hashes")
    if not (isinstance(size, list) and isinstance(hashes, list)):
        raise ValueError("the cache is damaged")
    thumb = b"" if known["reason"] else thumb
    return Inspection(**known, size=tuple(size), hashes=tuple(hashes), thumb=thumb)  # type: ignore[arg-type]
