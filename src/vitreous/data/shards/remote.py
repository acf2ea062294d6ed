"""Shards and images in a store, read by ranges, and shards kept in a cache of this machine.

The first images of a shard are fetched one by one, many at a time, so a run begins at once wherever it is resumed.
Meanwhile a thread fetches the whole shard, unless another process does, and later images are read from the cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from vitreous.data.images.formats import image_extensions
from vitreous.data.images.headers import UnreadableError
from vitreous.data.images.stored import ImagePath, StoredImage
from vitreous.data.shards.cache import ShardCache
from vitreous.data.shards.index import INDEX
from vitreous.data.shards.listing import SUFFIXES, list_shards
from vitreous.data.shards.local import LocalFile
from vitreous.data.shards.store import Range, Store
from vitreous.data.sources.folders import label_by_folder
from vitreous.data.sources.listing import Listing
from vitreous.data.sources.unlabelled import without_labels
from vitreous.errors import DataError

__all__ = ["RemoteFile", "RemoteFolder", "list_store", "open_folder"]


_EXTENSIONS = frozenset(image_extensions())
_GAP = 1 << 20  # bytes between two images that take less time than another request
_MOST_AT_ONCE = 8 << 20  # bytes of one request


def list_store(
    address: str,
    cache_gb: float,
    *,
    mixed: int = 1,
    needs_labels: bool = True,
    sets_aside: bool = False,
    reads_sets: bool = False,
) -> Listing:
    """List a folder in a store: shards if it has an index, tar or Parquet files, else images in folders.

    A note says so if the cache has no room for as many shards as training mixes at a time, ``mixed``.
    """
    folder = open_folder(address, cache_gb)
    files = folder.files()
    if not any(files):
        raise DataError(f"{folder.name} is empty or not there: give s3://BUCKET/FOLDER with shards or images")
    if INDEX in files or any(name.endswith(SUFFIXES) for name in files):
        listing = list_shards(folder, needs_labels=needs_labels, sets_aside=sets_aside, reads_sets=reads_sets)
        sizes = sorted((size for name, size in files.items() if name.endswith(SUFFIXES)), reverse=True)
        if 0 < cache_gb * 2**30 < sum(sizes[:mixed]):
            listing.notes.append(
                f"a cache of {cache_gb:g} GiB has no room for the {len(sizes[:mixed])} shards that are mixed at once; "
                f"they are fetched again and again: give --cache-size {sum(sizes[:mixed]) / 2**30 * 1.05:.2g}"
            )
        return listing
    images: list[tuple[ImagePath, tuple[str, ...]]] = []
    others = []
    for key, size in files.items():
        parts = tuple(key.split("/"))
        if any(part.startswith(".") for part in parts) or not key:
            continue
        if os.path.splitext(key)[1].lower() in _EXTENSIONS and size > 0:
            images.append((folder.image(key, size), parts))
        else:
            others.append(key)
    return (label_by_folder if needs_labels else without_labels)(folder.root, images, others, [])


@cache
def open_folder(address: str, cache_gb: float) -> RemoteFolder:
    """Return the folder of an address, one for all that ask for it in this process."""
    return RemoteFolder(address, cache_gb)


class RemoteFolder:
    """A folder in a store, with shards or with images."""

    def __init__(self, address: str, cache_gb: float) -> None:
        self.store = Store(address)
        self.name, self.root = self.store.address, Path(self.store.address)
        self.cache = ShardCache(int(cache_gb * 2**30))
        self._files: dict[str, int] | None = None

    def read_index(self) -> bytes | None:
        """Return the content of the index; None if there is none."""
        return self.store.read_whole(INDEX)

    def files(self) -> dict[str, int]:
        """Return the bytes of each object in the folder, at any depth, by key, sorted."""
        if self._files is None:
            self._files = self.store.sizes()
        return self._files

    def open(self, file: str, size: int, sha256: str = "") -> RemoteFile:
        """Return a file of the folder, which is opened when it is read."""
        return RemoteFile(self, file, size, sha256)

    def image(self, file: str, size: int) -> StoredImage:
        """Return an image that is an object of its own."""
        return StoredImage(RemoteFile(self, file, size, "", is_shard=False), file, 0, size)

    def fetch(self, images: Iterable[StoredImage]) -> None:
        """Fetch images that are not in the cache, all at once, for the next time they are read."""
        missing: dict[RemoteFile, list[StoredImage]] = {}
        for image in images:
            if isinstance(file := image.container, RemoteFile) and file.cached() is None:
                missing.setdefault(file, []).append(image)
        parts = [(file, part) for file, group in missing.items() for part in _neighbours(group)]
        ranges = [Range(file.file, part[0].offset, _end(part[-1]) - part[0].offset) for file, part in parts]
        for (file, part), each, content in zip(parts, ranges, self.store.read_many(ranges), strict=True):
            for image in part:
                file.held[image.offset] = content[image.offset - each.offset : _end(image) - each.offset]
        for file in missing:
            file.want()  # now: the images that a batch waits for come first


def _neighbours(images: list[StoredImage]) -> Iterator[list[StoredImage]]:
    """Yield the images of a file in groups that are fetched by one request each."""
    images = sorted(images, key=lambda image: image.offset)
    first = 0
    for n, image in enumerate(images[1:], start=1):
        if image.offset - _end(images[n - 1]) > _GAP or _end(image) - images[first].offset > _MOST_AT_ONCE:
            yield images[first:n]
            first = n
    yield images[first:]


def _end(image: StoredImage) -> int:
    return image.offset + image.length


class RemoteFile:
    """An object of a store; ``sha256`` is that of its bytes, empty if it is not known."""

    def __init__(self, folder: RemoteFolder, file: str, size: int, sha256: str, *, is_shard: bool = True) -> None:
        self.folder, self.file, self.size, self.sha256 = folder, file, size, sha256
        self.name = f"{folder.name}/{file}"
        self.is_shard = is_shard
        # The name in the cache: the hash of the content, or where that is not known of address, size and version.
        known = f"{self.name} {size} {folder.store.versions.get(file, '')}"
        self.cache_key = sha256 or hashlib.sha256(known.encode("utf-8", "replace")).hexdigest()
        self.held: dict[int, bytes] = {}  # images that are fetched and not yet read, by offset

    def fetch(self, images: Iterable[StoredImage]) -> None:
        """Fetch images of this folder, all at once, for the next time they are read."""
        self.folder.fetch(images)

    def cached(self) -> LocalFile | None:
        """Return the file in the cache; None if it is not there."""
        return self.folder.cache.find(self) if self.is_shard else None

    def want(self) -> None:
        """Have the whole file fetched for the cache."""
        if self.is_shard:
            self.folder.cache.want(self)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the object."""
        if self.held and (content := self.held.pop(offset, None)) is not None and len(content) == length:
            return content
        if (local := self.cached()) is not None:
            try:
                return local.read(offset, length)
            except UnreadableError:  # another process has made room for its shards
                self.folder.cache.forget(self)
        content = self.read_store(offset, length)
        self.want()
        return content

    def read_store(self, offset: int, length: int) -> bytes:
        """Return bytes of the object from the store, whatever the cache has."""
        return self.folder.store.read(self.file, offset, length)
