"""One pass over picture files, in threads: content hash, whether each can be decoded, its size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.images.decoding import TOO_LARGE
from vitreous.data.images.headers import UnreadableError
from vitreous.data.images.reading import PictureFacts, inspect_picture, opened_file

__all__ = ["Progress", "Scanned", "content_hash", "scan"]

Progress = Callable[[int, int], None]
"""Called with (done, total) as files are read."""

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Scanned:
    """One file after the pass.

    Args:
        digest: 16-byte BLAKE2b of the file's bytes, in hex; empty where the file could not be read at all.
        facts: Size, and why it cannot be decoded.
    """

    digest: str
    facts: PictureFacts


def content_hash(content: bytes | memoryview) -> str:
    """BLAKE2b of 16 bytes, in hex: the same picture has the same hash under any name."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def scan(paths: Sequence[Path], workers: int | None = None, progress: Progress | None = None) -> list[Scanned]:
    """Read every file once: hash its bytes and decode it fully.

    Threads are enough: Pillow and hashlib release Python's lock.

    Args:
        paths: Files to read.
        workers: Threads; None is one per core.
        progress: Called from this thread as files are done.

    Returns:
        One result per path, in the order of the paths.
    """
    results: list[Scanned] = []
    chunks = [paths[at : at + _CHUNK] for at in range(0, len(paths), _CHUNK)]
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for part in pool.map(lambda chunk: [_scan_one(path) for path in chunk], chunks):
            results += part
            if progress is not None:
                progress(len(results), len(paths))
    return results


def _scan_one(path: Path) -> Scanned:
    try:
        with opened_file(path) as content:
            return Scanned(content_hash(content.data), inspect_picture(content))
    except UnreadableError as error:
        return Scanned("", PictureFacts((0, 0), False, str(error)))
    except MemoryError:
        return Scanned("", PictureFacts((0, 0), False, TOO_LARGE))
