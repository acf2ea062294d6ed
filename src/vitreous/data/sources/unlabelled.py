"""Images whose labels do not matter: those of a folder, in class folders or not, and those beside labelled ones."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitreous.data.config import DataConfig
from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.checks import check_readable
from vitreous.data.sources.finding import find_images
from vitreous.data.sources.image_data import ImageData, Split
from vitreous.data.sources.listing import SPLIT_NAMES, UNLABELLED, Entry, Listing, first_ten, plain_name, pluralize
from vitreous.data.sources.scan import Progress, content_hash, scan
from vitreous.errors import DataError

__all__ = ["list_unlabelled", "with_unlabelled", "without_labels"]

_GROUP = 64  # images that are fetched and decoded at once to compare their pixels


def list_unlabelled(root: Path) -> Listing:
    """List all images under a folder. One in a class folder has that label, any other is :data:`UNLABELLED`.

    Folders are splits if one of them is named `train` (or `training`). Images beside them are left out.
    """
    images, others, notes, _ = find_images(root)
    found = [(path, path.relative_to(root).parts) for path in images]
    return without_labels(root, found, [path.relative_to(root).as_posix() for path in others], notes)


def without_labels(
    root: Path, relative: Sequence[tuple[ImagePath, tuple[str, ...]]], others: Sequence[str], notes: list[str]
) -> Listing:
    """List images as :func:`list_unlabelled` does, given the parts of their paths below ``root``."""
    if not relative:
        rest = f" (it has {pluralize(len(others), 'other file')})" if others else ""
        rest += "".join(f"; {note}" for note in notes)
        raise DataError(f"folder {root} holds no images{rest}: give a folder of images, at any depth")
    has_splits = any(len(parts) > 1 and SPLIT_NAMES.get(parts[0].lower()) == "train" for _, parts in relative)
    entries = []
    for path, parts in relative:
        split = SPLIT_NAMES.get(parts[0].lower()) if has_splits and len(parts) > 1 else None
        if has_splits and split is None:
            continue
        below = parts[1:] if has_splits else parts
        label = plain_name(below[0]) if len(below) > 1 else UNLABELLED
        entries.append(Entry(path, "/".join(parts), label, split))
    if others:
        notes.append(f"{pluralize(len(others), 'file')} ignored, not images (first: {others[0]})")
    if beside := len(relative) - len(entries):
        notes.append(f"{pluralize(beside, 'image')} ignored, beside the folders of the splits")
    return Listing(root, entries, notes)


def with_unlabelled(
    config: DataConfig,
    data: ImageData,
    entries: Sequence[Entry],
    progress: Progress | None = None,
    *,
    by_pixels: bool = False,
) -> ImageData:
    """Add images without a label to opened data.

    Left out, with a note, are images that are also in another split, by their content, and those that the entries
    themselves hold for `val` or `test`.

    Args:
        config: How strict to be.
        data: The labelled images.
        entries: Where the unlabelled ones are. Labels do not matter.
        progress: Called with (done, total) while files are read.
        by_pixels: Compare decoded pixels, with those of val and test only, because `data` has no hash of each file.
    """
    held = [entry for entry in entries if entry.split not in (None, "train")]
    entries = sorted(
        (entry for entry in entries if entry.split in (None, "train")), key=lambda entry: (entry.name, str(entry.path))
    )
    notes = [f"{pluralize(len(held), 'unlabelled image')} of val or test left out"] if held else []
    scanned = scan([entry.path for entry in entries], progress=progress)
    unreadable = check_readable(config, entries, scanned) if entries else []
    read = [(entry, file.digest) for entry, file in zip(entries, scanned, strict=True) if not file.facts.reason]
    split = _split_of(read)
    of_split = _pixel_hashes if by_pixels else _file_hashes
    compared = {name: own for name, own in data.splits.items() if name != "train" or not by_pixels}
    place = {content: name for name, own in compared.items() for content in of_split(own)}
    places = [place.get(content) for content in of_split(split)]
    for name in compared:
        if copies := [entry.name for (entry, _), found in zip(read, places, strict=True) if found == name]:
            notes.append(f"{pluralize(len(copies), 'unlabelled image')} also in {name}, left out: {first_ten(copies)}")
    kept = _split_of([each for each, found in zip(read, places, strict=True) if found is None])
    return replace(
        data,
        unlabelled=kept if len(kept) else None,
        unreadable=data.unreadable + unreadable,
        notes=data.notes + notes,
    )


def _split_of(read: Sequence[tuple[Entry, str]]) -> Split:
    """Return a split of entries with the hashes of their content; all labels are 0."""
    names, digests = tuple(entry.name for entry, _ in read), tuple(digest for _, digest in read)
    return Split(np.zeros(len(read), np.int64), names, paths=[entry.path for entry, _ in read], digests=digests)


def _file_hashes(split: Split) -> Sequence[str]:
    return split.digests


def _pixel_hashes(split: Split) -> Sequence[str]:
    """Return a hash of the size and the pixels of each image."""

    def of_image(index: int) -> str:
        image = split.image(index)
        return content_hash(repr(image.size).encode() + image.tobytes())

    found: list[str] = []
    with ThreadPoolExecutor() as pool:
        for group in split.fetch_in_groups(range(len(split)), _GROUP):
            found += pool.map(of_image, group)
    return found
