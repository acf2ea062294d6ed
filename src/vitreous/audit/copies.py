"""Copies among the images of an audit, and whether they are leaks, label conflicts, or harmless."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vitreous.audit.duplicates import MIN_SIDE, Pair, components, near_pairs
from vitreous.audit.findings import AuditImage, Finding
from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.scan import Progress

__all__ = ["Copies", "check_copies", "find_copies"]

HashPixels = Callable[[Sequence[ImagePath]], Sequence[str]]
"""Returns a hash of the pixels of each file; empty for a file that cannot be read."""


@dataclass(frozen=True)
class Copies:
    """Copies, by image index."""

    exact: list[list[int]]  # groups of images with equal pixels
    near: list[Pair]  # pairs that show the same scene without being equal


def find_copies(images: Sequence[AuditImage], hash_pixels: HashPixels, progress: Progress) -> Copies:
    """Compare all readable images with each other.

    Files with equal bytes are equal. Near copies of the same size are fully decoded, all by one call of `hash_pixels`,
    to tell whether their pixels are equal.
    """
    by_digest = defaultdict(list)
    for n, image in enumerate(images):
        if not image.facts.reason:
            by_digest[image.facts.digest].append(n)
    groups = list(by_digest.values())
    comparable = [group[0] for group in groups if min(images[group[0]].facts.size) >= MIN_SIDE]
    facts = [images[n].facts for n in comparable]
    pairs = [
        Pair(comparable[pair.one], comparable[pair.other], pair.mirrored)
        for pair in near_pairs([one.hashes for one in facts], [one.thumb for one in facts], progress)
    ]
    equal = set(_equal(images, pairs, hash_pixels))
    edges = [(group[0], other) for group in groups for other in group[1:]]
    edges += [(pair.one, pair.other) for pair in equal]
    return Copies(components(len(images), edges), [pair for pair in pairs if pair not in equal])


def _equal(images: Sequence[AuditImage], pairs: Sequence[Pair], hash_pixels: HashPixels) -> Iterator[Pair]:
    def is_candidate(pair: Pair) -> bool:
        one, other = images[pair.one], images[pair.other]
        return one.path is not None and not pair.mirrored and one.facts.size == other.facts.size

    candidates = [pair for pair in pairs if is_candidate(pair)]
    indices = sorted({n for pair in candidates for n in (pair.one, pair.other)})
    paths = [path for n in indices if (path := images[n].path) is not None]
    digests = dict(zip(indices, hash_pixels(paths), strict=True))
    yield from (pair for pair in candidates if digests[pair.one] and digests[pair.one] == digests[pair.other])


def check_copies(images: Sequence[AuditImage], copies: Copies) -> Iterator[Finding]:
    """Yield findings about copies."""
    group_of = {n: group for group in copies.exact for n in group}
    for group in copies.exact:
        splits = {images[n].split for n in group}
        labels = {images[n].label for n in group if images[n].has_label}
        text = "" if len({images[n].path or n for n in group}) > 1 else "one file that the table lists twice"
        if len(labels) > 1:
            yield Finding("two-labels", text, tuple(group), _droppable(images, group, group))
        if len(splits) > 1:
            yield Finding("leak", text, tuple(group), _droppable(images, group, _surplus(images, group)))
        elif len(labels) < 2:
            yield Finding("copies", text, tuple(group), _droppable(images, group, group[1:]))
    kinds: dict[str, list[Pair]] = defaultdict(list)
    for pair in copies.near:
        ones, others = (group_of.get(n, [n]) for n in (pair.one, pair.other))
        both = [(images[a], images[b]) for a in ones for b in others]
        problems = {
            "near-leak": any(a.split != b.split for a, b in both),
            "near-two-labels": any(a.label != b.label and a.has_label and b.has_label for a, b in both),
        }
        for kind in [kind for kind, is_found in problems.items() if is_found] or ["near-copies"]:
            kinds[kind].append(pair)
    for kind, pairs in kinds.items():
        yield from _scenes(images, kind, pairs, group_of)


def _scenes(
    images: Sequence[AuditImage], kind: str, pairs: Sequence[Pair], group_of: dict[int, list[int]]
) -> Iterator[Finding]:
    """Yield a finding for each group of images that pairs connect."""
    mirrored = {n for pair in pairs if pair.mirrored for n in (pair.one, pair.other)}
    paired = {n for pair in pairs for end in (pair.one, pair.other) for n in group_of.get(end, [end])}
    edges = [(pair.one, pair.other) for pair in pairs]
    edges += [(group[0], n) for group in group_of.values() if paired & set(group) for n in group[1:]]
    for group in components(len(images), edges):
        if paired.isdisjoint(group):
            continue
        drop = {"near-leak": _surplus(images, group), "near-two-labels": group}.get(kind, [])
        text = "one is the mirror image of another" if mirrored & set(group) else ""
        yield Finding(kind, text, tuple(group), _droppable(images, group, drop))


def _surplus(images: Sequence[AuditImage], group: Sequence[int]) -> list[int]:
    """Return the images to drop, so that one split keeps its own: test before val before train, to compare scores."""
    splits = {images[n].split for n in group}
    kept = next(split for split in ("test", "val", "train", "all") if split in splits)
    return [n for n in group if images[n].split != kept]


def _droppable(images: Sequence[AuditImage], group: Iterable[int], drop: Iterable[int]) -> tuple[int, ...]:
    """Return those of `drop` whose name belongs to no image that is kept: a table may list a file twice."""
    dropped = set(drop)
    kept = {images[n].name for n in group if n not in dropped}
    return tuple(n for n in sorted(dropped) if images[n].name not in kept)
