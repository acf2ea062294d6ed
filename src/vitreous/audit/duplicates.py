"""Pictures that show the same: candidates by the Hamming distance of their perceptual hashes, then a second look.

A hash of 64 bits alone cries wolf: of 6.7 million pairs of the flowers photographs 126 are within 12 bits, and about 35
of them show the same scene. The second look compares the details of two thumbnails, what is left of them without their
blur, and knows light, contrast and colour from content. Figures: docs/reliability.md.

n pictures, T x T pixels of a thumbnail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

from vitreous.audit.look import THUMB
from vitreous.audit.watch import cores

__all__ = ["BITS", "LEAST_SIDE", "MIRRORED", "SAME", "Pair", "alike", "components", "near_pairs"]

BITS = 12
"""Most bits of 64 in which the hashes of two candidates differ."""

SAME = 0.65
"""Least correlation of two thumbnails' details; of the flowers' candidates the first false pair has 0.50."""

MIRRORED = (0.85, 0.1)
"""Least correlation of one thumbnail's details with the mirror image of the other's, and by how much that is above the
correlation with the other as it is: things are symmetric, and two shots of one seem mirrored. Of all 6.7 million pairs
of the flowers none that is mirrored by a tenth more has above 0.58; their mirrored copies, re-encoded, resized or
brighter, have 0.90 or more, and 96 % of them do with their margins cut."""

LEAST_SIDE = 32
"""Pixels of the shorter side below which pictures are not compared: handwritten digits of 8 pixels all look alike."""

_BLUR = 2.0  # standard deviation, in pixels of the thumbnail, of what counts as no detail
_FLAT = 1.0  # grey levels of detail (root mean square) below which a picture shows nothing to compare
_ROWS = 256  # hashes compared with
_COLUMNS = 2048  # as many at a time: 4 MiB, within a processor's cache
_PAIRS = 2**15  # thumbnails compared at a time: 256 MiB
_EQUAL = 8  # pictures of one hash that are compared with those of another hash

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pictures, by position, that show the same; ``mirrored`` if one is the other's mirror image."""

    one: int
    other: int
    mirrored: bool


def near_pairs(
    hashes: Sequence[tuple[int, int]],
    thumbs: Sequence[bytes],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Pair]:
    """Find the pairs of pictures that show the same, among all pairs.

    Args:
        hashes: Of each picture and of its mirror image.
        thumbs: T * T grey levels of each picture.
        progress: Called with (done, total).

    Returns:
        Pairs with ``one`` below ``other``, each once. Where more than a few pictures share a hash, each is paired with
        the first of them, not with all others.
    """
    if not hashes:
        return []
    both = np.asarray(hashes, np.uint64)  # (n, 2)
    details = _Details(thumbs)
    groups = _by_hash(both[:, 0])
    unique = np.asarray(list(groups), np.uint64)
    mirrored = {int(own): int(other) for own, other in hashes}
    reflected = np.asarray([mirrored[int(own)] for own in unique], np.uint64)
    members = list(groups.values())
    found: dict[tuple[int, int], bool] = {}

    def keep(pairs: Iterable[tuple[int, int]], flip: bool) -> None:
        for one, other in details.same(pairs, flip):
            found.setdefault((min(one, other), max(one, other)), flip)

    keep(((own[0], other) for own in members for other in own[1:]), False)
    strips = range(0, len(unique), _ROWS)
    with ThreadPoolExecutor(cores()) as pool:  # NumPy lets go of Python's lock
        jobs = [pool.submit(_close, unique, reflected, top) for top in strips]
        for number, job in enumerate(jobs):
            for flip, (a, b) in enumerate(job.result()):
                keep(_pictures(members, a, b), bool(flip))
            progress(number + 1, len(strips))
    return [Pair(one, other, flip) for (one, other), flip in sorted(found.items())]


def alike(one: bytes, other: bytes) -> float:
    """The correlation of two thumbnails' details, -1 to 1; 0 where one of them has none."""
    details = _Details([one, other])
    return float(details.rows[0] @ details.rows[1])


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Groups of at least two of ``count`` things that edges join, each in rising order, by their first."""
    above = list(range(count))

    def root(n: int) -> int:
        while above[n] != n:
            above[n] = n = above[above[n]]
        return n

    for one, other in edges:
        a, b = sorted((root(one), root(other)))
        above[b] = a
    groups: dict[int, list[int]] = {}
    for n in range(count):
        groups.setdefault(root(n), []).append(n)
    return [group for group in groups.values() if len(group) > 1]


class _Details:
    """Thumbnails without their blur, of mean 0 and length 1; zeros where nothing is left."""

    def __init__(self, thumbs: Sequence[bytes]) -> None:
        self.rows = np.empty((len(thumbs), THUMB * THUMB), np.float32)
        for start in range(0, len(thumbs), _COLUMNS):
            part = b"".join(thumbs[start : start + _COLUMNS])
            grey = np.frombuffer(part, np.uint8).reshape(-1, THUMB, THUMB).astype(np.float32)
            detail = (grey - gaussian_filter(grey, _BLUR, axes=(1, 2))).reshape(len(grey), -1)
            detail -= detail.mean(axis=1, keepdims=True)
            length = np.linalg.norm(detail, axis=1, keepdims=True)
            detail *= np.where(length < _FLAT * THUMB, 0, 1 / np.maximum(length, 1e-6))
            self.rows[start : start + len(grey)] = detail

    def same(self, pairs: Iterable[tuple[int, int]], flip: bool) -> Iterator[tuple[int, int]]:
        """Yield the pairs whose details agree; with ``flip`` those of a picture and the mirror image of another."""
        everything = np.asarray(list(pairs), np.int64).reshape(-1, 2)
        for start in range(0, len(everything), _PAIRS):
            part = everything[start : start + _PAIRS]
            first, second = self.rows[part[:, 0]], self.rows[part[:, 1]]
            match = np.einsum("ij,ij->i", first, second)
            same = match >= SAME
            if flip:
                second = second.reshape(-1, THUMB, THUMB)[:, :, ::-1].reshape(len(part), -1)
                mirrored = np.einsum("ij,ij->i", first, second)
                same = (mirrored >= MIRRORED[0]) & (mirrored >= match + MIRRORED[1])
            yield from map(tuple, part[same].tolist())


def _by_hash(hashes: Hashes) -> dict[int, list[int]]:
    """Positions of the pictures of each hash."""
    groups: dict[int, list[int]] = {}
    for position, value in enumerate(hashes.tolist()):
        groups.setdefault(value, []).append(position)
    return groups


def _pictures(members: Sequence[list[int]], a: Ints, b: Ints) -> Iterator[tuple[int, int]]:
    """The pairs of pictures of pairs of hashes."""
    for one, other in zip(a.tolist(), b.tolist(), strict=True):
        for first in members[one][:_EQUAL]:
            for second in members[other][:_EQUAL]:
                yield first, second


def _close(hashes: Hashes, reflected: Hashes, top: int) -> list[tuple[Ints, Ints]]:
    """Pairs (a, b), a < b, a from ``top`` on in one strip, whose hashes differ in at most BITS bits.

    Returns:
        First of the hashes among themselves, then of them with the mirror images' hashes.
    """
    rows = hashes[top : top + _ROWS, None]
    room = np.empty((len(rows), _COLUMNS), np.uint64)  # used over and over: it stays in the processor's cache
    found: list[tuple[list[Ints], list[Ints]]] = [([], []), ([], [])]
    for left in range(top, len(hashes), _COLUMNS):
        for (ones, others), columns in zip(found, (hashes, reflected), strict=True):
            part = columns[None, left : left + _COLUMNS]
            different = np.bitwise_xor(rows, part, out=room[:, : part.shape[1]])
            hits = np.flatnonzero(_bits(different) <= BITS)
            a, b = hits // part.shape[1] + top, hits % part.shape[1] + left
            ones.append(a[a < b])
            others.append(b[a < b])
    return [(np.concatenate(ones), np.concatenate(others)) for ones, others in found]


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """How many bits are set in each 64-bit number."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(values)
    counts = _BYTE_BITS[values.view(np.uint8)].reshape(*values.shape, 8)
    return counts.sum(axis=-1, dtype=np.uint8)


_BYTE_BITS = np.asarray([n.bit_count() for n in range(256)], np.uint8)
