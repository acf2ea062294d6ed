"""What earlier audits saw, by path, size and time of each file: outside of the data, and never more than a help.

A cache that is damaged, of another version or of other libraries counts as none, and is written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import imagehash
import numpy as np
import numpy.typing as npt
import PIL

from vitreous.audit.look import THUMB, Look
from vitreous.audit.watch import STOPS
from vitreous.errors import OutputError
from vitreous.files.opening import open_regular
from vitreous.files.writing import replacing

__all__ = ["Cache", "cache_folder", "stamp_of"]

_VERSION = 2  # of what is looked at: raise it with any change to `look`

_MOST = 4 << 30  # bytes; of three million pictures
_DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, MemoryError)

Stamp = tuple[int, int]
"""Size of a file in bytes and the time of its last change in nanoseconds."""


def cache_folder() -> Path:
    """Where caches are: `vitreous/audit` in $XDG_CACHE_HOME, or in ~/.cache where that is not set."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()
    return base / "vitreous" / "audit"


class Cache:
    """The looks at the files of one data folder.

    Args:
        root: The data folder.
        fresh: Whether to begin without what is there.
    """

    def __init__(self, root: Path, fresh: bool = False) -> None:
        real = os.path.realpath(root)
        name = hashlib.blake2b(os.fsencode(real), digest_size=16).hexdigest()
        folder = cache_folder()
        inside = Path(os.path.realpath(folder)).is_relative_to(real)
        self.file = None if inside else folder / f"{name}.npz"  # never a file in the data, even if it is all of home
        self.looks: dict[str, tuple[Stamp, Look]] = {}
        self.pixels: dict[str, str] = {}
        if self.file is not None and not fresh:
            with contextlib.suppress(*_DAMAGED):
                self._read(self.file)

    def find(self, path: Path, stamp: Stamp | None) -> Look | None:
        """What was seen of a file that has not changed since; None where it was not seen."""
        known = self.looks.get(os.path.abspath(path))
        return known[1] if known is not None and known[0] == stamp else None

    def keep(self, looks: Mapping[Path, Look], stamps: Mapping[Path, Stamp | None]) -> None:
        """Keep what was seen, in place of all before.

        Args:
            looks: By file.
            stamps: Size and time of each file before it was looked at; None where it could not be asked.
        """
        # What ended a process may have been the machine's fault, and what could not be opened may be there next time.
        self.looks = {
            os.path.abspath(path): (stamp, look)
            for path, look in looks.items()
            if (stamp := stamps[path]) is not None and look.digest and not look.reason.startswith(STOPS)
        }

    def save(self) -> str:
        """Write it; returns what went wrong where it cannot be written."""
        if self.file is None:
            return ""
        rows = self.looks
        digests = {look.digest for _, look in rows.values()}
        header = {
            "version": _versions(),
            "pixels": {digest: own for digest, own in self.pixels.items() if digest in digests},
            "files": [[path, *stamp, *_plain(look)] for path, (stamp, look) in rows.items()],
        }
        thumbs = b"".join(look.thumb.ljust(THUMB * THUMB, b"\0") for _, look in rows.values())
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.file) as written, open(written, "wb") as file:
                np.savez(
                    file,
                    header=np.frombuffer(json.dumps(header).encode("ascii"), np.uint8),
                    thumbs=np.frombuffer(thumbs, np.uint8).reshape(-1, THUMB * THUMB),
                )
        except (OSError, OutputError) as error:
            return f"what was seen cannot be kept for the next audit: {error}"
        return ""

    def _read(self, file: Path) -> None:
        with open_regular(file, _MOST) as stream, np.load(stream, allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            thumbs: npt.NDArray[np.uint8] = stored["thumbs"]
        if header["version"] != _versions() or thumbs.shape != (len(header["files"]), THUMB * THUMB):
            return
        looks = {}
        for (path, size, changed, *fields), thumb in zip(header["files"], thumbs, strict=True):
            looks[path] = ((size, changed), _look(fields, thumb.tobytes()))
        self.looks, self.pixels = looks, {str(digest): str(own) for digest, own in header["pixels"].items()}


def stamp_of(path: Path) -> Stamp | None:
    """Size and time of a file; None where it cannot be asked."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _versions() -> list[str]:
    """All that what is seen depends on."""
    return [str(_VERSION), PIL.__version__, imagehash.__version__]


def _plain(look: Look) -> list[object]:
    """The fields of a look but for its thumbnail, in their order."""
    return [value for name, value in asdict(look).items() if name != "thumb"]


def _look(fields: list[object], thumb: bytes) -> Look:
    names = [name for name in Look.__slots__ if name != "thumb"]
    known = dict(zip(names, fields, strict=True))
    size, hashes = known.pop("size"), known.pop("hashes")
    if not (isinstance(size, list) and isinstance(hashes, list)):
        raise ValueError("a damaged cache")
    seen = thumb if not known["reason"] else b""
    return Look(**known, size=tuple(size), hashes=tuple(hashes), thumb=seen)  # type: ignore[arg-type]
