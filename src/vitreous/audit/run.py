"""The order of events of an audit: list, look at every file, compare, check. Nothing of the data is ever changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from vitreous.audit.cache import Cache, stamp_of
from vitreous.audit.checks import check_classes, check_files
from vitreous.audit.copies import Copies, check_copies, find_copies
from vitreous.audit.findings import KINDS, Audit, Picture
from vitreous.audit.look import Look, seen, spread_of
from vitreous.audit.watch import look_at, pixels_of
from vitreous.data.config import DataConfig
from vitreous.data.sources.listing import Listing, as_line, excluded, read_list
from vitreous.data.sources.opening import list_source, open_source
from vitreous.data.sources.scan import Progress, content_hash
from vitreous.data.sources.split import hold_out_val
from vitreous.errors import DataError

__all__ = ["audit", "exclusions"]

Bar = Callable[[str], AbstractContextManager[Progress]]


def audit(
    config: DataConfig,
    *,
    workers: int | None = None,
    fresh: bool = False,
    bar: Bar = lambda label: nullcontext(lambda done, total: None),
) -> tuple[Audit, Copies]:
    """Look for what is wrong with labelled pictures.

    Files are looked at in processes of their own, one per core; what was seen is kept in the user's cache folder, by
    path, size and time of each file.

    Args:
        config: The data, as training takes it: its ``source``, and ``dir``, ``exclude``, ``val_fraction``, ``split``.
        workers: Processes; None is one per core.
        fresh: Whether to look at every file again.
        bar: Makes a progress bar of a label.

    Returns:
        The outcome, and which pictures are copies of each other.

    Raises:
        UsageError: If the source is the name of nothing.
        DataError: If it is missing, or holds no labelled pictures.
    """
    started = time.monotonic()
    looks: dict[Path, Look] = {}
    found = list_source(config)
    listing = _left_in(config, found) if isinstance(found, Listing) else None
    result = Audit(Path(config.source).name or config.source, [], [])
    cache = Cache(listing.root, fresh) if listing is not None else None
    with bar("look") as at:
        if listing is None or cache is None:
            result.pictures = list(_in_memory(config, at))
        else:
            looks, result.from_cache = _looks(listing, cache, workers, at)
            result.pictures = _as_trained(config, listing, looks)
    with bar("compare") as at:
        copies = find_copies(result.pictures, lambda paths: _pixels(paths, looks, cache, workers), at)
    result.add([*check_files(result.pictures), *check_copies(result.pictures, copies)])
    result.add(list(check_classes(result.pictures, listing)))
    trouble = cache.save() if cache is not None else ""
    result.notes += [trouble] if trouble else []
    result.seconds = time.monotonic() - started
    return result, copies


def exclusions(result: Audit, earlier: str | None = None) -> Iterator[str]:
    """Yield the lines of a list for `train --exclude`: what to leave out, and why; suspects as comments.

    Args:
        result: Of the audit.
        earlier: The list whose images were left out of it: its lines come first, since training takes one list.

    Raises:
        DataError: If that cannot be read any more.
    """
    yield "# Images to leave out, for `vitreous train --exclude` and `data.exclude`. Lines with # are not read."
    if earlier is not None:
        yield ""
        yield f"# left out already, by {as_line(earlier)}"
        yield from read_list(earlier)
    told: set[str] = set()
    for kind, findings in result.of_kind().items():
        commented = kind == "suspect"
        lines = []
        for finding in findings:
            names = [result.pictures[n].name for n in (finding.pictures if commented else finding.drop)]
            lines += [as_line(name) for name in names if name not in told]
            told.update(() if commented else names)
        if lines:
            yield ""
            yield f"# {KINDS[kind].title}" + (": take away the # of those to leave out" if commented else "")
            yield from (f"# {line}" if commented else line for line in dict.fromkeys(lines))


def _left_in(config: DataConfig, listing: Listing) -> Listing:
    """The listing without what is to be excluded."""
    if not config.exclude:
        return listing
    names, paths = [entry.name for entry in listing.entries], [entry.path for entry in listing.entries]
    gone, notes = excluded(config.exclude, names, paths, listing.root)
    entries = [entry for n, entry in enumerate(listing.entries) if n not in gone]
    if not entries:
        raise DataError(f"{config.source}: no picture is left to look at, {config.exclude} takes out all of them")
    return replace(listing, entries=entries, notes=[*listing.notes, *notes])


def _looks(listing: Listing, cache: Cache, workers: int | None, progress: Progress) -> tuple[dict[Path, Look], int]:
    """What is seen of each file, and of how many it was known."""
    stamps = {path: stamp_of(path) for path in dict.fromkeys(entry.path for entry in listing.entries)}
    known = {path: look for path, stamp in stamps.items() if (look := cache.find(path, stamp)) is not None}
    new = [path for path in stamps if path not in known]
    looks = known | dict(zip(new, look_at(new, workers, progress), strict=True))
    cache.keep(looks, stamps)
    cache.save()  # here too: what follows may be interrupted
    return looks, len(known)


def _as_trained(config: DataConfig, listing: Listing, looks: Mapping[Path, Look]) -> list[Picture]:
    """The pictures in the splits that training would make of them, where it can make any."""
    entries = listing.entries
    sides = np.asarray([entry.split or "train" for entry in entries])
    usable = [n for n, entry in enumerate(entries) if not looks[entry.path].reason]
    try:
        digests, labels = [looks[entries[n].path].digest for n in usable], [entries[n].label for n in usable]
        made, how, _ = hold_out_val(config, digests, labels, sides[usable])
    except DataError as error:
        listing.notes.append(str(error))
        sides[:] = [entry.split or "all" for entry in entries]
    else:
        sides[usable] = made
        listing.notes.append(how)
    return [
        Picture(entry.name, entry.label, str(side), looks[entry.path], entry.path)
        for entry, side in zip(entries, sides, strict=True)
    ]


def _in_memory(config: DataConfig, progress: Progress) -> Iterator[Picture]:
    """The pictures of a known set that comes decoded."""
    data = open_source(config)
    done, total = 0, sum(len(split) for split in data.splits.values())
    for name, split in data.splits.items():
        for n, label in enumerate(split.labels):
            picture = split.picture(n)
            thumb, hashes = seen(picture)
            digest = content_hash(picture.tobytes() if split.arrays is None else split.arrays[n].data)
            size, spread = (picture.height, picture.width), spread_of(picture)
            look = Look(digest=digest, size=size, thumb=thumb, hashes=hashes, spread=spread)
            yield Picture(split.name_of(n), data.classes[label], name, look, pixels=partial(split.picture, n))
            done += 1
            progress(done, total)


def _pixels(paths: Sequence[Path], looks: Mapping[Path, Look], cache: Cache | None, workers: int | None) -> list[str]:
    """Hashes of the pixels of files, from the cache where it has them."""
    if cache is None:
        return []
    digests = [looks[path].digest for path in paths]
    missing = {digest: path for digest, path in zip(digests, paths, strict=True) if digest not in cache.pixels}
    cache.pixels |= dict(zip(missing, pixels_of(list(missing.values()), workers), strict=True))
    return [cache.pixels[digest] for digest in digests]
