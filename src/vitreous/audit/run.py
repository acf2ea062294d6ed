"""The steps of an audit: list the data, inspect every file, compare, check. The data is never changed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vitreous.audit.cache import Cache, stamp_of
from vitreous.audit.checks import check_classes, check_files
from vitreous.audit.copies import Copies, check_copies, find_copies
from vitreous.audit.findings import KINDS, Audit, AuditImage
from vitreous.audit.look import Inspection, fingerprint, spread_of
from vitreous.audit.watch import hash_pixels, look_at
from vitreous.data.config import DataConfig
from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.checks import label_matrix
from vitreous.data.sources.known import PixelSet
from vitreous.data.sources.listing import UNLABELLED, Entry, Listing, exclusion_line, read_list
from vitreous.data.sources.opening import list_source, open_source, without_excluded
from vitreous.data.sources.scan import Progress, content_hash
from vitreous.data.sources.split import hold_out_val
from vitreous.errors import DataError, pluralize

__all__ = ["audit", "exclusions"]

Bar = Callable[[str], AbstractContextManager[Progress]]


def audit(
    config: DataConfig,
    *,
    workers: int | None = None,
    fresh: bool = False,
    bar: Bar = lambda label: nullcontext(lambda done, total: None),
) -> tuple[Audit, Copies]:
    """Find problems in images. Of those without a label the files and the copies are checked.

    Files are inspected in `workers` separate processes, by default one per core. The results are cached in the user's
    cache folder by path, size and modification time of each file; `fresh` ignores them.
    """
    started = time.monotonic()
    facts: dict[ImagePath, Inspection] = {}
    source = _list(config)
    listing = _without_excluded(config, source) if isinstance(source, Listing) else None
    result = Audit(Path(config.source).name or config.source, [], [])
    cache = Cache(listing.root, fresh) if listing is not None else None
    with bar("look") as at:
        if listing is None or cache is None:
            result.images = list(_inspect_in_memory(config, at))
        else:
            facts, result.from_cache = _inspect_files(listing, cache, workers, at)
            result.images = _with_training_splits(config, listing, facts)
    with bar("compare") as at:
        copies = find_copies(result.images, lambda paths: _hash_pixels(paths, facts, cache, workers), at)
    result.add([*check_files(result.images), *check_copies(result.images, copies)])
    result.add(list(check_classes(result.images, listing)))
    if listing is not None and listing.unlabelled:
        result.notes.append(f"{pluralize(len(listing.unlabelled), 'image')} without a label: files and copies checked")
    if cache is not None and (error := cache.save()):
        result.notes.append(error)
    result.seconds = time.monotonic() - started
    return result, copies


def exclusions(result: Audit, earlier: str | None = None) -> Iterator[str]:
    """Yield the lines of an exclusion list for `train --exclude`, with reasons; suspected labels are commented out.

    The lines of the `earlier` list that the audit used are included, because training takes a single list.
    """
    yield "# Images to exclude with `vitreous train --exclude` or `data.exclude`. Lines that start with # are ignored."
    if earlier is not None:
        yield ""
        yield f"# already excluded by {exclusion_line(earlier)}"
        yield from read_list(earlier)
    listed: set[str] = set()
    for kind, findings in result.by_kind().items():
        is_commented = kind == "suspect"
        lines = []
        for finding in findings:
            names = [result.images[n].name for n in (finding.images if is_commented else finding.drop)]
            lines += [exclusion_line(name) for name in names if name not in listed]
            listed.update(() if is_commented else names)
        if lines:
            yield ""
            yield f"# {KINDS[kind].title}" + (": remove the # from those to exclude" if is_commented else "")
            yield from (f"# {line}" if is_commented else line for line in dict.fromkeys(lines))


def _list(config: DataConfig) -> PixelSet | Listing:
    """List a source; if it has no label at all, all images are among the unlabelled ones of the listing."""
    try:
        return list_source(config, sets_aside=True)
    except DataError:
        with contextlib.suppress(DataError):
            listed = list_source(config, needs_labels=False, reads_sets=True)
            if isinstance(listed, Listing) and all(entry.label == UNLABELLED for entry in listed.entries):
                return replace(listed, entries=[], unlabelled=listed.entries)
        raise


def _without_excluded(config: DataConfig, listing: Listing) -> Listing:
    left = without_excluded(config, listing)
    if not left.entries and not left.unlabelled:
        raise DataError(f"{config.source}: no image is left to audit, {config.exclude} excludes all of them")
    return left


def _inspect_files(
    listing: Listing, cache: Cache, workers: int | None, progress: Progress
) -> tuple[dict[ImagePath, Inspection], int]:
    """Return the inspection of each file, and how many came from the cache."""
    paths = dict.fromkeys(entry.path for entry in (*listing.entries, *listing.unlabelled))
    stamps = {path: stamp_of(path) for path in paths}
    known = {path: found for path, stamp in stamps.items() if (found := cache.find(path, stamp)) is not None}
    new = [path for path in stamps if path not in known]
    facts = known | dict(zip(new, look_at(new, workers, progress), strict=True))
    cache.replace(facts, stamps)
    cache.save()  # already here, because the user may interrupt the next steps
    return facts, len(known)


def _with_training_splits(
    config: DataConfig, listing: Listing, facts: Mapping[ImagePath, Inspection]
) -> list[AuditImage]:
    """Return the images in the splits that training would use; in `all` if it can make no splits.

    Images without a label come last. They are in `train`, of which nothing is held out unless there are no others.
    """
    entries = [*listing.entries, *listing.unlabelled]
    labelled = [True] * len(listing.entries) + [False] * len(listing.unlabelled)
    all_splits = np.asarray([entry.split or "train" for entry in entries])
    divided = listing.entries or listing.unlabelled
    usable = [n for n, entry in enumerate(divided) if not facts[entry.path].reason]
    digests = [facts[entries[n].path].digest for n in usable]
    try:
        strata = _strata(listing, [entries[n] for n in usable]) if listing.entries else None
        all_splits[usable], note, _ = hold_out_val(config, digests, strata, all_splits[usable])
    except DataError as error:
        note = str(error)
        all_splits[:] = [entry.split or "all" for entry in entries]
    listing.notes.append(note)
    return [
        AuditImage(
            entry.name,
            entry.label or ("" if has_label else UNLABELLED),
            str(split),
            facts[entry.path],
            entry.path,
            labels=entry.labels,
            has_label=has_label,
        )
        for entry, split, has_label in zip(entries, all_splits, labelled, strict=True)
    ]


def _strata(listing: Listing, entries: Sequence[Entry]) -> list[str] | npt.NDArray[np.int64]:
    """Return the class of each image, or which labels it has, (n, K): what the split keeps in proportion."""
    if not entries or entries[0].labels is None:
        return [entry.label for entry in entries]
    trained = {name for entry in entries if entry.split in (None, "train") for name in entry.labels or ()}
    return label_matrix([name for name in listing.classes or () if name in trained], entries)


def _inspect_in_memory(config: DataConfig, progress: Progress) -> Iterator[AuditImage]:
    """Yield the images of a known data set that is held in memory."""
    data = open_source(config)
    done, total = 0, sum(len(split) for split in data.splits.values())
    for name, split in data.splits.items():
        for n, label in enumerate(split.labels):
            image = split.image(n)
            thumb, hashes = fingerprint(image)
            digest = content_hash(image.tobytes() if split.arrays is None else split.arrays[n].data)
            size, spread = (image.height, image.width), spread_of(image)
            facts = Inspection(digest=digest, size=size, thumb=thumb, hashes=hashes, spread=spread)
            yield AuditImage(split.name_of(n), data.classes[label], name, facts, pixels=partial(split.image, n))
            done += 1
            progress(done, total)


def _hash_pixels(
    paths: Sequence[ImagePath], facts: Mapping[ImagePath, Inspection], cache: Cache | None, workers: int | None
) -> list[str]:
    """Return a hash of the pixels of each file, from the cache where it has one."""
    if cache is None:
        return []
    digests = [facts[path].digest for path in paths]
    missing = {digest: path for digest, path in zip(digests, paths, strict=True) if digest not in cache.pixels}
    cache.pixels |= dict(zip(missing, hash_pixels(list(missing.values()), workers), strict=True))
    return [cache.pixels[digest] for digest in digests]
