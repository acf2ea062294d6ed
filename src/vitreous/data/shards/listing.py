"""Listing the images of shards, with an index or as tars of other programs have them.

What an index knows is not read again: hash, size and colour of each image. :class:`StoredImage` compares the hash when
an image is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol, cast

from vitreous.data.images.formats import image_extensions
from vitreous.data.images.stored import Container, StoredImage
from vitreous.data.shards.index import INDEX, MOST_BYTES, Index, Row, is_index, parse_index
from vitreous.data.shards.local import LocalFile, LocalFolder
from vitreous.data.shards.parquet import PARQUET_SUFFIXES, has_images, read_parquet
from vitreous.data.shards.reader import ContainerReader
from vitreous.data.shards.tar import read_samples
from vitreous.data.sources.label_sets import SEPARATOR
from vitreous.data.sources.listing import SPLIT_NAMES, UNLABELLED, Entry, Listing, first_ten, plain_name
from vitreous.errors import DataError, pluralize
from vitreous.files.opening import open_regular

__all__ = ["SUFFIXES", "ShardFolder", "find_shards", "images_of", "list_shards"]

SUFFIXES = (".tar", *PARQUET_SUFFIXES)
"""Extensions of files with many images."""

_EXTENSIONS = image_extensions()
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
    """Return what a path leads to as shards; None if it is something else.

    Shards are a tar file, a Parquet file of images, and a folder with an index, or with such files and neither folders
    nor images.
    """
    if path.is_file():
        suffix, size = path.suffix.lower(), path.stat().st_size
        holds = suffix == ".tar" or (suffix in PARQUET_SUFFIXES and has_images(LocalFile(path), size))
        return LocalFolder(path.parent, only=path.name) if holds else None
    if not path.is_dir():
        return None
    try:
        with open_regular(path / INDEX, MOST_BYTES) as file:
            if is_index(file.read(_START)):
                return LocalFolder(path)
    except OSError:
        pass
    with os.scandir(path) as found:
        entries = [entry for entry in found if not entry.name.startswith(".")]
    names = [entry.name for entry in entries]
    if any(entry.is_dir() for entry in entries) or any(name.lower().endswith(_EXTENSIONS) for name in names):
        return None
    if any(name.endswith(".tar") for name in names) or (
        names and all(name.endswith(PARQUET_SUFFIXES) for name in names)
    ):
        return LocalFolder(path)
    return None


def list_shards(
    folder: ShardFolder, *, needs_labels: bool = True, sets_aside: bool = False, reads_sets: bool = False
) -> Listing:
    """List the images of shards in the order of the shards.

    Where labels are needed, images that were packed without one are set aside if the caller `sets_aside` such images.
    Where they are not, several labels of an image count only if the caller `reads_sets`.

    Raises:
        DataError: If a file is missing, there are no images, or labels are needed and missing.
    """
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
            entries.append(_entry(image, row, index.classes))
    if not entries:
        raise DataError(f"{folder.name} has no image in its index: write the shards again")
    if needs_labels and index.without_labels:
        return _with_labels(folder, entries, index, sets_aside=sets_aside)
    if index.several and not needs_labels and not reads_sets:
        return Listing(folder.root, [replace(entry, label=UNLABELLED, labels=None) for entry in entries])
    return Listing(folder.root, entries, classes=index.classes if index.has_order else None)


def _entry(image: StoredImage, row: Row, classes: Sequence[str]) -> Entry:
    if row.label is None:
        return Entry(image, row.name, UNLABELLED, row.split)
    if isinstance(row.label, int):
        return Entry(image, row.name, classes[row.label], row.split)
    names = tuple(classes[label] for label in row.label)
    return Entry(image, row.name, SEPARATOR.join(names), row.split, names)


def _with_labels(folder: ShardFolder, entries: list[Entry], index: Index, *, sets_aside: bool) -> Listing:
    """Set the images aside that were packed without a label, or refuse them."""
    aside = [entry for entry in entries if entry.is_unlabelled]
    labelled = [entry for entry in entries if not entry.is_unlabelled]
    if not labelled or (aside and not sets_aside):
        raise DataError(
            f"{folder.name}: {pluralize(len(aside), 'image')} without a label, packed with --no-labels: pack the "
            "labelled ones without that option, or use `vitreous pretrain`, which needs no labels"
        )
    return Listing(folder.root, labelled, classes=index.classes if index.several else None, unlabelled=aside)


def _list_foreign(folder: ShardFolder, *, needs_labels: bool) -> Listing:
    """List tar and Parquet files without an index, which have to be read once."""
    files = {name: size for name, size in folder.files().items() if name.endswith(SUFFIXES)}
    if not files:
        raise DataError(f"{folder.name} has neither {INDEX} nor tar or Parquet files: give a folder of shards")
    entries, unlabelled = [], []
    for name, size in files.items():
        found = _SPLIT_IN_NAME.search(name.rpartition("/")[2])
        split = SPLIT_NAMES[found[1].lower()] if found else None
        for inner, label, image in _samples(folder.open(name, size), size):
            if not label:
                unlabelled.append(f"{name}/{inner}")
            entries.append(Entry(image, f"{name}/{inner}", plain_name(label) if label else UNLABELLED, split))
    if not entries:
        raise DataError(f"{folder.name}: {pluralize(len(files), 'file')} and no image in them")
    if needs_labels and unlabelled:
        raise DataError(
            f"{folder.name}: {pluralize(len(unlabelled), 'image')} without a label ({first_ten(unlabelled)}): in a tar "
            "file 1.cls must be beside 1.jpg, or 1.json with a field label; in Parquet a column label"
        )
    return Listing(folder.root, entries, [f"{pluralize(len(files), 'file')} without an index; all images are read"])


def _samples(file: Container, size: int) -> Iterator[tuple[str, str | None, StoredImage]]:
    """Yield name, label and image of each sample of a tar or Parquet file."""
    if file.name.endswith(PARQUET_SUFFIXES):
        yield from read_parquet(file, size)
        return
    for sample in read_samples(cast(IO[bytes], ContainerReader(file, size)), file.read, file.name):
        yield sample.name, sample.label, StoredImage(file, sample.name, sample.offset, sample.length)


def images_of(folder: ShardFolder) -> Iterator[StoredImage]:
    """Yield the images of shards in the order of the shards."""
    for entry in list_shards(folder, needs_labels=False).entries:
        yield cast(StoredImage, entry.path)
