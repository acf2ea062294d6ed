"""The pictures of a folder, at any depth, by name or by content. What is in one is :mod:`vitreous.data.pictures`."""

from __future__ import annotations

import os
from pathlib import Path

from vitreous.data.pictures import starts_like_picture
from vitreous.errors import DataError

__all__ = ["find_pictures"]

_EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".dib"),
    *(".avif", ".heic", ".heif", ".jp2", ".j2k", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm", ".ico", ".qoi"),
)


def find_pictures(folder: str | os.PathLike[str]) -> tuple[list[Path], list[Path]]:
    """Find the pictures under a folder, at any depth.

    A file is a picture by its extension in any case, or by its first bytes. Symbolic links are followed, but
    not into a folder that they lie in, so loops end. Hidden files and folders are left out.

    Returns:
        The pictures, and the other files that are not hidden; both sorted by path.

    Raises:
        DataError: If a folder cannot be listed.
    """
    pictures: list[Path] = []
    others: list[Path] = []
    above: dict[str, frozenset[tuple[int, int]]] = {os.fspath(folder): frozenset()}  # real folders that a path is in

    def complain(error: OSError) -> None:
        raise DataError(f"folder {error.filename} cannot be listed: {error.strerror}") from error

    for parent, folders, files in os.walk(folder, followlinks=True, onerror=complain):
        status = os.stat(parent)
        lineage = above.pop(parent) | {(status.st_dev, status.st_ino)}
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        inner = {name: os.stat(os.path.join(parent, name)) for name in folders}
        folders[:] = [name for name in folders if (inner[name].st_dev, inner[name].st_ino) not in lineage]
        above.update((os.path.join(parent, name), lineage) for name in folders)
        for name in files:
            if not name.startswith("."):
                path = Path(parent, name)
                (pictures if _looks_like_picture(path) else others).append(path)
    return sorted(pictures), sorted(others)


def _looks_like_picture(path: Path) -> bool:
    """Whether the extension or the first bytes say picture; only files with another extension are opened.

    A link to nothing is one by its extension, to be reported; a pipe is none: reading it could wait for ever.
    """
    by_name = path.suffix.lower() in _EXTENSIONS
    if not path.is_file():
        return by_name and not path.exists()
    if by_name:
        return True
    try:
        with path.open("rb") as file:
            return starts_like_picture(file.read(16))
    except OSError:
        return False
