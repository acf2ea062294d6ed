"""One pass over image files, in threads: content hash, size, and whether each can be decoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from vitreous.data.images.content import content_hash
from vitreous.data.images.decoding import TOO_LARGE
from vitreous.data.images.headers import UnreadableError
from vitreous.data.images.reading import ImageFacts, inspect_image, open_image_file
from vitreous.data.images.stored import ImagePath, StoredImage

__all__ = ["Progress", "Scanned", "content_hash", "scan", "unopened"]

Progress = Callable[[int, int], None]
"""Called with (done, total) as files are read."""

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result for one file."""

    digest: str  # :func:`content_hash` of the file's bytes; empty if it could not be read at all
    facts: ImageFacts


def scan(paths: Sequence[ImagePath], workers: int | None = None, progress: Progress | None = None) -> list[Scanned]:
    """Read every file once: hash its bytes and decode it fully.

    Runs in ``workers`` threads, by default one per core: Pillow and hashlib release the GIL. The results are in the
    order of the paths.
    """
    if all(isinstance(path, StoredImage) and path.size is not None for path in paths):
        return [_scan_one(path) for path in paths]  # nothing is read
    results: list[Scanned] = []
    chunks = [paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK)]
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for part in pool.map(lambda chunk: [_scan_one(path) for path in chunk], chunks):
            results += part
            if progress is not None:
                progress(len(results), len(paths))
    return results


def _scan_one(path: ImagePath) -> Scanned:
    if isinstance(path, StoredImage) and path.size is not None:  # an index says so, and reading compares the digest
        return Scanned(path.digest, ImageFacts(path.size, path.grey, None))
    try:
        with open_image_file(path) as content:
            return Scanned(content_hash(content.data), inspect_image(content))
    except UnreadableError as error:
        return Scanned("", ImageFacts((0, 0), False, str(error)))
    except MemoryError:
        return Scanned("", ImageFacts((0, 0), False, TOO_LARGE))


def unopened(name: str, path: ImagePath) -> Scanned:
    """Return the result for a trusted file, which is not read: name and length stand for its content."""
    identity = f"{name} {os.stat(path).st_size}"
    return Scanned(content_hash(identity.encode()), ImageFacts((0, 0), False, None))
