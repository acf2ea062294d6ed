"""Opening a source of labelled images: a known dataset, a folder or a manifest becomes an :class:`ImageData`.

Files are listed in known.py, folders.py and manifest.py. Here they are checked, split and counted. They become batches
in :mod:`vitreous.data.batches`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitreous.data.config import DataConfig
from vitreous.data.images.stored import ImagePath
from vitreous.data.shards.listing import find_shards, list_shards
from vitreous.data.sources.checks import check_readable, label_all, refuse_several_labels
from vitreous.data.sources.folders import list_folder
from vitreous.data.sources.image_data import ImageData, Split
from vitreous.data.sources.known import KNOWN, PixelSet, load_known
from vitreous.data.sources.listing import UNLABELLED, Listing, match_exclusions
from vitreous.data.sources.locating import find_source
from vitreous.data.sources.manifest import list_manifest
from vitreous.data.sources.scan import Progress, content_hash, scan, unopened
from vitreous.data.sources.split import absent_classes, copies_across, held_out, hold_out_val
from vitreous.data.sources.unlabelled import check_any_to_learn_from, list_unlabelled, with_unlabelled
from vitreous.data.sources.urls import is_store
from vitreous.errors import DataError, pluralize

__all__ = ["ImageData", "Split", "fingerprint_of", "list_source", "open_source", "without_excluded"]

_ORDER = ("all", "train", "val", "test")


def open_source(
    config: DataConfig,
    progress: Progress | None = None,
    hold_out: bool = True,
    record: object = None,
    *,
    needs_labels: bool = True,
    several: bool = False,
    unlabelled: Literal["refused", "left out", "kept"] = "refused",
    beside: str | None = None,
) -> ImageData:
    """Open the configured source and check every image.

    Every file is read once, in threads, to be hashed, decoded and measured. Files that cannot be decoded are left out
    and listed.

    Args:
        config: What to open, how to split it, and how strict to be.
        progress: Called with (done, total) while files are read.
        hold_out: Split val off train if the data has no val, as training needs it. If False, data without any split is
            a single split `all`, one class is enough, and train may be missing or lack classes; evaluation needs no
            more.
        record: What the training of a model held out of this source, from its model file; these images become val.
        needs_labels: If False, images without a label have the class :data:`~vitreous.data.sources.listing.UNLABELLED`,
            and no class needs to be in every split.
        several: Whether an image may have several labels; such data is refused otherwise.
        unlabelled: What happens to rows of a manifest with an empty label. `kept` ones become
            :attr:`ImageData.unlabelled`, without those that are also in another split.
        beside: A further source of images that are kept in this way, whatever their labels.

    Raises:
        UsageError: If the source is neither a path nor a known dataset.
        DataError: If it is missing, empty, has a single class, contradicts its own splits, or, with `strict`, has files
            that cannot be decoded.
    """
    listed = list_source(config, needs_labels=needs_labels, sets_aside=unlabelled != "refused")
    more = _list_beside(config, beside) if beside is not None else None
    if isinstance(listed, PixelSet):
        data = _from_pixels(config, listed, record)
        return data if more is None else with_unlabelled(config, data, (), progress, beside=more, by_pixels=True)
    if not several:
        refuse_several_labels(config.source, listed)
    listed = without_excluded(config, listed)
    data = _from_files(config, listed, progress, hold_out, record, needs_labels=needs_labels)
    aside = listed.unlabelled
    if more is not None or (aside and unlabelled == "kept"):
        return with_unlabelled(config, data, aside, progress, beside=more, by_pixels=listed.trusted)
    if not aside:
        return data
    tasks = "`--aux mae`" if data.several else "`--aux mae` or fixmatch"
    data.notes.append(
        f"{pluralize(len(aside), 'image')} without a label left out: {tasks}, with aux.unlabelled_ratio above 0, or "
        "self-training learns from them too"
    )
    return data


def _list_beside(config: DataConfig, source: str) -> tuple[DataConfig, Listing]:
    """List a source of images whose labels do not matter, less those that are excluded; also return its configuration.

    Raises:
        DataError: If none of them is left, or of a known dataset.
    """
    config = replace(config, source=source)
    listed = list_source(config, needs_labels=False)
    if isinstance(listed, PixelSet):
        raise DataError(f"{source} cannot be unlabelled images: give a folder of images, a manifest or shards")
    entries, notes = without_excluded(config, listed).entries, list(listed.notes)
    if excluded := len(listed.entries) - len(entries):
        notes.append(f"{pluralize(excluded, 'image')} excluded by {config.exclude}")
    check_any_to_learn_from(source, entries, "of val or test", "give others")
    return config, replace(listed, entries=entries, notes=notes)


def without_excluded(config: DataConfig, listing: Listing) -> Listing:
    """Return a listing less the images to exclude."""
    if not config.exclude:
        return listing
    entries = [*listing.entries, *listing.unlabelled]
    names, paths = [entry.name for entry in entries], [entry.path for entry in entries]
    dropped, notes = match_exclusions(config.exclude, names, paths, listing.root)
    kept, aside = (
        [entry for n, entry in enumerate(part, start=first) if n not in dropped]
        for part, first in ((listing.entries, 0), (listing.unlabelled, len(listing.entries)))
    )
    if entries and not kept and not aside:
        raise DataError(
            f"data.exclude {config.exclude} excludes all of the {pluralize(len(entries), 'image')} of {config.source}: "
            "remove lines from it"
        )
    return replace(listing, entries=kept, unlabelled=aside, notes=[*listing.notes, *notes])


def list_source(
    config: DataConfig, *, needs_labels: bool = True, sets_aside: bool = False, reads_sets: bool = False
) -> PixelSet | Listing:
    """Identify the source and list it, without opening any image of a folder or a manifest.

    Files are sorted by name and label, regardless of their order in a manifest or on disk. With `sets_aside`, images of
    a manifest or of shards that have no label are in :attr:`Listing.unlabelled`; they are an error otherwise. A source
    that does not need labels, and `reads_sets`, has the labels of a manifest or of shards where an image may have
    several.
    """
    path = find_source(config.source)
    if is_store(config.source):
        from vitreous.data.shards.remote import list_store

        listing: PixelSet | Listing = list_store(
            config.source,
            config.cache_gb,
            mixed=config.shuffle_shards,
            needs_labels=needs_labels,
            sets_aside=sets_aside,
            reads_sets=reads_sets,
        )
    elif path is None:
        listing = load_known(config.source, config.dir)
    elif (shards := find_shards(path)) is not None:
        listing = list_shards(shards, needs_labels=needs_labels, sets_aside=sets_aside, reads_sets=reads_sets)
    elif path.is_dir():
        listing = list_folder(path) if needs_labels else list_unlabelled(path)
    else:
        listing = list_manifest(path, needs_labels=needs_labels, sets_aside=sets_aside, reads_sets=reads_sets)
    if isinstance(listing, Listing):
        for part in (listing.entries, listing.unlabelled):
            part.sort(key=lambda entry: (entry.name, entry.label, entry.split or ""))
    return listing


def _from_pixels(config: DataConfig, pixels: PixelSet, record: object) -> ImageData:
    images = np.concatenate([images for images, _ in pixels.splits.values()])
    labels = np.concatenate([labels for _, labels in pixels.splits.values()])
    sides = np.concatenate([np.full(len(labels), split) for split, (_, labels) in pixels.splits.items()])
    prefixes = {split: split if len(pixels.splits) > 1 else config.source for split in pixels.splits}
    names = [f"{prefixes[split]}/{n}" for split, (_, labels) in pixels.splits.items() for n in range(len(labels))]
    digests = [content_hash(image.data) for image in images]
    notes: list[str] = []
    if config.exclude:
        dropped, notes = match_exclusions(config.exclude, names)
        kept = np.setdiff1d(np.arange(len(names)), sorted(dropped))
        images, labels, sides = images[kept], labels[kept], sides[kept]
        names, digests = [names[n] for n in kept], [digests[n] for n in kept]
    if pixels.test_fraction:  # never stratified, so that scores stay comparable with earlier versions
        sides = np.where(held_out(digests, pixels.test_fraction, salt=1), "test", sides)
    sides, how, new_record = hold_out_val(config, digests, labels.tolist(), sides, record)
    notes += [how, *absent_classes(pixels.classes, labels, sides)]
    splits, order = _by_split(pixels.classes, names, labels, digests, sides, arrays=images)
    size = (int(images.shape[1]), int(images.shape[2]))
    return ImageData(
        name=config.source,
        classes=pixels.classes,
        splits=splits,
        channels=int(images.shape[3]),
        native_size=size,
        median_size=size,
        fingerprint=fingerprint_of(names, [pixels.classes[label] for label in labels], digests),
        order=order,
        held_out=new_record,
        notes=notes,
    )


def _from_files(
    config: DataConfig,
    listing: Listing,
    progress: Progress | None,
    hold_out: bool,
    record: object,
    *,
    needs_labels: bool,
) -> ImageData:
    entries, notes = listing.entries, list(listing.notes)
    if listing.trusted:
        scanned = [unopened(entry.name, entry.path) for entry in entries]
        measured = scan([entry.path for entry in entries[:: len(entries) // 256 + 1]])
    else:
        scanned = measured = scan([entry.path for entry in entries], progress=progress)
    unreadable = check_readable(config, entries, scanned)
    readable = [n for n, file in enumerate(scanned) if not file.facts.reason]
    listed = {entry.label for entry in entries}
    entries, digests = [entries[n] for n in readable], [scanned[n].digest for n in readable]
    classes, labels, without = label_all(
        config.source, listing, entries, listed, needs_labels=needs_labels, hold_out=hold_out
    )
    notes += without
    names = [entry.name for entry in entries]
    sides = np.asarray([entry.split or ("train" if hold_out else "all") for entry in entries])
    notes += copies_across(names, digests, sides)
    new_record = None
    if hold_out:
        strata = labels if labels.ndim == 2 else labels.tolist() if needs_labels else None
        sides, how, new_record = hold_out_val(config, digests, strata, sides, record)
        notes.append(how)
    notes += absent_classes(classes, labels, sides, no_class=None if needs_labels else UNLABELLED)
    splits, order = _by_split(classes, names, labels, digests, sides, paths=[entry.path for entry in entries])
    facts = [file.facts for file in measured if not file.facts.reason]
    sizes = np.asarray([fact.size for fact in facts])
    median = (int(np.median(sizes[:, 0])), int(np.median(sizes[:, 1])))
    return ImageData(
        name=config.source if config.source in KNOWN else _plain_source_name(config.source),
        classes=classes,
        splits=splits,
        channels=1 if all(fact.grey for fact in facts) else 3,
        native_size=median if (sizes == sizes[0]).all() else None,
        median_size=median,
        fingerprint=fingerprint_of(names, [entry.label for entry in entries], digests),
        order=order,
        held_out=new_record,
        unreadable=unreadable,
        notes=notes,
    )


def _by_split(
    classes: tuple[str, ...],
    names: Sequence[str],
    labels: npt.NDArray[Any],
    digests: Sequence[str],
    sides: npt.NDArray[np.str_],
    *,
    paths: Sequence[ImagePath] | None = None,
    arrays: npt.NDArray[np.uint8] | None = None,
) -> tuple[dict[str, Split], str]:
    """Return the splits and the hash of their order; runs on data of equal hash see the same images in each step.

    The hash is that of `repr(classes)` and, for each split, `repr((its name, [(name, label, digest) of each image]))`.
    States to resume from have it. It is fed image by image: with thousands of labels, the whole text takes gigabytes.
    """
    splits, order = {}, hashlib.blake2b(repr(classes).encode(), digest_size=16)
    for name in _ORDER:
        members = np.flatnonzero(sides == name).tolist()
        order.update(f"({name!r}, [".encode())
        for n in members:
            comma = "" if n == members[0] else ", "
            order.update(f"{comma}({names[n]!r}, ".encode())
            order.update(_label_text(labels[n]))
            order.update(f", {digests[n]!r})".encode())
        order.update(b"])")
        if members:
            splits[name] = Split(
                labels[members],
                tuple(names[n] for n in members),
                paths=None if paths is None else [paths[n] for n in members],
                arrays=None if arrays is None else arrays[members],
                digests=tuple(digests[n] for n in members),
            )
    return splits, order.hexdigest()


def _label_text(label: npt.NDArray[Any]) -> bytes:
    """Return ``repr(label.tolist())`` of a class, (), or of labels of 0 and 1, (K,), without a list of K numbers."""
    if label.ndim == 0:
        return repr(label.tolist()).encode()
    text = np.tile(np.frombuffer(b"0, ", np.uint8), len(label))
    text[::3] += label.astype(np.uint8)
    return b"[" + text[:-2].tobytes() + b"]"


def fingerprint_of(names: Sequence[str], labels: Sequence[str], digests: Sequence[str]) -> str:
    """Return the BLAKE2b of the sorted (name, label, content hash) of all images, 32 hex digits."""
    total = hashlib.blake2b(digest_size=16)
    for row in sorted(zip(names, labels, digests, strict=True)):
        total.update(repr(row).encode())
    return total.hexdigest()


def _plain_source_name(source: str) -> str:
    path = Path(os.path.expanduser(source)).resolve()
    return (path.name if path.is_dir() else path.stem) or "data"
