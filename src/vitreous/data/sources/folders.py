"""Labelled pictures in folders: one folder per class, with or without folders for the splits above them."""

from __future__ import annotations

from pathlib import Path

from vitreous.data.sources.finding import find_pictures
from vitreous.data.sources.listing import SPLIT_NAMES, Entry, Listing, first_ten, many, plain_name
from vitreous.errors import DataError

__all__ = ["LAYOUT", "list_folder"]

LAYOUT = (
    "expected is one folder per class, such as photos/daisy/1.jpg photos/tulips/2.jpg, "
    "or the same below photos/train and photos/val"
)


def list_folder(root: Path) -> Listing:
    """List `train/ val/ [test/]` folders of class folders, or a single folder of class folders.

    Pictures at any depth below a class folder belong to that class. Folders count as splits where `train` (or
    `training`) itself holds folders with pictures; `valid`, `validation` and `testing` are understood too.

    Args:
        root: An existing folder.

    Raises:
        DataError: If there are no pictures, or they are not in class folders.
    """
    pictures, others, notes = find_pictures(root)
    if not pictures:
        seen = f" (it has {many(len(others), 'other file')})" if others else ""
        raise DataError(f"folder {root} holds no pictures{seen}: {LAYOUT}")
    parts = [(path, path.relative_to(root).parts) for path in pictures]
    has_splits = any(len(p) >= 3 and SPLIT_NAMES.get(p[0].lower()) == "train" for _, p in parts)
    if not has_splits:
        _check_no_lone_splits(root, {p[0] for _, p in parts if len(p) > 1})
    depth = 1 if has_splits else 0
    entries, loose, outside = [], [], set()
    for path, p in parts:
        split = SPLIT_NAMES.get(p[0].lower()) if has_splits else None
        if has_splits and split is None:
            outside.add(p[0])
        elif len(p) < depth + 2:
            loose.append("/".join(p))
        else:
            entries.append(Entry(path, "/".join(p), plain_name(p[depth]), split))
    if not entries:
        raise DataError(f"{root} holds {many(len(pictures), 'picture')}, but not in class folders: {LAYOUT}")
    if others:
        first = others[0].relative_to(root).as_posix()
        notes.append(f"{many(len(others), 'file')} ignored, not pictures (first: {first})")
    if loose:
        notes.append(f"{many(len(loose), 'picture')} ignored, outside class folders (first: {loose[0]})")
    if outside:
        notes.append(f"beside the splits, ignored: {first_ten(sorted(outside))}")
    notes += _empty_folders(root, depth, entries)
    return Listing(root, entries, notes)


def _check_no_lone_splits(root: Path, folders: set[str]) -> None:
    """Refuse `val/` and `test/` without a usable `train/`: they would pass as classes."""
    splits = sorted(name for name in folders if name.lower() in SPLIT_NAMES)
    if splits and len(splits) == len(folders):
        lack = (
            "no folder train" if all(SPLIT_NAMES[s.lower()] != "train" for s in splits) else "no class folders in train"
        )
        raise DataError(f"{root} has {first_ten(splits)} and {lack}: {LAYOUT}")


def _empty_folders(root: Path, depth: int, entries: list[Entry]) -> list[str]:
    """Note the class folders in which no picture was found, and the splits."""
    full = {entry.path.relative_to(root).parts[: depth + 1] for entry in entries}
    used = {parts[0] for parts in full}
    candidates = [folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    notes = []
    if depth == 1:
        candidates = [folder for folder in candidates if folder.name.lower() in SPLIT_NAMES]
        for split in sorted(folder.name for folder in candidates if folder.name not in used):
            notes.append(f"folder {split} has no pictures in class folders, it is ignored")
        candidates = [
            inner for folder in candidates if folder.name in used for inner in folder.iterdir() if inner.is_dir()
        ]
    empty = sorted(
        folder.relative_to(root).as_posix()
        for folder in candidates
        if folder.relative_to(root).parts not in full and not folder.name.startswith(".")
    )
    if empty:
        notes.append(f"{many(len(empty), 'class folder')} without pictures: {first_ten(empty)}")
    return notes
