"""Which image goes into which shard: a function of the images' contents, so a killed job goes on with the same plan.

Images lie in the order of their hashes. That mixes classes, which shuffling within a few shards needs, and does not
depend on names. Images that training would hold out lie in shards of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.data.config import DataConfig
from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.checks import label_matrix
from vitreous.data.sources.listing import Entry
from vitreous.data.sources.scan import Scanned
from vitreous.data.sources.split import hold_out_val
from vitreous.errors import DataError

__all__ = ["Planned", "ShardPlan", "plan_shards"]


@dataclass(frozen=True, slots=True)
class Planned:
    """An image that is to be written."""

    path: ImagePath
    name: str
    label: int | tuple[int, ...] | None  # positions in the classes; None if several are possible and none is given
    split: str | None  # as the data has it
    length: int
    scanned: Scanned


@dataclass(frozen=True)
class ShardPlan:
    """The images of one shard, in their order."""

    file: str
    first: int  # position of its first image in its split
    images: Sequence[Planned]

    def digest(self) -> str:
        """Return the hash of everything that the shard and its rows in the index depend on."""
        total = hashlib.sha256(self.file.encode())
        for image in self.images:
            row = (image.name, image.label, image.split, image.scanned.digest)
            total.update(repr(row).encode("utf-8", "surrogateescape"))
        return total.hexdigest()


def plan_shards(
    config: DataConfig,
    entries: Sequence[Entry],
    scanned: Sequence[Scanned],
    lengths: Sequence[int],
    classes: Sequence[str],
    *,
    shard_bytes: int,
) -> list[ShardPlan]:
    """Distribute readable images over shards of about ``shard_bytes`` bytes.

    A shard is named after the split of its images: that of the data, or else the one that training makes with these
    options. The index records only the former, so that training may still hold out another part.
    """
    index = {name: n for n, name in enumerate(classes)}
    digests = [one.digest for one in scanned]
    has_several = any(entry.labels is not None for entry in entries)
    labels = [_positions(entry, index, has_several=has_several) for entry in entries]
    strata = label_matrix(classes, entries) if has_several else labels
    sides = np.asarray([entry.split or "train" for entry in entries], "<U5")
    with contextlib.suppress(DataError):  # too few images to hold any out: all are named after what there is
        sides = hold_out_val(config, digests, strata, sides)[0]
    plans = []
    for split in sorted(set(sides.tolist())):
        members = sorted(np.flatnonzero(sides == split).tolist(), key=lambda n: (digests[n], entries[n].name))
        images = [
            Planned(entries[n].path, entries[n].name, labels[n], entries[n].split, lengths[n], scanned[n])
            for n in members
        ]
        plans += _cut(split, images, shard_bytes)
    return plans


def _positions(entry: Entry, index: Mapping[str, int], *, has_several: bool) -> int | tuple[int, ...] | None:
    if entry.labels is None:
        return None if has_several else index[entry.label]
    return tuple(sorted(index[name] for name in entry.labels))


def _cut(split: str, images: Sequence[Planned], shard_bytes: int) -> list[ShardPlan]:
    """Cut images into consecutive shards, each as full as possible and with at least one image."""
    starts, filled = [0], 0
    for n, image in enumerate(images):
        if filled and filled + image.length > shard_bytes:
            starts.append(n)
            filled = 0
        filled += image.length
    ends = [*starts[1:], len(images)]
    return [
        ShardPlan(f"{split}-{n:06d}.tar", start, images[start:end])
        for n, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
