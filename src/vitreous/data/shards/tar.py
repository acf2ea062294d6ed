"""Tar files of images in the convention of WebDataset: the files of one image share their name up to the first dot.

`1.jpg` and `1.cls` are an image and its label. Writing follows the convention, and tars of other programs are read as
they are. https://github.com/webdataset/webdataset describes it.
"""

from __future__ import annotations

import json
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from vitreous.data.images.formats import MAX_BYTES, image_extensions
from vitreous.errors import DataError

__all__ = ["Sample", "end_of_tar", "header_of", "padding", "read_samples"]

_BLOCK = tarfile.BLOCKSIZE
_LABEL_BYTES = 1 << 20
_EXTENSIONS = frozenset(image_extensions())

Read = Callable[[int, int], bytes]
"""Returns bytes of a file, given offset and length."""


class Sample(NamedTuple):
    """An image of a tar file."""

    name: str  # of the member
    label: str | None
    offset: int
    length: int


def header_of(name: str, size: int) -> bytes:
    """Return the header of a member; its content follows, padded to :func:`padding`."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of a member of ``size`` bytes."""
    return b"\0" * (-size % _BLOCK)


def end_of_tar() -> bytes:
    """Return the two blocks that end a tar file."""
    return b"\0" * (2 * _BLOCK)


def read_samples(file: IO[bytes], read: Read, name: str) -> Iterator[Sample]:
    """Yield the images of a tar file, in its order; ``name`` is that of the file in errors.

    The label is the content of `.cls`, or the `label` or `cls` of `.json`; without them the folder of the member. A
    compressed tar is refused: its images have no offsets.
    """
    images: list[tuple[str, str, int, int]] = []  # key, name, offset, length
    labels: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse() or posixpath.basename(member.name).startswith("."):
                    continue
                folder, base = posixpath.split(member.name)
                key, _, extension = base.partition(".")
                key, extension = posixpath.join(folder, key), "." + extension.lower()
                if "." + extension.rpartition(".")[2] in _EXTENSIONS:
                    images.append((key, member.name, member.offset_data, min(member.size, MAX_BYTES)))
                elif extension in (".cls", ".json") and member.size <= _LABEL_BYTES:
                    label = _label(extension, read(member.offset_data, member.size))
                    if label is not None and (extension == ".cls" or key not in labels):
                        labels[key] = label
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"{name} cannot be read as a tar file: {error}. A compressed one must be unpacked first, because its "
            "images are read by their offset"
        ) from error
    for key, member_name, offset, length in images:
        yield Sample(member_name, labels.get(key, posixpath.basename(posixpath.dirname(key)) or None), offset, length)


def _label(extension: str, content: bytes) -> str | None:
    try:
        text = content.decode("utf-8").strip()
        if extension == ".cls":
            return text or None
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = next((fields[name] for name in ("label", "cls") if name in fields), None) if type(fields) is dict else None
    return str(found) if isinstance(found, str | int) and found != "" else None
