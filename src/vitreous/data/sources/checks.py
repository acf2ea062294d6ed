"""What labelled files must have before they are split: files that can be read, and classes that can be learnt."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.data.config import DataConfig
from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.folders import LAYOUT
from vitreous.data.sources.listing import Entry, Listing, first_ten, ordered_classes
from vitreous.data.sources.scan import Scanned
from vitreous.errors import DataError, pluralize

__all__ = ["check_readable", "label_all", "label_matrix", "refuse_several_labels"]

_MOST_CELLS = 2**30  # of the matrix of labels: 1 GiB


def check_readable(
    config: DataConfig, entries: Sequence[Entry], scanned: Sequence[Scanned], *, needs_any: bool = True
) -> list[tuple[ImagePath, str]]:
    """Return the files that cannot be decoded, with reasons.

    Raises:
        DataError: With `strict`, if there is one; if no file can be decoded and the source `needs_any`.
    """
    files = {entry.path for entry in entries}
    found = zip(entries, scanned, strict=True)
    # Once each: a table may repeat a file.
    bad = list({entry.path: (entry, file.facts.reason) for entry, file in found if file.facts.reason}.values())
    named = first_ten([f"{entry.name}: {reason}" for entry, reason in bad], "; ")
    if needs_any and len(bad) == len(files):
        raise DataError(f"{config.source}: none of {pluralize(len(files), 'image')} can be read ({named})")
    if bad and config.strict:
        raise DataError(
            f"{len(bad):,} of {len(files):,} files of {config.source} cannot be read ({named}): "
            f"repair or remove them, list them in data.exclude, or leave out --strict"
        )
    return [(entry.path, str(reason)) for entry, reason in bad]


def label_all(
    source: str,
    listing: Listing,
    entries: Sequence[Entry],
    listed: Collection[str],
    *,
    needs_labels: bool,
    hold_out: bool,
) -> tuple[tuple[str, ...], npt.NDArray[Any], list[str]]:
    """Return the classes of readable entries, their labels, and notes on what is left out.

    Labels are (n,) int64 indices of classes, or the matrix of :func:`label_matrix` if an image may have several.
    ``listed`` are the labels of all entries, readable or not.
    """
    is_several = bool(entries) and entries[0].labels is not None
    if is_several:
        classes, listed = _several_classes_of(source, listing, entries, hold_out), listing.classes or ()
        labels, without = label_matrix(classes, entries), "labels that no train image has"
    else:
        if needs_labels:
            classes = listing.classes or _classes_of(source, entries, for_training=hold_out)
        else:
            classes = listing.classes or ordered_classes({entry.label for entry in entries})
        index = {name: n for n, name in enumerate(classes)}
        labels = np.asarray([index[entry.label] for entry in entries], np.int64)
        without = "classes without a readable image"
    lost = set(listed) - set(classes)
    return classes, labels, [f"{without}, left out: {first_ten(sorted(lost))}"] if lost else []


def _classes_of(source: str, entries: Sequence[Entry], for_training: bool) -> tuple[str, ...]:
    """Return the classes. For training they are those of train, at least two, and the other splits may have no more."""
    if not for_training:
        return ordered_classes({entry.label for entry in entries})
    classes = ordered_classes({entry.label for entry in entries if entry.split in (None, "train")})
    for split in ("val", "test"):
        unknown = {entry.label for entry in entries if entry.split == split} - set(classes)
        if unknown and classes:
            extra = first_ten(sorted(unknown))
            raise DataError(f"{split} has classes that train does not have: {extra}; train has {first_ten(classes)}")
    if len(classes) < 2:
        inner = sorted({parts[1] for entry in entries if len(parts := Path(entry.name).parts) > 2 and not entry.split})
        hint = ""
        if len(inner) > 1:
            deeper = os.path.join(source, Path(entries[0].name).parts[0])
            hint = f"; if {first_ten(inner)} are the classes, give {deeper}"
        found = f"only one class, {classes[0]!r}" if classes else "no class in train"
        raise DataError(f"{source} has {found}, at least two are needed: {LAYOUT}{hint}")
    return classes


def refuse_several_labels(source: str, listing: Listing) -> None:
    """Raise if an image may have several labels, for work that needs one of each image."""
    if any(entry.labels is not None for entry in listing.entries[:1]):
        raise DataError(
            f"{source} may have several labels for an image, and this needs one: give a column label. Several are "
            "for train, finetune, probe and audit, and for evaluate and calibrate with a model of several labels"
        )


def _several_classes_of(source: str, listing: Listing, entries: Sequence[Entry], for_training: bool) -> tuple[str, ...]:
    """Return the labels of data where an image may have several, in the order of the listing.

    For training they are those of train, at least two, and the other splits may have no more.
    """
    if not for_training:
        return listing.classes or ()
    in_train = {name for entry in entries if entry.split in (None, "train") for name in entry.labels or ()}
    classes = tuple(name for name in listing.classes or () if name in in_train)
    for split in ("val", "test"):
        unknown = {name for entry in entries if entry.split == split for name in entry.labels or ()} - in_train
        if unknown:
            raise DataError(
                f"{split} has labels that no train image has: {first_ten(sorted(unknown))}; train has "
                f"{first_ten(classes)}"
            )
    if len(classes) < 2:
        found = f"only one label, {classes[0]!r}" if classes else "no train image with a label"
        raise DataError(
            f"{source} has {found}, at least two labels are needed: for a single one, write it and its absence as two "
            "classes in a column label"
        )
    return classes


def label_matrix(classes: Sequence[str], entries: Sequence[Entry]) -> npt.NDArray[Any]:
    """Return which image has which label, 0 or 1, (n, K) int8.

    Raises:
        DataError: If there are too many images and labels for such a matrix.
    """
    if (cells := len(entries) * len(classes)) > _MOST_CELLS:
        raise DataError(
            f"{pluralize(len(entries), 'image')} and {pluralize(len(classes), 'label')} are a table of {cells:,} "
            f"cells, the limit is {_MOST_CELLS:,}: leave out rare labels, or images"
        )
    place = {name: n for n, name in enumerate(classes)}
    matrix = np.zeros((len(entries), len(classes)), np.int8)
    for row, entry in zip(matrix, entries, strict=True):
        row[[place[name] for name in entry.labels or () if name in place]] = 1
    return matrix
