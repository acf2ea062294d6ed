"""Which images are held out for validation, decided by their content; and notes on the resulting split."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction
from itertools import groupby

import numpy as np
import numpy.typing as npt

from vitreous.data.config import DataConfig
from vitreous.data.sources.listing import first_ten
from vitreous.errors import DataError, pluralize

__all__ = [
    "absent_classes",
    "as_recorded",
    "copies_across",
    "held_out",
    "hold_out_val",
    "record_of",
    "stratified",
    "stratified_sets",
]

_RECORDED = 12  # hex digits of a content hash in a record: 48 bits, one collision in 3,000 among a million images
_MOST_RECORDED = 100_000  # images in a record, 1.2 MB of a model file

_Sides = npt.NDArray[np.str_]
"""Split of each image: `train`, `val` or `test`, (n,)."""


def hold_out_val(
    config: DataConfig,
    digests: Sequence[str],
    labels: Sequence[Hashable] | npt.NDArray[np.int64] | None,
    sides: _Sides,
    record: object = None,
) -> tuple[_Sides, str, str | None]:
    """Split val off train by content, if the data has no val of its own.

    ``labels`` are the class of each image, or 0 and 1 for each label, (n, K); None where they do not matter.

    ``record`` is what the training of a model held out, from :func:`record_of`. The images that it names become val,
    and no others, so that val contains no image the model was trained on, even if images were added or moved since. A
    record that names none or all of the images is ignored.

    Return the new split of each image, a line that describes it, and the record of the images held out here.
    """
    how, new_record = "as the data has it", None
    if "val" not in sides:
        index = np.flatnonzero(sides == "train")
        contents = [digests[n] for n in index.tolist()]
        recorded = as_recorded(record, contents)
        if recorded.any() and not recorded.all():
            held, how = recorded, "as in the model's training"
        elif config.split == "hash":
            held, how = held_out(contents, config.val_fraction), "by content; the same on every run"
        elif labels is None:
            held, how = stratified(contents, [0] * len(index), config.val_fraction), "by content; the same on every run"
        elif isinstance(labels, np.ndarray):
            held = stratified_sets(contents, labels[index], config.val_fraction)
            how = "by label and content; the same on every run"
        else:
            held = stratified(contents, [labels[n] for n in index.tolist()], config.val_fraction)
            how = "by class and content; the same on every run"
        sides = sides.astype("<U5")
        sides[index[held]] = "val"
        new_record = record_of(contents, held)
    counts = {name: int((sides == name).sum()) for name in ("train", "val", "test")}
    for name in ("train", "val"):
        if not counts[name]:
            raise DataError(
                f"{name} has no image: val_fraction is {config.val_fraction:g}, and {_available(labels, len(sides))}; "
                "add images, change data.val_fraction, or make folders train/ and val/"
            )
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return sides, f"split: {shown}, {how}", new_record


def stratified(digests: Sequence[str], labels: Sequence[Hashable], fraction: float) -> npt.NDArray[np.bool_]:
    """Mark the images to hold out of each class, given content hashes and classes: those with the smallest hashes.

    Of the n images of a class, ``round(fraction * n)`` are held out, halves rounded up, and at least one is kept. The
    result depends on contents and on which of them share a class, not on names, order or class names.

    Identical images stay together, even across classes: all are held out if every class involved has room for its
    share, and none otherwise. Without identical images the counts are exact.

    When k images are added to a class, let q be the growth of its quota and j the number of new images held out. Then
    ``abs(q - j)`` of its old images change sides, and no image of another class does.
    """
    exact = Fraction(str(fraction))  # 0.29 of 100 is 29, not 28.999999999999996
    counts = Counter(labels)
    room = {label: min(math.floor(exact * count + Fraction(1, 2)), count - 1) for label, count in counts.items()}
    held = np.zeros(len(digests), np.bool_)
    for _, copies in groupby(sorted(range(len(digests)), key=digests.__getitem__), key=digests.__getitem__):
        first, *others = copies
        if not others:  # nearly all, so without a list of their own
            label = labels[first]
            if room[label] > 0:
                held[first] = True
                room[label] -= 1
            continue
        positions = [first, *others]
        needed = Counter(labels[n] for n in positions)
        if all(count <= room[label] for label, count in needed.items()):
            held[positions] = True
            for label, count in needed.items():
                room[label] -= count
    return held


def stratified_sets(digests: Sequence[str], labels: npt.NDArray[np.int64], fraction: float) -> npt.NDArray[np.bool_]:
    """Mark the images to hold out where each has several labels, (n, K), given content hashes.

    Labels take their share in turn, from the rarest to the most frequent, and last the images without a label, as in
    Sechidis et al. (2011). Of the k images of a label, ``round(fraction * k)`` are held out, halves rounded up, less
    those that rarer labels have held out already: the ones with the smallest hashes among the images that no rarer
    label has. None takes the last image of a label that is left to train on. Identical images stay together. The result
    does not depend on names or order.
    """
    exact, n = Fraction(str(fraction)), len(digests)
    order = np.asarray(sorted(range(n), key=digests.__getitem__), np.int64)
    copies: dict[str, list[int]] = {}
    for position, digest in enumerate(digests):
        copies.setdefault(digest, []).append(position)
    held, settled = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    strata = np.concatenate([labels > 0, (labels == 0).all(axis=1, keepdims=True)], axis=1)  # n (K + 1)
    counts = strata.sum(axis=0)
    left = counts.copy()  # of each label, not held out
    for k in [*np.argsort(counts[:-1], kind="stable").tolist(), strata.shape[1] - 1]:
        members = order[strata[order, k]]
        quota = min(math.floor(exact * len(members) + Fraction(1, 2)), len(members) - 1) - int(held[members].sum())
        for position in members.tolist():
            together = copies[digests[position]]
            if not settled[position] and len(together) <= quota:
                after = left - strata[together].sum(axis=0)
                if (after[strata[together].any(axis=0)] > 0).all():
                    held[together], left = True, after
                    quota -= len(together)
            settled[together] = True
    return held


def held_out(digests: Sequence[str], fraction: float, salt: int = 0) -> npt.NDArray[np.bool_]:
    """Mark the images to hold out regardless of class: those whose hash, scaled to [0, 1), is below the fraction.

    Whether an image is held out depends on its content alone, so each class loses the fraction only in expectation.
    ``salt`` 0 and 1 give two independent draws.
    """
    draws = [int(digest[16 * salt : 16 * salt + 16], 16) / 2**64 for digest in digests]
    return np.asarray(draws, dtype=np.float64) < fraction


def record_of(digests: Sequence[str], held: npt.NDArray[np.bool_]) -> str | None:
    """Return the record of the held-out images for a model file: the first 12 hex digits of each hash, joined.

    None if there are more than 100,000.
    """
    contents = sorted({digests[n][:_RECORDED] for n in np.flatnonzero(held).tolist()})
    return "".join(contents) if len(contents) <= _MOST_RECORDED else None


def as_recorded(record: object, digests: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Mark the images that a record names; none if it is not a valid record."""
    if not isinstance(record, str) or len(record) % _RECORDED or not re.fullmatch("[0-9a-f]*", record):
        return np.zeros(len(digests), np.bool_)
    contents = {record[start : start + _RECORDED] for start in range(0, len(record), _RECORDED)}
    return np.asarray([digest[:_RECORDED] in contents for digest in digests], np.bool_)


def _available(labels: Sequence[Hashable] | npt.NDArray[np.int64] | None, count: int) -> str:
    """Say how many images there are to hold out from."""
    if labels is None:
        return f"there {'is' if count == 1 else 'are'} {pluralize(count, 'image')}"
    sizes = labels.sum(axis=0).tolist() if isinstance(labels, np.ndarray) else Counter(labels).values()
    return f"the largest class has {max(sizes, default=0):,} of {pluralize(count, 'image')}"


def absent_classes(
    classes: Sequence[str], labels: npt.NDArray[np.int64], sides: _Sides, *, no_class: str | None = None
) -> list[str]:
    """Note the classes without an image in a split, whose scores there are undefined.

    ``no_class`` is the name that stands for images without a label.
    """
    notes, total = [], len(set(classes) - {no_class})
    for name in sorted(set(sides.tolist())):
        here = labels[sides == name]
        present = set((np.flatnonzero(here.any(axis=0)) if here.ndim == 2 else here).tolist())
        absent = [label for n, label in enumerate(classes) if label != no_class and n not in present]
        if absent:
            notes.append(f"{len(absent):,} of {total:,} classes without a {name} image: {first_ten(absent)}")
    return notes


def copies_across(names: Sequence[str], digests: Sequence[str], sides: _Sides) -> list[str]:
    """Note the files of the data's own val and test splits that are also in train, byte for byte."""
    in_train = {digest for digest, side in zip(digests, sides.tolist(), strict=True) if side == "train"}
    notes = []
    for split in ("val", "test"):
        copies = [names[n] for n in np.flatnonzero(sides == split).tolist() if digests[n] in in_train]
        if copies:
            notes.append(f"{pluralize(len(copies), f'{split} image')} also in train: {first_ten(copies)}")
    return notes
