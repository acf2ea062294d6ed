"""Near-duplicate images: candidates by Hamming distance of perceptual hashes, confirmed by correlating thumbnails.

A 64-bit hash alone gives mostly false positives. So the details of two thumbnails, that is their high-pass filtered
grey levels, must correlate too, which ignores changes of brightness, contrast and colour.
docs/explanation/reliability.md justifies the thresholds.

n images, T x T pixels of a thumbnail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from vitreous.audit.look import THUMB
from vitreous.machine.cores import num_cores

__all__ = ["BITS", "MIN_SIDE", "MIRRORED", "SAME", "Pair", "components", "correlation", "near_pairs"]

BITS = 12
"""Maximum Hamming distance between the 64-bit hashes of two candidates."""

SAME = 0.65
"""Minimum correlation between the details of two thumbnails."""

MIRRORED = (0.85, 0.1)
"""Minimum correlation with the mirror image of the other thumbnail, and by how much it must exceed the correlation with
the other thumbnail itself: two shots of a symmetric object are not mirror images."""

MIN_SIDE = 32
"""Pixels of the shorter side below which images are not compared: at 8 pixels all handwritten digits look alike."""

_BLUR = 2.0  # standard deviation, in thumbnail pixels, of the blur that is subtracted
_FLAT = 1.0  # root mean square of the details, in grey levels, below which there is nothing to compare
_ROWS, _COLUMNS = 256, 2048  # hashes compared at a time: 4 MiB, within a processor's cache
_PAIRS = 2**15  # thumbnails compared at a time: 256 MiB
_MAX_EQUAL = 8  # images of one hash that are compared with those of another

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pair:
    """Indices of two near-duplicate images; `mirrored` if one is the other's mirror image."""

    one: int
    other: int
    mirrored: bool


def near_pairs(
    hashes: Sequence[tuple[int, int]],
    thumbs: Sequence[bytes],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Pair]:
    """Find the near duplicates, from the hashes of each image and its mirror image and from T * T grey levels.

    Each pair is found once, with `one` below `other`. Images that share a hash are paired only with the first of them.
    """
    details = _Details(thumbs)
    groups: dict[int, list[int]] = {}
    for position, (value, _) in enumerate(hashes):
        groups.setdefault(value, []).append(position)
    mirror_hash = dict(hashes)
    unique = np.asarray(list(groups), np.uint64)
    reflected = np.asarray([mirror_hash[value] for value in groups], np.uint64)
    members = list(groups.values())
    found: dict[tuple[int, int], bool] = {}

    def keep(pairs: Iterable[tuple[int, int]], flip: bool) -> None:
        for one, other in details.same(pairs, flip):
            found.setdefault((min(one, other), max(one, other)), flip)

    keep(((group[0], other) for group in members for other in group[1:]), False)
    strips = range(0, len(unique), _ROWS)
    with ThreadPoolExecutor(num_cores()) as pool:  # NumPy releases the GIL
        jobs = [pool.submit(_close, unique, reflected, top) for top in strips]
        for number, job in enumerate(jobs):
            for flip, (a, b) in enumerate(job.result()):
                keep(_image_pairs(members, a, b), bool(flip))
            progress(number + 1, len(strips))
    return [Pair(one, other, flip) for (one, other), flip in sorted(found.items())]


def correlation(one: bytes, other: bytes) -> float:
    """Return the correlation of two thumbnails' details, from -1 to 1; 0 if one of them has none."""
    details = _Details([one, other])
    return float(details.rows[0] @ details.rows[1])


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected components of at least two of `count` nodes, each sorted, in order of their first node."""
    ends = np.asarray(list(edges), np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), (count, count))
    groups: dict[int, list[int]] = {}
    for n, label in enumerate(connected_components(graph, directed=False)[1].tolist()):
        groups.setdefault(label, []).append(n)
    return [group for group in groups.values() if len(group) > 1]


class _Details:
    """High-pass filtered thumbnails with mean 0 and norm 1; zeros for flat ones."""

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
        """Yield the pairs whose details correlate; with `flip` those of an image with the mirror image of the other."""
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


def _image_pairs(members: Sequence[list[int]], a: Ints, b: Ints) -> Iterator[tuple[int, int]]:
    """Yield the pairs of images for pairs of hashes."""
    for one, other in zip(a.tolist(), b.tolist(), strict=True):
        yield from itertools.product(members[one][:_MAX_EQUAL], members[other][:_MAX_EQUAL])


def _close(hashes: Hashes, reflected: Hashes, top: int) -> list[tuple[Ints, Ints]]:
    """Return the pairs (a, b), a < b, whose hashes differ in at most BITS bits, for a in the strip from `top`.

    The first result compares hashes with hashes, the second with the hashes of mirror images.
    """
    rows = hashes[top : top + _ROWS, None]
    buffer = np.empty((len(rows), _COLUMNS), np.uint64)  # reused, so that it stays in the cache
    found: list[tuple[list[Ints], list[Ints]]] = [([], []), ([], [])]
    for left in range(top, len(hashes), _COLUMNS):
        for (ones, others), columns in zip(found, (hashes, reflected), strict=True):
            part = columns[None, left : left + _COLUMNS]
            different = np.bitwise_xor(rows, part, out=buffer[:, : part.shape[1]])
            hits = np.flatnonzero(_bits(different) <= BITS)
            a, b = hits // part.shape[1] + top, hits % part.shape[1] + left
            ones.append(a[a < b])
            others.append(b[a < b])
    return [(np.concatenate(ones), np.concatenate(others)) for ones, others in found]


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the number of set bits in each 64-bit number."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(values)
    byte_bits = np.asarray([n.bit_count() for n in range(256)], np.uint8)
    return byte_bits[values.view(np.uint8)].reshape(*values.shape, 8).sum(axis=-1, dtype=np.uint8)
