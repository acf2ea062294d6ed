"""Images in folders whose labels do not matter: every image counts, in class folders or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.finding import find_images
from vitreous.data.sources.listing import SPLIT_NAMES, UNLABELLED, Entry, Listing, plain_name, pluralize
from vitreous.errors import DataError

__all__ = ["list_unlabelled", "without_labels"]


def list_unlabelled(root: Path) -> Listing:
    """List all images under a folder. One in a class folder has that label, any other is :data:`UNLABELLED`.

    Folders are splits if one of them is named `train` (or `training`). Images beside them are left out.
    """
    images, others, notes = find_images(root)
    found = [(path, path.relative_to(root).parts) for path in images]
    return without_labels(root, found, [path.relative_to(root).as_posix() for path in others], notes)


def without_labels(
    root: Path, relative: Sequence[tuple[ImagePath, tuple[str, ...]]], others: Sequence[str], notes: list[str]
) -> Listing:
    """List images as :func:`list_unlabelled` does, given the parts of their paths below ``root``."""
    if not relative:
        rest = f" (it has {pluralize(len(others), 'other file')})" if others else ""
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
