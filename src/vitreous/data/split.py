"""Which pictures are held out, decided by their content; and what a reader should know about the outcome."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vitreous.data.config import DataConfig
from vitreous.data.listing import first_ten, many
from vitreous.errors import DataError

__all__ = ["absent_classes", "copies_across", "held_out", "hold_out_val"]


def held_out(digests: Sequence[str], fraction: float, salt: int = 0) -> npt.NDArray[np.bool_]:
    """Which pictures are held out: those whose hash, scaled to [0, 1), is below the fraction.

    A picture's side depends on its content alone: adding others moves none, and copies stay together. Every class
    loses the same share in expectation.

    Args:
        digests: Content hashes, 32 hex digits.
        fraction: Share to hold out, in [0, 1].
        salt: 0 or 1: two draws that do not depend on each other.
    """
    shares = [int(digest[16 * salt : 16 * salt + 16], 16) / 2**64 for digest in digests]
    return np.asarray(shares, dtype=np.float64) < fraction


def hold_out_val(
    config: DataConfig, digests: Sequence[str], sides: npt.NDArray[np.str_]
) -> tuple[npt.NDArray[np.str_], str]:
    """Split val off train by content, where the data has no val of its own.

    Args:
        config: Its ``val_fraction`` is used.
        digests: Content hash of each picture.
        sides: `train`, `val` or `test` of each picture.

    Returns:
        The sides after it, and the line that says how it was split.

    Raises:
        DataError: If train or val would have no picture.
    """
    how = "as the data has it"
    if "val" not in sides:
        sides = np.where((sides == "train") & held_out(digests, config.val_fraction), "val", sides)
        how = "by content; the same next time"
    counts = {name: int((sides == name).sum()) for name in ("train", "val", "test")}
    for name in ("train", "val"):
        if not counts[name]:
            raise DataError(
                f"{name} has no picture: {config.val_fraction:g} (val_fraction) of {len(sides):,} pictures were to be "
                f"held out by content; add pictures, change data.val_fraction, or make folders train/ and val/"
            )
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return sides, f"split: {shown}, {how}"


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
