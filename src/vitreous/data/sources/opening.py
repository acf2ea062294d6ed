"""Where labelled images come from: a known set, a folder or a manifest, opened to the same :class:`ImageData`.

How each is listed is in :mod:`vitreous.data.sources.known`, :mod:`vitreous.data.sources.folders` and :mod:`vitreous.data.sources.manifest`.
Here the pictures are checked, split and counted. Turning them into batches is :mod:`vitreous.data.batches.data_module`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitreous.data.config import DataConfig
from vitreous.data.images.reading import PictureFacts, read_picture
from vitreous.data.sources.folders import LAYOUT, list_folder
from vitreous.data.sources.known import KNOWN, PixelSet, load_known
from vitreous.data.sources.listing import Entry, Listing, excluded, first_ten, many, ordered_classes
from vitreous.data.sources.manifest import MANIFEST_SUFFIXES, list_manifest
from vitreous.data.sources.scan import Progress, Scanned, content_hash, scan
from vitreous.data.sources.split import absent_classes, copies_across, held_out, hold_out_val
from vitreous.data.sources.urls import refuse_url
from vitreous.errors import DataError, UsageError, did_you_mean

__all__ = ["ImageData", "Split", "find_source", "fingerprint_of", "list_source", "open_source"]

_ORDER = ("all", "train", "val", "test")


@dataclass(frozen=True)
class Split:
    """The labelled pictures of one split: files, or pixels in memory.

    Args:
        labels: int64 (n,), positions in the classes.
        names: How to call each picture: its path relative to the data folder, or `train/17`.
        paths: The files; None for pixels in memory.
        arrays: Pixels uint8 (n, H, W, C); None for files.
    """

    labels: npt.NDArray[np.int64]
    names: tuple[str, ...]
    paths: list[Path] | None = None
    arrays: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def picture(self, index: int) -> Image.Image:
        """Picture number ``index`` in mode RGB.

        Raises:
            DataError: If its file cannot be decoded any more.
        """
        if self.arrays is not None:
            return read_picture(self.arrays[index])
        return read_picture((self.paths or [])[index])

    def name_of(self, index: int) -> str:
        """What to call picture number ``index``."""
        return self.names[index]


@dataclass(frozen=True)
class ImageData:
    """A source, opened: every picture is readable and has a label and a split.

    Args:
        name: Of the known set, the folder or the manifest; for run folders and titles.
        classes: Class names; labels are positions in it.
        splits: `train` and `val`, and `test` where there is one. Where nothing was to be held out: the splits that the
            data has, or `all` where it has none.
        channels: 1 where every picture is stored without colour, else 3.
        native_size: Height and width in pixels where all pictures share them, else None.
        median_size: Median height and median width of the pictures.
        fingerprint: Hash over every picture's name, label and content; independent of order and split.
        order: Hash over the classes, and over every picture's name, label and content in the order of each split.
        held_out: What was split off here as val, for the model's file (:func:`vitreous.data.sources.split.record_of`).
        unreadable: Path and reason of each file that is left out because it cannot be decoded.
        notes: Lines for the terminal: how it was split, what was ignored, what may surprise.
    """

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Split]
    channels: int
    native_size: tuple[int, int] | None
    median_size: tuple[int, int]
    fingerprint: str
    order: str = ""
    held_out: str | None = None
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Pictures per class, over all splits, in the order of the classes."""
        total = sum(np.bincount(split.labels, minlength=len(self.classes)) for split in self.splits.values())
        return dict(zip(self.classes, np.asarray(total).tolist(), strict=True))


def open_source(
    config: DataConfig, progress: Progress | None = None, hold_out: bool = True, record: object = None
) -> ImageData:
    """Open the source that a configuration names, and check every picture of it.

    Files are read once: hashed, decoded and measured, in threads. Those that cannot be decoded are left out of the
    splits and listed.

    Args:
        config: What to open, how to split it, and how strict to be.
        progress: Called with (done, total) while files are read.
        hold_out: Split a val off train where the data has none, as training needs it. If not, data without any split
            comes whole, as split `all`, and may be of one class: enough to evaluate a model on it.
        record: What a model's training held out of this source, from its file: that is val then, as far as it is here.

    Raises:
        UsageError: If the source is the name of nothing.
        DataError: If it is missing, empty, has one class only, does not fit its own splits, or, with `strict`, has
            files that cannot be decoded.
    """
    opened = list_source(config)
    if isinstance(opened, PixelSet):
        return _from_pixels(config, opened, record)
    return _from_files(config, opened, progress, hold_out, record)


def list_source(config: DataConfig) -> PixelSet | Listing:
    """Find out what the source is, and list it, before any picture of a folder or a manifest is opened.

    Files come in the order of their names and labels, whatever order a manifest or the disk has them in.

    Raises:
        UsageError: If the source is the name of nothing.
        DataError: If it is missing or holds no labelled pictures.
    """
    path = find_source(config.source)
    if path is None:
        listing = load_known(config.source, config.dir)
    else:
        listing = list_folder(path) if path.is_dir() else list_manifest(path)
    if isinstance(listing, Listing):
        listing.entries.sort(key=lambda entry: (entry.name, entry.label, entry.split or ""))
    return listing


def find_source(source: str) -> Path | None:
    """Find a source by its name, and open nothing: a folder, a manifest, or None for a known set.

    Raises:
        UsageError: If it is the name of nothing.
        DataError: If it is missing.
    """
    if source in KNOWN:
        return None
    path = Path(os.path.expanduser(source))
    if path.is_dir() or (path.is_file() and path.suffix.lower() in MANIFEST_SUFFIXES):
        return path
    if path.is_file():
        kinds = f"a folder of pictures, unpacked if it is an archive, or a manifest ({', '.join(MANIFEST_SUFFIXES)})"
        raise UsageError(f"{source} is a file: give {kinds}")
    if path.exists():
        raise UsageError(f"{source} is neither a folder nor a regular file: give a folder of images, or a manifest")
    refuse_url(source, as_data=True)
    near = path.parent if path.parent.is_dir() else Path()
    siblings = [str(near / name) if near != Path() else name for name in _folders(near)]
    if os.sep in source or "/" in source or "." in source or source.startswith("~"):
        hint = did_you_mean(os.path.normpath(path), siblings) or " Check the spelling and where you are"
        raise DataError(f"folder not found: {source}.{hint}")
    hint = did_you_mean(source, [*KNOWN, *siblings])
    raise UsageError(f"'{source}' is neither a folder nor a known set ({', '.join(KNOWN)}).{hint}")


def _folders(near: Path) -> list[str]:
    """Names of the folders in a folder; none where it cannot be listed."""
    try:
        return [entry.name for entry in near.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _from_pixels(config: DataConfig, pixels: PixelSet, record: object) -> ImageData:
    """Split a set that is decoded in memory."""
    images = np.concatenate([pixels.splits[split][0] for split in pixels.splits])
    labels = np.concatenate([pixels.splits[split][1] for split in pixels.splits])
    sides = np.concatenate([np.full(len(own), split) for split, (_, own) in pixels.splits.items()])
    folders = {split: split if len(pixels.splits) > 1 else config.source for split in pixels.splits}
    names = [f"{folders[split]}/{n}" for split, (_, own) in pixels.splits.items() for n in range(len(own))]
    digests = [content_hash(image.data) for image in images]
    notes: list[str] = []
    if config.exclude:
        gone, notes = excluded(config.exclude, names)
        kept = np.setdiff1d(np.arange(len(names)), sorted(gone))
        images, labels, sides = images[kept], labels[kept], sides[kept]
        names, digests = [names[n] for n in kept], [digests[n] for n in kept]
    if pixels.test_fraction:  # regardless of classes, as always: scores on it stay comparable
        sides = np.where(held_out(digests, pixels.test_fraction, salt=1), "test", sides)
    sides, how, made = hold_out_val(config, digests, labels.tolist(), sides, record)
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
        held_out=made,
        notes=notes,
    )


def _from_files(
    config: DataConfig, listing: Listing, progress: Progress | None, hold_out: bool, record: object
) -> ImageData:
    """Read the files of a listing, leave out the unreadable ones, and split the rest."""
    entries, notes = listing.entries, list(listing.notes)
    if config.exclude:
        names, paths = [entry.name for entry in entries], [entry.path for entry in entries]
        gone, more = excluded(config.exclude, names, paths, listing.root)
        entries = [entry for n, entry in enumerate(entries) if n not in gone]
        notes += more
    if listing.trusted:
        scanned = [_unopened(entry) for entry in entries]
        measured = scan([entry.path for entry in entries[:: len(entries) // 256 + 1]])
    else:
        scanned = measured = scan([entry.path for entry in entries], progress=progress)
    unreadable = _check_readable(config, entries, scanned)
    good = [n for n, file in enumerate(scanned) if not file.facts.reason]
    labelled = {entry.label for entry in entries}
    entries, digests = [entries[n] for n in good], [scanned[n].digest for n in good]
    classes = listing.classes or _classes_of(config.source, entries, least=2 if hold_out else 1)
    lost = labelled - set(classes)
    if lost:
        notes.append(f"classes without a readable picture, left out: {first_ten(sorted(lost))}")
    at = {name: n for n, name in enumerate(classes)}
    names, labels = [entry.name for entry in entries], np.asarray([at[entry.label] for entry in entries], np.int64)
    sides = np.asarray([entry.split or ("train" if hold_out else "all") for entry in entries])
    notes += copies_across(names, digests, sides)
    made = None
    if hold_out:
        sides, how, made = hold_out_val(config, digests, labels.tolist(), sides, record)
        notes.append(how)
    notes += absent_classes(classes, labels, sides)
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
        held_out=made,
        unreadable=unreadable,
        notes=notes,
    )


def _by_split(
    classes: tuple[str, ...],
    names: Sequence[str],
    labels: npt.NDArray[np.int64],
    digests: Sequence[str],
    sides: npt.NDArray[np.str_],
    *,
    paths: Sequence[Path] | None = None,
    arrays: npt.NDArray[np.uint8] | None = None,
) -> tuple[dict[str, Split], str]:
    """The splits, and the hash of their order: two runs on data of one hash see the same pictures in the same steps."""
    splits, order = {}, hashlib.blake2b(repr(classes).encode(), digest_size=16)
    for name in _ORDER:
        chosen = np.flatnonzero(sides == name).tolist()
        rows = [(names[n], int(labels[n]), digests[n]) for n in chosen]
        order.update(repr((name, rows)).encode())
        if chosen:
            splits[name] = Split(
                labels[chosen],
                tuple(names[n] for n in chosen),
                paths=None if paths is None else [paths[n] for n in chosen],
                arrays=None if arrays is None else arrays[chosen],
            )
    return splits, order.hexdigest()


def _unopened(entry: Entry) -> Scanned:
    """What stands for the content of a file that is trusted: its name and length."""
    identity = f"{entry.name} {entry.path.stat().st_size}"
    return Scanned(content_hash(identity.encode()), PictureFacts((0, 0), False, None))


def _check_readable(config: DataConfig, entries: Sequence[Entry], scanned: Sequence[Scanned]) -> list[tuple[Path, str]]:
    """The files that cannot be decoded, with reasons; an error with `strict`, or where none is left."""
    files = {entry.path: (entry, file.facts.reason) for entry, file in zip(entries, scanned, strict=True)}
    bad = [(entry, reason) for entry, reason in files.values() if reason]  # once each: a table may list a file twice
    named = first_ten([f"{entry.name}: {reason}" for entry, reason in bad], "; ")
    if len(bad) == len(files):
        raise DataError(f"{config.source}: none of {many(len(files), 'picture')} can be read ({named})")
    if bad and config.strict:
        raise DataError(
            f"{len(bad):,} of {len(files):,} files of {config.source} cannot be read ({named}): "
            f"repair or remove them, list them in data.exclude, or leave out --strict"
        )
    return [(entry.path, str(reason)) for entry, reason in bad]


def _classes_of(source: str, entries: Sequence[Entry], least: int) -> tuple[str, ...]:
    """The classes, at least so many: those of train, checked against the other splits."""
    classes = ordered_classes({entry.label for entry in entries if entry.split in (None, "train")})
    for split in ("val", "test"):
        foreign = {entry.label for entry in entries if entry.split == split} - set(classes)
        if foreign:
            raise DataError(
                f"{split} has classes that train does not have: {first_ten(sorted(foreign))}; "
                f"train has {first_ten(classes)}"
            )
    if len(classes) < least:
        inner = sorted({parts[1] for entry in entries if len(parts := Path(entry.name).parts) > 2 and not entry.split})
        hint = ""
        if len(inner) > 1:
            deeper = os.path.join(source, Path(entries[0].name).parts[0])
            hint = f"; if {first_ten(inner)} are the classes, give {deeper}"
        shown = f"only one class, {classes[0]!r}" if classes else "no class in train"
        raise DataError(f"{source} has {shown}, at least two are needed: {LAYOUT}{hint}")
    return classes


def _plain_source_name(source: str) -> str:
    """The last part of a folder's or manifest's path."""
    path = Path(os.path.expanduser(source)).resolve()
    return (path.name if path.is_dir() else path.stem) or "data"


def fingerprint_of(names: Sequence[str], labels: Sequence[str], digests: Sequence[str]) -> str:
    """BLAKE2b over the sorted (name, label, content hash) of all pictures, 32 hex digits."""
    whole = hashlib.blake2b(digest_size=16)
    for row in sorted(zip(names, labels, digests, strict=True)):
        whole.update(repr(row).encode())
    return whole.hexdigest()
