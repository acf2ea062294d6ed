"""Listing the images of shards, with an index or as tars of other programs have them.

What an index knows is not read again: hash, size and colour of each image. :class:`StoredImage` compares the hash when
an image is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol, cast

from vitreous.data.images.stored import Container, StoredImage
from vitreous.data.shards.index import INDEX, MOST_BYTES, is_index, parse_index
from vitreous.data.shards.local import LocalFolder
from vitreous.data.shards.tar import read_samples
from vitreous.data.sources.listing import SPLIT_NAMES, UNLABELLED, Entry, Listing, first_ten, plain_name, pluralize
from vitreous.errors import DataError
from vitreous.files.opening import open_regular

__all__ = ["ShardFolder", "find_shards", "images_of", "list_shards"]

_START = 64  # bytes that identify an index
_SPLIT_IN_NAME = re.compile(r"(?:^|[-_.])(" + "|".join(SPLIT_NAMES) + r")(?=[-_.])", re.IGNORECASE)


class ShardFolder(Protocol):
    """Where shards and their index lie: a folder of this machine, or one in a store."""

    name: str
    root: Path  # to which the lines of a list of exclusions may be relative

    def read_index(self) -> bytes | None:
        """Return the content of the index; None if there is none."""
        ...

    def files(self) -> dict[str, int]:
        """Return the bytes of each file in the folder, by name, sorted."""
        ...

    def open(self, file: str, size: int, sha256: str = "") -> Container:
        """Return a file of the folder, which is opened when it is read."""
        ...


def find_shards(path: Path) -> ShardFolder | None:
    """Return a local folder as shards if it has their index, or tar files and no folders; else None."""
    if not path.is_dir():
        return None
    try:
        with open_regular(path / INDEX, MOST_BYTES) as file:
            if is_index(file.read(_START)):
                return LocalFolder(path)
    except OSError:
        pass
    with os.scandir(path) as entries:
        has_tars = False
        for entry in entries:
            if not entry.name.startswith("."):
                if entry.is_dir():
                    return None
                has_tars = has_tars or entry.name.endswith(".tar")
    return LocalFolder(path) if has_tars else None


def list_shards(folder: ShardFolder, *, needs_labels: bool = True) -> Listing:
    """List the images of shards in the order of the shards."""
    content = folder.read_index()
    if content is None or not is_index(content[:_START]):
        return _list_foreign(folder, needs_labels=needs_labels)
    index = parse_index(content, f"{folder.name}/{INDEX}")
    files = folder.files()
    for shard in index.shards:
        if files.get(shard.file) != shard.bytes:
            found = f"has {files[shard.file]:,} bytes, not" if shard.file in files else "is missing, it has"
            raise DataError(
                f"{folder.name}/{shard.file} {found} {shard.bytes:,}: copy it again, or write the shards again"
            )
    entries = []
    for shard in index.shards:
        file = folder.open(shard.file, shard.bytes, shard.sha256)
        for row in shard.rows:
            size = (row.height, row.width)
            image = StoredImage(file, row.name, row.offset, row.length, digest=row.digest, size=size, grey=row.grey)
            entries.append(Entry(image, row.name, index.classes[row.label], row.split))
    if not entries:
        raise DataError(f"{folder.name} has no image in its index: write the shards again")
    return Listing(folder.root, entries, classes=index.classes if index.has_order else None)


def _list_foreign(folder: ShardFolder, *, needs_labels: bool) -> Listing:
    """List tar files without an index, which have to be read once."""
    files = {name: size for name, size in folder.files().items() if name.endswith(".tar")}
    if not files:
        raise DataError(f"{folder.name} has neither {INDEX} nor tar files: give a folder of shards")
    splits = {name: _SPLIT_IN_NAME.search(name) for name in files}
    entries, unlabelled = [], []
    for name, size in files.items():
        file = folder.open(name, size)
        found = splits[name]
        split = SPLIT_NAMES[found[1].lower()] if found else None
        for sample in read_samples(cast(IO[bytes], _Reader(file, size)), file.read, file.name):
            label = plain_name(sample.label) if sample.label else UNLABELLED
            if not sample.label:
                unlabelled.append(f"{name}/{sample.name}")
            image = StoredImage(file, sample.name, sample.offset, sample.length)
            entries.append(Entry(image, f"{name}/{sample.name}", label, split))
    if not entries:
        raise DataError(f"{folder.name}: {pluralize(len(files), 'tar file')} and no image in them")
    if needs_labels and unlabelled:
        raise DataError(
            f"{folder.name}: {pluralize(len(unlabelled), 'image')} without a label ({first_ten(unlabelled)}): beside "
            "1.jpg there must be 1.cls, or 1.json with a field label"
        )
    return Listing(folder.root, entries, [f"{pluralize(len(files), 'tar file')} without an index; all images are read"])


class _Reader:
    """A container as a file object: what the tar reader needs of one."""

    def __init__(self, container: Container, size: int) -> None:
        self.container, self.size, self.position = container, size, 0

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes."""
        left = self.size - self.position
        content = self.container.read(self.position, left if count < 0 else min(count, left))
        self.position += len(content)
        return content

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence]
        self.position = base + position
        return self.position

    def tell(self) -> int:
        """Return the position."""
        return self.position


def images_of(folder: ShardFolder) -> Iterator[StoredImage]:
    """Yield the images of shards in the order of the shards."""
    for entry in list_shards(folder, needs_labels=False).entries:
        yield cast(StoredImage, entry.path)
