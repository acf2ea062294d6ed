"""What copies mean: which pictures are one and the same, and what of it is a leak, a wrong label, or only a series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from vitreous.audit.duplicates import LEAST_SIDE, Pair, components, near_pairs
from vitreous.audit.findings import Finding, Picture
from vitreous.data.sources.scan import Progress

__all__ = ["Copies", "check_copies", "find_copies"]

PixelsOf = Callable[[Sequence[Path]], Sequence[str]]
"""Hashes of the pixels of files; empty where one cannot be read."""


class Copies:
    """Which pictures are the same.

    Attributes:
        exact: Groups of positions of pictures that are equal in every pixel.
        near: Pairs that show the same scene and are not equal.
    """

    def __init__(self, exact: list[list[int]], near: list[Pair]) -> None:
        self.exact, self.near = exact, near


def find_copies(pictures: Sequence[Picture], pixels_of: PixelsOf, progress: Progress) -> Copies:
    """Compare all pictures that can be read with each other.

    Files of equal bytes are equal; those that show the same at the same size are decoded once more, whole, to tell
    equal from nearly so.

    Args:
        pictures: All pictures.
        pixels_of: Called once with the files to decode.
        progress: Called with (done, total) while hashes are compared.
    """
    by_digest = defaultdict(list)
    for n, picture in enumerate(pictures):
        if not picture.look.reason:
            by_digest[picture.look.digest].append(n)
    groups = list(by_digest.values())
    comparable = [own[0] for own in groups if min(pictures[own[0]].look.size) >= LEAST_SIDE]
    looks = [pictures[n].look for n in comparable]
    pairs = [
        Pair(comparable[pair.one], comparable[pair.other], pair.mirrored)
        for pair in near_pairs([look.hashes for look in looks], [look.thumb for look in looks], progress)
    ]
    equal = set(_equal(pictures, pairs, pixels_of))
    edges = [(own[0], other) for own in groups for other in own[1:]]
    edges += [(pair.one, pair.other) for pair in equal]
    return Copies(components(len(pictures), edges), [pair for pair in pairs if pair not in equal])


def _equal(pictures: Sequence[Picture], pairs: Sequence[Pair], pixels_of: PixelsOf) -> Iterator[Pair]:
    """Yield the pairs that are equal in every pixel."""

    def may_be(pair: Pair) -> bool:
        one, other = pictures[pair.one], pictures[pair.other]
        return one.path is not None and not pair.mirrored and one.look.size == other.look.size

    candidates = [pair for pair in pairs if may_be(pair)]
    positions = sorted({n for pair in candidates for n in (pair.one, pair.other)})
    paths = [path for n in positions if (path := pictures[n].path) is not None]
    digests = dict(zip(positions, pixels_of(paths), strict=True))
    yield from (pair for pair in candidates if digests[pair.one] and digests[pair.one] == digests[pair.other])


def check_copies(pictures: Sequence[Picture], copies: Copies) -> Iterator[Finding]:
    """Yield what is wrong with the copies."""
    group_of = {n: group for group in copies.exact for n in group}
    for group in copies.exact:
        splits, labels = ({getattr(pictures[n], what) for n in group} for what in ("split", "label"))
        twice = "" if len({pictures[n].path or n for n in group}) > 1 else "one file that the table lists twice"
        if len(labels) > 1:
            yield Finding("two-labels", twice, tuple(group), _droppable(pictures, group, group))
        if len(splits) > 1:
            surplus = _surplus(pictures, group)
            yield Finding("leak", twice, tuple(group), _droppable(pictures, group, surplus))
        elif len(labels) == 1:
            yield Finding("copies", twice, tuple(group), _droppable(pictures, group, group[1:]))
    kinds: dict[str, list[Pair]] = defaultdict(list)
    for pair in copies.near:
        ones, others = (group_of.get(n, [n]) for n in (pair.one, pair.other))
        both = [(pictures[a], pictures[b]) for a in ones for b in others]
        across = any(a.split != b.split for a, b in both)
        disagree = any(a.label != b.label for a, b in both)
        if across:
            kinds["near-leak"].append(pair)
        if disagree:
            kinds["near-two-labels"].append(pair)
        if not across and not disagree:
            kinds["near-copies"].append(pair)
    for kind, pairs in kinds.items():
        yield from _scenes(pictures, kind, pairs, group_of)


def _scenes(
    pictures: Sequence[Picture], kind: str, pairs: Sequence[Pair], group_of: dict[int, list[int]]
) -> Iterator[Finding]:
    """Yield a finding for each group of pictures that pairs join."""
    mirrored = {n for pair in pairs if pair.mirrored for n in (pair.one, pair.other)}
    wanted = {n for pair in pairs for end in (pair.one, pair.other) for n in group_of.get(end, [end])}
    edges = [(pair.one, pair.other) for pair in pairs]
    edges += [(group[0], n) for group in group_of.values() if wanted & set(group) for n in group[1:]]
    for group in components(len(pictures), edges):
        if wanted.isdisjoint(group):
            continue
        drop = {"near-leak": _surplus(pictures, group), "near-two-labels": group}.get(kind, [])
        text = "one is the mirror image of another" if mirrored & set(group) else ""
        yield Finding(kind, text, tuple(group), _droppable(pictures, group, drop))


def _surplus(pictures: Sequence[Picture], group: Iterable[int]) -> list[int]:
    """Those of a group over several splits that must go for the scores to be honest: all but those of one split.

    Test is kept before val, and val before train: what is measured stays as it is, and comparable.
    """
    members = list(group)
    splits = {pictures[n].split for n in members}
    kept = next(split for split in ("test", "val", "train", "all") if split in splits)
    return [n for n in members if pictures[n].split != kept]


def _droppable(pictures: Sequence[Picture], group: Iterable[int], drop: Iterable[int]) -> tuple[int, ...]:
    """Those of ``drop`` that a list can name without naming one that is to stay: a table may list a file twice."""
    chosen = set(drop)
    kept = {pictures[n].name for n in group if n not in chosen}
    return tuple(n for n in sorted(chosen) if pictures[n].name not in kept)
