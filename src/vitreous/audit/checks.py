"""Checks of single files and of classes, given the inspections. Copies are in :mod:`vitreous.audit.copies`."""

from __future__ import annotations

import os
import re
import statistics
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from vitreous.audit.findings import AuditImage, Finding
from vitreous.audit.watch import DECODER_EXIT_PREFIX
from vitreous.data.sources.listing import Listing, first_ten
from vitreous.errors import pluralize
from vitreous.files.text import visible

__all__ = ["check_classes", "check_files", "reason_kind"]

_TINY = 32  # pixels of the shorter side
_ASPECT = 4.0  # longer side to shorter side
_BLANK = 6  # levels of 255 between the darkest and the brightest of 32 x 32 cells; real images have over 50
_INFLATES = (16_000_000, 200)  # pixels, and pixels per byte of the file: photographs have 2 to 20
_MIN_IMAGES = 10  # per class in train
_LOPSIDED = 10.0  # largest to smallest class

# Accepted extensions; the first is the one to recommend.
_EXTENSIONS: dict[str, tuple[str, ...]] = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif", "jif", "mpo"),
    "MPO": ("jpg", "jpeg", "jpe", "mpo"),
    "PNG": ("png", "apng"),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "TIFF": ("tif", "tiff"),
    "BMP": ("bmp", "dib"),
    "DIB": ("dib", "bmp"),
    "AVIF": ("avif", "avifs"),
    "HEIF": ("heic", "heif", "hif"),
    "JPEG2000": ("jp2", "j2k", "jpx", "jpf", "j2c", "jpc"),
    "PPM": ("ppm", "pgm", "pbm", "pnm", "pfm"),
    "ICO": ("ico",),
    "QOI": ("qoi",),
}


def check_files(images: Sequence[AuditImage]) -> Iterator[Finding]:
    """Yield findings about single files."""
    sides = [min(image.facts.size) for image in images if not image.facts.reason]
    median_side = statistics.median(sides) if sides else 0
    checked = set()
    for n, image in enumerate(images):
        if image.path is not None and image.path in checked:
            continue  # a table may list a file twice
        checked.add(image.path)
        if image.facts.reason:
            yield Finding(reason_kind(image.facts.reason), image.facts.reason, (n,), (n,))
        else:
            yield from (Finding(kind, text, (n,)) for kind, text in _oddities(image, median_side))


def reason_kind(reason: str) -> str:
    """Return the kind of finding for the reason why a file cannot be used."""
    if reason.startswith(DECODER_EXIT_PREFIX):
        return "breaks"
    if reason.startswith("empty"):
        return "empty"
    if "pixels, the limit for" in reason:
        return "bomb"
    if reason in ("no such file", "a link to a file that is gone", "permission denied") or "regular file" in reason:
        return "unopened"
    return "truncated" if reason.endswith("truncated") else "undecodable"


def _oddities(image: AuditImage, median_side: float) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each finding about a readable file."""
    facts = image.facts
    height, width = facts.size
    shape = f"{width:,} x {height:,} pixels"
    if min(facts.size) < _TINY and 2 * min(facts.size) < median_side:
        yield "tiny", shape
    if facts.spread <= _BLANK:
        yield "blank", "one colour" if not facts.spread else f"its colours differ by {facts.spread} of 255 levels"
    if max(facts.size) >= _ASPECT * min(facts.size):
        yield "aspect", f"{max(facts.size) / min(facts.size):.1f} : 1, {shape}"
    if image.path is None:
        return
    pixels, density = _INFLATES
    if width * height > pixels and width * height > density * facts.length:
        yield "inflates", f"{shape} in {facts.length:,} bytes"
    accepted = _EXTENSIONS.get(facts.form, ())
    extension = os.path.splitext(image.path)[1].lower().lstrip(".")
    if accepted and extension not in accepted:
        actual = f"with extension .{visible(extension)}" if extension else "without extension"
        yield "extension", f"{facts.form} {actual}, expected .{accepted[0]}"
    if facts.frames > 1:
        yield "frames", pluralize(facts.frames, "frame" if facts.form != "TIFF" else "page")
    if facts.mode == "CMYK":
        yield "cmyk", ""
    if facts.alpha:
        yield "alpha", ""
    if facts.deep:
        yield "deep", ""
    if facts.orientation != 1:
        yield "rotated", f"EXIF orientation {facts.orientation}"


def check_classes(images: Sequence[AuditImage], listing: Listing | None) -> Iterator[Finding]:
    """Yield findings about the names and sizes of classes."""
    labels = {label for image in images for label in image.classes}
    similar = defaultdict(list)
    for label in sorted(labels):
        similar[_key(label)].append(label)
    for names in similar.values():
        if len(names) > 1:
            examples = tuple(next(n for n, image in enumerate(images) if name in image.classes) for name in names)
            yield Finding("class-names", _names(names), examples)
    usable = [image for image in images if not image.facts.reason]
    yield from _missing_from_train(usable)
    yield from _sizes(usable, labels)
    for folders in _spellings(listing):
        yield Finding("class-spelling", " and ".join(ascii(name) for name in folders))
    if listing is not None:
        yield from (Finding("listing", visible(note)) for note in listing.notes)


def _key(label: str) -> str:
    """Return a class name without case, spaces, invisible characters and variants of the same character."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    kept = "".join(char for char in text if unicodedata.category(char) not in ("Cc", "Cf"))
    return re.sub(r"[\s_-]+", "", kept) or text


def _names(names: Sequence[str]) -> str:
    """Return class names in quotes, with escapes if they look the same."""
    shown = [f'"{visible(name)}"' for name in names]
    folded = {unicodedata.normalize("NFKC", name) for name in names}
    return " and ".join(shown if len(folded) == len(names) else [ascii(name) for name in names])


def _missing_from_train(usable: Sequence[AuditImage]) -> Iterator[Finding]:
    trained = {label for one in usable if one.split in ("train", "all") for label in one.classes}
    for split in ("val", "test"):
        counts = Counter(label for one in usable if one.split == split for label in one.classes)
        for label in sorted(counts.keys() - trained):
            yield Finding("class-unknown", f'"{visible(label)}": {pluralize(counts[label], "image")}, all in {split}')


def _sizes(usable: Sequence[AuditImage], labels: set[str]) -> Iterator[Finding]:
    trained = Counter(label for one in usable if one.split in ("train", "all") for label in one.classes)
    sizes = {label: trained[label] for label in labels}
    if not sizes:  # no image has a label
        return
    if len(sizes) == 1:
        yield Finding("few", f'only one class, "{visible(next(iter(sizes)))}": a classifier needs at least two')
        return
    few = sorted((count, label) for label, count in sizes.items() if count < _MIN_IMAGES)
    where = "" if all(one.split == "all" for one in usable) else " in train"
    if len(few) > 10:
        shown = first_ten([f'"{visible(label)}" {count}' for count, label in few])
        yield Finding("few", f"{len(few):,} classes have under {_MIN_IMAGES} images{where}: {shown}")
    else:
        for count, label in few:
            yield Finding("few", f'"{visible(label)}": {pluralize(count, "image")}{where}')
    least, most = min(sizes, key=lambda name: sizes[name]), max(sizes, key=lambda name: sizes[name])
    if sizes[most] > _LOPSIDED * max(sizes[least], 1):
        each = f'"{visible(least)}" has {pluralize(sizes[least], "image")}, "{visible(most)}" {sizes[most]:,}'
        yield Finding("unbalanced", each)
    for split in ("val", "test"):
        present = {label for one in usable if one.split == split for label in one.classes}
        absent = sorted(labels - present)
        if present and absent:
            yield Finding("few", f"no image in {split}: {first_ten([visible(name) for name in absent])}")


def _spellings(listing: Listing | None) -> Iterator[list[str]]:
    """Yield the folder names that are Unicode variants of one class name."""
    spelt = defaultdict(set)
    for entry in listing.entries if listing is not None else ():
        for part in entry.name.split("/")[:-1]:
            if unicodedata.normalize("NFC", part) == entry.label:
                spelt[entry.label].add(part)
    yield from (sorted(names) for names in spelt.values() if len(names) > 1)
