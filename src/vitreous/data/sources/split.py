"""Which images are held out, decided by their content; and what a reader should know about the outcome."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from vitreous.data.config import DataConfig
from vitreous.data.sources.listing import first_ten, many
from vitreous.errors import DataError

__all__ = ["absent_classes", "as_recorded", "copies_across", "held_out", "hold_out_val", "record_of", "stratified"]

_RECORDED = 12  # hex digits of a content in a record: 48 bits, so 1 in 3,000 for one mistake among a million images
_MOST_RECORDED = 100_000  # contents, 1.2 MB of a model's file

_Sides = npt.NDArray[np.str_]


def held_out(digests: Sequence[str], fraction: float, salt: int = 0) -> npt.NDArray[np.bool_]:
    """Which images are held out without regard to classes: those whose hash, scaled to [0, 1), is below the fraction.

    An image's side depends on its content alone. Every class loses the same share in expectation only: of 40 images,
    4 to 11 at a fraction of 0.2. Test splits of known sets and models of earlier versions are held out so.

    Args:
        digests: Content hashes, 32 hex digits.
        fraction: Share to hold out, in [0, 1].
        salt: 0 or 1: two draws that do not depend on each other.
    """
    shares = [int(digest[16 * salt : 16 * salt + 16], 16) / 2**64 for digest in digests]
    return np.asarray(shares, dtype=np.float64) < fraction


def stratified(digests: Sequence[str], labels: Sequence[Hashable], fraction: float) -> npt.NDArray[np.bool_]:
    """Which images are held out of each class: those with the smallest hashes.

    Each class gives ``round(fraction * n)`` of its n images, halves rounded up, and keeps at least one. The outcome
    depends on contents and on which of them share a class, not on names, order or the names of classes.

    Equal contents stay on one side, also where they are in several classes: they are held out together where every one
    of these classes has that much room left, and stay in train otherwise. Without equal contents the numbers are exact.

    When k images are added to a class, its quota grows by q, and j of the new images are held out (j <= k), then
    ``abs(q - j)`` of its old images change sides, and no image of another class does.

    Args:
        digests: Content hash of each image, in hex.
        labels: Class of each image.
        fraction: Share to hold out, in (0, 1).
    """
    share = Fraction(str(fraction))  # 0.29 of 100 is 29, not 28.999999999999996
    room = {
        label: min(math.floor(share * count + Fraction(1, 2)), count - 1) for label, count in Counter(labels).items()
    }
    members: dict[str, list[int]] = {}
    for position, digest in enumerate(digests):
        members.setdefault(digest, []).append(position)
    held = np.zeros(len(digests), np.bool_)
    for digest in sorted(members):
        own = members[digest]
        needed = Counter(labels[n] for n in own) if len(own) > 1 else {labels[own[0]]: 1}
        if all(count <= room[label] for label, count in needed.items()):
            held[own] = True
            for label, count in needed.items():
                room[label] -= count
    return held


def record_of(digests: Sequence[str], held: npt.NDArray[np.bool_]) -> str | None:
    """What a model's file says about the images that its training held out; None where they are too many for that.

    Returns:
        The first 12 hex digits of each content's hash, joined.
    """
    contents = sorted({digests[n][:_RECORDED] for n in np.flatnonzero(held).tolist()})
    return "".join(contents) if len(contents) <= _MOST_RECORDED else None


def as_recorded(record: object, digests: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which images a :func:`record_of` names: none where it is no record."""
    if not isinstance(record, str) or len(record) % _RECORDED or not re.fullmatch("[0-9a-f]*", record):
        return np.zeros(len(digests), np.bool_)
    contents = {record[at : at + _RECORDED] for at in range(0, len(record), _RECORDED)}
    return np.asarray([digest[:_RECORDED] in contents for digest in digests], np.bool_)


def hold_out_val(
    config: DataConfig, digests: Sequence[str], labels: Sequence[Hashable], sides: _Sides, record: object = None
) -> tuple[_Sides, str, str | None]:
    """Split val off train by content, where the data has no val of its own.

    Args:
        config: Its ``val_fraction`` and ``split`` are used.
        digests: Content hash of each image.
        labels: Class of each image.
        sides: `train`, `val` or `test` of each image.
        record: What a model's training held out, as :func:`record_of` gave it. Those of these images that it names are
            val, and no others: then no image that the model was trained on is, whatever was added or moved since. Where
            it names none of them, or all, it decides nothing.

    Returns:
        The sides after it, the line that says how it was split, and the record of what was held out here.

    Raises:
        DataError: If train or val would have no image.
    """
    how, made = "as the data has it", None
    if "val" not in sides:
        at = np.flatnonzero(sides == "train")
        own, classes = [digests[n] for n in at.tolist()], [labels[n] for n in at.tolist()]
        known = as_recorded(record, own)
        if known.any() and not known.all():
            held, how = known, "as the model's training held out"
        elif config.split == "hash":
            held, how = held_out(own, config.val_fraction), "by content; the same next time"
        else:
            held, how = stratified(own, classes, config.val_fraction), "by class and content; the same next time"
        sides = sides.astype("<U5")
        sides[at[held]] = "val"
        made = record_of(own, held)
    counts = {name: int((sides == name).sum()) for name in ("train", "val", "test")}
    for name in ("train", "val"):
        if not counts[name]:
            raise DataError(_nothing_left(name, config, labels, len(sides)))
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return sides, f"split: {shown}, {how}", made


def _nothing_left(name: str, config: DataConfig, labels: Sequence[Hashable], total: int) -> str:
    """The error for a split without an image."""
    largest = max(Counter(labels).values(), default=0)
    return (
        f"{name} has no image: {config.val_fraction:g} (val_fraction) of each class were to be held out, and of "
        f"{many(total, 'image')} the largest class has {largest:,}; add images, change data.val_fraction, or make "
        "folders train/ and val/"
    )


def absent_classes(classes: Sequence[str], labels: npt.NDArray[np.int64], sides: npt.NDArray[np.str_]) -> list[str]:
    """Note the classes that have no picture in a split: their scores there are undefined."""
    notes = []
    for name in sorted(set(sides.tolist())):
        present = set(labels[sides == name].tolist())
        absent = [label for n, label in enumerate(classes) if n not in present]
        if absent:
            notes.append(f"of {len(classes):,} classes, {len(absent):,} without a {name} picture: {first_ten(absent)}")
    return notes


def copies_across(names: Sequence[str], digests: Sequence[str], sides: npt.NDArray[np.str_]) -> list[str]:
    """Note the files of the data's own val and test splits that are byte for byte in train."""
    in_train = {digest for digest, side in zip(digests, sides.tolist(), strict=True) if side == "train"}
    notes = []
    for split in ("val", "test"):
        copies = [names[n] for n in np.flatnonzero(sides == split).tolist() if digests[n] in in_train]
        if copies:
            notes.append(f"{many(len(copies), f'{split} picture')} also in train: {first_ten(copies)}")
    return notes
