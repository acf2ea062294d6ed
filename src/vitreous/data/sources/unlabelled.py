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
from vitreous.data.sources.listing import SPLIT_NAMES, UNLABELLED, Entry, Listing, first_ten, plain_name
from vitreous.data.sources.scan import Progress, content_hash, scan
from vitreous.errors import DataError, pluralize

__all__ = ["check_any_to_learn_from", "list_unlabelled", "with_unlabelled", "without_labels"]

_BARE_FOLDERS = ("unlabelled", "unlabeled")  # in lower case; STL-10 has one beside train and test
_GROUP = 64  # images that are fetched and decoded at once to compare their pixels


def list_unlabelled(root: Path) -> Listing:
    """List all images under a folder. One in a class folder has that label, any other is :data:`UNLABELLED`.

    Folders with the name of a split (:data:`SPLIT_NAMES`) are splits, and all other images are of train. Where one of
    these folders is `train`, images outside the splits are left out, except those of a folder `unlabelled` (or
    `unlabeled`).

    Raises:
        DataError: If there are no images, or all are of val or test.
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
    folders = [parts[0].lower() if len(parts) > 1 else "" for _, parts in relative]
    splits = {SPLIT_NAMES[folder] for folder in folders if folder in SPLIT_NAMES}
    entries = []
    for (path, parts), folder in zip(relative, folders, strict=True):
        split, is_bare = SPLIT_NAMES.get(folder), folder in _BARE_FOLDERS
        if "train" in splits and split is None and not is_bare:
            continue
        below = parts[1:] if split else parts
        label = UNLABELLED if is_bare or len(below) < 2 else plain_name(below[0])
        entries.append(Entry(path, "/".join(parts), label, split or ("train" if splits else None)))
    check_any_to_learn_from(root, entries, "in folders of val or test", "give others, at any depth")
    if others:
        notes.append(f"{pluralize(len(others), 'file')} ignored, not images (first: {others[0]})")
    if beside := len(relative) - len(entries):
        notes.append(f"{pluralize(beside, 'image')} ignored, beside the folders of the splits")
    return Listing(root, entries, notes)


def check_any_to_learn_from(source: object, entries: Sequence[Entry], held: str, remedy: str) -> None:
    """Refuse images that are all of val or test, where training needs some.

    Args:
        source: What the user gave, for the message.
        entries: The images.
        held: Where those of val and test are, in words.
        remedy: What to do, in words.

    Raises:
        DataError: If no image is of train or of no split.
    """
    if all(entry.split not in (None, "train") for entry in entries):
        images = pluralize(len(entries), "image")
        raise DataError(f"{source} has no image to learn from, only {images} {held}: {remedy}")


def with_unlabelled(
    config: DataConfig,
    data: ImageData,
    entries: Sequence[Entry],
    progress: Progress | None = None,
    *,
    beside: tuple[DataConfig, Listing] | None = None,
    by_pixels: bool = False,
) -> ImageData:
    """Add images without a label to opened data.

    Left out, with a note, are images that are also in another split, by their content, and those that the entries
    themselves hold for `val` or `test`. Files that cannot be decoded are left out and listed.

    Args:
        config: The source of the data, and how strict to be.
        data: The labelled images.
        entries: The images of the same source without a label.
        progress: Called with (done, total) while files are read.
        beside: A further source and its images, whose labels do not matter.
        by_pixels: Compare decoded pixels, with those of val and test only, because `data` has no hash of each file.

    Raises:
        DataError: If no image of the further source can be decoded.
    """
    read, unreadable, held = _read(config, entries, progress, needs_any=False)
    notes: list[str] = []
    if beside is not None:
        further, listing = beside
        more, damaged, of_further = _read(further, listing.entries, progress)
        read, unreadable, held = read + more, unreadable + damaged, held + of_further
        notes += [f"{further.source}: {note}" for note in listing.notes]
    if held:
        notes.append(f"{pluralize(held, 'unlabelled image')} of val or test left out")
    read.sort(key=lambda each: (each[0].name, str(each[0].path)))
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


def _read(
    config: DataConfig, entries: Sequence[Entry], progress: Progress | None, *, needs_any: bool = True
) -> tuple[list[tuple[Entry, str]], list[tuple[ImagePath, str]], int]:
    """Read the images of a source that are not of val or test.

    Returns:
        The readable ones with the hashes of their content; the others with reasons; how many are of val or test.
    """
    training = [entry for entry in entries if entry.split in (None, "train")]
    scanned = scan([entry.path for entry in training], progress=progress)
    unreadable = check_readable(config, training, scanned, needs_any=needs_any)
    read = [(entry, file.digest) for entry, file in zip(training, scanned, strict=True) if not file.facts.reason]
    return read, unreadable, len(entries) - len(training)


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
