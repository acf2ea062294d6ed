"""Labelled images in folders: one folder per class, optionally below folders for the splits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.finding import find_images
from vitreous.data.sources.listing import SPLIT_NAMES, Entry, Listing, first_ten, plain_name
from vitreous.errors import DataError, pluralize

__all__ = ["LAYOUT", "label_by_folder", "list_folder"]

LAYOUT = (
    "expected is one folder per class, such as photos/daisy/1.jpg photos/tulips/2.jpg, "
    "or the same below photos/train and photos/val"
)
"""The part of an error that says which folders are expected."""


def list_folder(root: Path) -> Listing:
    """List `train/ val/ [test/]` folders of class folders, or a single folder of class folders.

    Images at any depth below a class folder belong to that class. Folders are splits if `train` (or `training`)
    contains folders with images; `valid`, `validation` and `testing` are recognised too.
    """
    images, others, notes, outputs = find_images(root)
    found = [(path, path.relative_to(root).parts) for path in images]
    listing = label_by_folder(root, found, [path.relative_to(root).as_posix() for path in others], notes)
    listing.notes += _empty_folders(root, 1 if listing.entries[0].split else 0, listing.entries, outputs)
    return listing


def label_by_folder(
    root: Path, relative: Sequence[tuple[ImagePath, tuple[str, ...]]], others: Sequence[str], notes: list[str]
) -> Listing:
    """Label images by their folders below ``root``, the parts of their paths; ``others`` are other files."""
    if not relative:
        rest = f" (it has {pluralize(len(others), 'other file')})" if others else ""
        raise DataError(f"folder {root} holds no images{rest}{''.join(f'; {note}' for note in notes)}: {LAYOUT}")
    has_splits = any(len(parts) >= 3 and SPLIT_NAMES.get(parts[0].lower()) == "train" for _, parts in relative)
    if not has_splits:
        _check_split_folders(root, {parts[0] for _, parts in relative if len(parts) > 1})
    depth = 1 if has_splits else 0  # of the class folder
    entries, loose, beside = [], [], set()
    for path, parts in relative:
        split = SPLIT_NAMES.get(parts[0].lower()) if has_splits else None
        if has_splits and split is None:
            beside.add(parts[0])
        elif len(parts) < depth + 2:
            loose.append("/".join(parts))
        else:
            entries.append(Entry(path, "/".join(parts), plain_name(parts[depth]), split))
    if not entries:
        raise DataError(f"{root} holds {pluralize(len(relative), 'image')}, but not in class folders: {LAYOUT}")
    if others:
        notes.append(f"{pluralize(len(others), 'file')} ignored, not images (first: {others[0]})")
    if loose:
        notes.append(f"{pluralize(len(loose), 'image')} ignored, outside class folders (first: {loose[0]})")
    if beside:
        notes.append(f"folders beside the splits ignored: {first_ten(sorted(beside))}")
    return Listing(root, entries, notes)


def _check_split_folders(root: Path, folders: set[str]) -> None:
    """Refuse folders `val` and `test` without a usable `train`, which would otherwise be taken for classes."""
    splits = sorted(name for name in folders if name.lower() in SPLIT_NAMES)
    if splits and len(splits) == len(folders):
        has_train = any(SPLIT_NAMES[name.lower()] == "train" for name in splits)
        lack = "no class folders in train" if has_train else "no folder train"
        raise DataError(f"{root} has {first_ten(splits)} and {lack}: {LAYOUT}")


def _empty_folders(root: Path, depth: int, entries: list[Entry], outputs: Collection[Path]) -> list[str]:
    """Note the splits and class folders in which no image was found, except those of runs and inspections."""
    full = {tuple(entry.name.split("/"))[: depth + 1] for entry in entries}
    candidates = _folders_in(root)
    notes = []
    if depth == 1:
        used = {parts[0] for parts in full}
        splits = [folder for folder in candidates if folder.name.lower() in SPLIT_NAMES]
        unused = sorted({folder.name for folder in splits} - used)
        notes = [f"folder {name} has no images in class folders, it is ignored" for name in unused]
        candidates = [inner for folder in splits if folder.name in used for inner in _folders_in(folder)]
    relative = [folder.relative_to(root) for folder in candidates]
    above = {path for output in outputs for path in (output, *output.parents)}
    empty = sorted(path.as_posix() for path in relative if path.parts not in full and root / path not in above)
    if empty:
        notes.append(f"{pluralize(len(empty), 'class folder')} without images: {first_ten(empty)}")
    return notes


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
