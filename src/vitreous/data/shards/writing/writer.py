"""Writing shards: images are read and checked, distributed, and packed into tar files, several at a time.

A job that was killed goes on where it stopped. Each shard is written to a temporary file, synced and renamed, and only
then recorded; the index comes last. What is recorded until then lies in a folder `.unfinished` of the destination.

Threads write the shards. Reading, hashing and decoding release Python's lock, so processes would gain nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from vitreous import __version__
from vitreous.data.config import DataConfig
from vitreous.data.images.content import content_hash
from vitreous.data.images.formats import FORMATS, detect_format
from vitreous.data.images.reading import open_image_file
from vitreous.data.shards.index import Index, Row, ShardEntry
from vitreous.data.shards.tar import end_of_tar, header_of, padding
from vitreous.data.shards.writing.destination import Destination
from vitreous.data.shards.writing.known import as_entries
from vitreous.data.shards.writing.planning import Planned, ShardPlan, plan_shards
from vitreous.data.sources.known import PixelSet
from vitreous.data.sources.listing import Entry, Listing, first_ten, match_exclusions, ordered_classes
from vitreous.data.sources.opening import list_source
from vitreous.data.sources.scan import Progress, scan
from vitreous.errors import DataError
from vitreous.machine.cores import num_cores

__all__ = ["Written", "write_shards"]

Bar = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Written:
    """What :func:`write_shards` did."""

    images: int
    shards: int
    bytes: int
    kept: int  # shards that an earlier, interrupted job had written
    unreadable: list[tuple[str, str]]  # name and reason of each file left out
    notes: list[str]


def write_shards(
    config: DataConfig,
    destination: Destination,
    *,
    shard_bytes: int = 64 << 20,
    workers: int | None = None,
    needs_labels: bool = True,
    bar: Bar = lambda label: nullcontext(lambda done, total: None),
) -> Written:
    """Pack the images of a source into shards, or go on with an interrupted job.

    Args:
        config: The source, the list of exclusions, and the split that training will make.
        destination: A folder of this machine or in a store, which is empty or has an interrupted job of this source.
        shard_bytes: Bytes of images in a shard; a larger image has a shard of its own.
        workers: Shards that are written at a time, and images read at a time; None: one per core.
        needs_labels: Whether images without a label are an error.
        bar: Opens a progress bar.

    Raises:
        DataError: If there are no images, or some change while they are packed.
        UsageError: If the destination has other content.
    """
    listing, notes = _list(config, needs_labels=needs_labels)
    entries = listing.entries
    destination.begin({"source": config.source, "shard_bytes": shard_bytes, "val_fraction": config.val_fraction})
    with bar("read") as progress:
        scanned = scan([entry.path for entry in entries], workers, progress)
    unreadable = [(e.name, s.facts.reason) for e, s in zip(entries, scanned, strict=True) if s.facts.reason]
    if unreadable and (config.strict or len(unreadable) == len(entries)):
        named = first_ten([f"{name}: {reason}" for name, reason in unreadable], "; ")
        raise DataError(
            f"{len(unreadable):,} of {len(entries):,} files cannot be read ({named}): repair or remove them"
        )
    kept = [n for n, one in enumerate(scanned) if not one.facts.reason]
    entries, scanned = [entries[n] for n in kept], [scanned[n] for n in kept]
    classes = listing.classes or ordered_classes({entry.label for entry in entries})
    lengths = [_length(entry) for entry in entries]
    plans = plan_shards(config, entries, scanned, lengths, classes, shard_bytes=shard_bytes)
    destination.keep_only({plan.file for plan in plans})
    shards, reused = _write_all(plans, destination, workers, bar)
    without_labels = not needs_labels and any(entry.is_unlabelled for entry in entries)
    several = any(entry.labels is not None for entry in entries)
    index = Index(classes, listing.classes is not None, shards, f"vitreous {__version__}", without_labels, several)
    destination.finish(index.to_json())
    total = sum(shard.bytes for shard in shards)
    return Written(len(entries), len(shards), total, reused, unreadable, notes)


def _list(config: DataConfig, *, needs_labels: bool) -> tuple[Listing, list[str]]:
    listed = _list_labelled(config) if needs_labels else _list_any(config)
    listing = as_entries(listed, config) if isinstance(listed, PixelSet) else listed
    notes = list(listing.notes)
    if config.exclude:
        names, paths = [entry.name for entry in listing.entries], [entry.path for entry in listing.entries]
        dropped, more = match_exclusions(config.exclude, names, paths, listing.root)
        listing.entries = [entry for n, entry in enumerate(listing.entries) if n not in dropped]
        notes += more
    if not listing.entries:
        raise DataError(f"{config.source}: no image is left, {config.exclude} excludes all of them")
    return listing, notes


def _list_labelled(config: DataConfig) -> PixelSet | Listing:
    """List images that all have a label; where only labels are missing, the error says how to do without."""
    try:
        listed = list_source(config)
        if listed.classes == ():
            raise DataError(f"{config.source}: no image has a label: add some")
    except DataError as error:
        with contextlib.suppress(DataError):
            list_source(config, needs_labels=False)
            error = DataError(f"{error}. --no-labels packs images without a label too")
        raise error from None
    return listed


def _list_any(config: DataConfig) -> PixelSet | Listing:
    """List images with a label, or several, and without; labels that cannot be read are none, with a note."""
    note = None
    try:
        listed = list_source(config, needs_labels=False, reads_sets=True)
        if listed.classes != ():
            return listed
    except DataError as error:
        note = f"labels are left out: {error}"
    listed = list_source(config, needs_labels=False)
    if note is not None and isinstance(listed, Listing):
        listed.notes.append(note)
    return listed


def _length(entry: Entry) -> int:
    length = getattr(entry.path, "length", None)
    return os.stat(entry.path).st_size if length is None else int(length)


def _write_all(
    plans: Sequence[ShardPlan], destination: Destination, workers: int | None, bar: Bar
) -> tuple[list[ShardEntry], int]:
    """Write the shards that are not there yet; return all, and how many were there."""
    digests = [plan.digest() for plan in plans]
    shards = {
        plan.file: found
        for plan, digest in zip(plans, digests, strict=True)
        if (found := destination.find(plan.file, digest)) is not None
    }
    reused, done = len(shards), sum(len(shard.rows) for shard in shards.values())
    total = sum(len(plan.images) for plan in plans)
    todo = [(plan, digest) for plan, digest in zip(plans, digests, strict=True) if plan.file not in shards]
    with bar("write") as progress, ThreadPoolExecutor(workers or num_cores()) as pool:
        try:
            for shard in pool.map(lambda job: _write_one(job[0], job[1], destination), todo):
                shards[shard.file] = shard
                done += len(shard.rows)
                progress(done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [shards[plan.file] for plan in plans], reused


def _write_one(plan: ShardPlan, digest: str, destination: Destination) -> ShardEntry:
    """Write a shard and record it."""
    sha256 = hashlib.sha256()
    with destination.create(plan.file) as path, open(path, "wb") as file:
        rows, position = [], 0

        def put(part: bytes) -> None:
            nonlocal position
            file.write(part)
            sha256.update(part)
            position += len(part)

        for n, image in enumerate(plan.images, start=plan.first):
            content = _content(image)
            extension = FORMATS[detect_format(content[:64])].extensions[0]
            suffix, label = _label_file(image.label)
            put(header_of(f"{n:09d}{extension}", len(content)))
            rows.append(_row(image, position, len(content)))
            put(content + padding(len(content)))
            put(header_of(f"{n:09d}{suffix}", len(label)) + label + padding(len(label)))
        put(end_of_tar())
    shard = ShardEntry(plan.file, position, sha256.hexdigest(), rows)
    destination.record(shard, digest)
    return shard


def _label_file(label: int | tuple[int, ...] | None) -> tuple[str, bytes]:
    """Return ending and content of the file beside an image that has its label, or all of them, null if not given."""
    if isinstance(label, int):
        return ".cls", str(label).encode()
    return ".json", json.dumps({"labels": label}).encode()


def _content(image: Planned) -> bytes:
    with open_image_file(image.path) as content:
        if content_hash(content.data) != image.scanned.digest:
            raise DataError(f"{image.path} changed while it was packed: run the same command again")
        return content.data


def _row(image: Planned, offset: int, length: int) -> Row:
    (height, width), grey = image.scanned.facts.size, image.scanned.facts.grey
    return Row(image.name, image.label, image.split, offset, length, image.scanned.digest, height, width, grey)
