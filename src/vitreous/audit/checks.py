"""What is wrong with single files and with classes, from what was seen of them. Copies are `vitreous.audit.copies`."""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from vitreous.audit.findings import Finding, Picture
from vitreous.audit.watch import STOPS
from vitreous.data.sources.listing import Listing, first_ten, many
from vitreous.files.text import visible

__all__ = ["check_classes", "check_files", "reason_kind"]

_TINY = 32  # pixels of the shorter side
_ASPECT = 4.0  # longer side to shorter side
_BLANK = 6  # grey levels of 255 in 32 x 32 parts; the least of 60,000 images of CIFAR-10 is 55, of the flowers 115
_INFLATES = (16_000_000, 200)  # pixels, and pixels a byte of the file: photographs have 2 to 20
_FEW = 10  # pictures of a class to train on
_LOPSIDED = 10.0  # largest to smallest class

# What files of a format are called; the first is what a wrong one should be.
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


def check_files(pictures: Sequence[Picture]) -> Iterator[Finding]:
    """Yield what is wrong with each file on its own."""
    sides = [min(one.look.size) for one in pictures if not one.look.reason]
    usual = statistics.median(sides) if sides else 0
    told = set()
    for n, picture in enumerate(pictures):
        if picture.path is not None and picture.path in told:
            continue  # a table may list a file twice
        told.add(picture.path)
        if picture.look.reason:
            yield Finding(reason_kind(picture.look.reason), picture.look.reason, (n,), (n,))
        else:
            yield from (Finding(kind, text, (n,)) for kind, text in _oddities(picture, usual))


def reason_kind(reason: str) -> str:
    """The kind of finding that a reason for which a file cannot be used makes."""
    if reason.startswith(STOPS):
        return "breaks"
    if reason.startswith("empty"):
        return "empty"
    if "pixels, the limit for" in reason:
        return "bomb"
    if reason in ("no such file", "a link to a file that is gone", "permission denied") or "regular file" in reason:
        return "unopened"
    return "truncated" if reason.endswith("truncated") else "undecodable"


def _oddities(picture: Picture, usual: float) -> Iterator[tuple[str, str]]:
    """Yield kind and text of what is odd about a file that can be read."""
    look = picture.look
    height, width = look.size
    shape = f"{width:,} x {height:,} pixels"
    if min(look.size) < _TINY and 2 * min(look.size) < usual:
        yield "tiny", shape
    if look.spread <= _BLANK:
        yield "blank", "one colour" if not look.spread else f"its colours differ by {look.spread} of 255 levels"
    if max(look.size) >= _ASPECT * min(look.size):
        yield "aspect", f"{max(look.size) / min(look.size):.1f} : 1, {shape}"
    if picture.path is None:
        return
    pixels, density = _INFLATES
    if width * height > pixels and width * height > density * look.length:
        yield "inflates", f"{shape} in {look.length:,} bytes"
    right = _EXTENSIONS.get(look.form, ())
    own = picture.path.suffix.lower().lstrip(".")
    if right and own not in right:
        called = f"called .{visible(own)}" if own else "without an extension"
        yield "extension", f"{look.form} {called}, not .{right[0]}"
    if look.frames > 1:
        yield "frames", many(look.frames, "frame" if look.form != "TIFF" else "page")
    if look.mode == "CMYK":
        yield "cmyk", ""
    if look.alpha:
        yield "alpha", ""
    if look.deep:
        yield "deep", ""
    if look.orientation != 1:
        yield "rotated", f"EXIF orientation {look.orientation}"


def check_classes(pictures: Sequence[Picture], listing: Listing | None) -> Iterator[Finding]:
    """Yield what is wrong with the classes: their names, and how many pictures they have."""
    labels = {one.label for one in pictures}
    same = defaultdict(list)
    for label in sorted(labels):
        same[_key(label)].append(label)
    for names in same.values():
        if len(names) > 1:
            examples = tuple(next(n for n, one in enumerate(pictures) if one.label == name) for name in names)
            yield Finding("class-names", _names(names), examples)
    usable = [one for one in pictures if not one.look.reason]
    yield from _unknown(usable)
    yield from _sizes(usable, labels)
    for folders in _spellings(listing):
        yield Finding("class-spelling", " and ".join(ascii(name) for name in folders))
    if listing is not None:
        yield from (Finding("listing", visible(note)) for note in listing.notes)


def _key(label: str) -> str:
    """What is left of a class name without case, space, marks that are not seen, and ways to write a letter."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    kept = "".join(char for char in text if unicodedata.category(char) not in ("Cc", "Cf"))
    return re.sub(r"[\s_-]+", "", kept) or text


def _names(names: Sequence[str]) -> str:
    """Class names in quotes; where the eye cannot tell them apart, with their code points."""
    shown = [f'"{visible(name)}"' for name in names]
    folded = {unicodedata.normalize("NFKC", name) for name in names}
    return " and ".join(shown if len(folded) == len(names) else [ascii(name) for name in names])


def _unknown(usable: Sequence[Picture]) -> Iterator[Finding]:
    """Yield the classes that only val or test have."""
    trained = {one.label for one in usable if one.split in ("train", "all")}
    for split in ("val", "test"):
        missing = sorted({one.label for one in usable if one.split == split} - trained)
        for label in missing:
            found = tuple(n for n, one in enumerate(usable) if (one.label, one.split) == (label, split))
            yield Finding("class-unknown", f'"{visible(label)}": {many(len(found), "picture")}, all in {split}')


def _sizes(usable: Sequence[Picture], labels: set[str]) -> Iterator[Finding]:
    """Yield the classes that are too small, and how unlike their sizes are."""
    trained = Counter(one.label for one in usable if one.split in ("train", "all"))
    sizes = {label: trained[label] for label in labels}
    if len(sizes) == 1:
        yield Finding("few", f'only one class, "{visible(next(iter(sizes)))}": there is nothing to tell apart')
        return
    few = sorted((count, label) for label, count in sizes.items() if count < _FEW)
    where = "" if all(one.split == "all" for one in usable) else " in train"
    if len(few) > 10:
        shown = first_ten([f'"{visible(label)}" {count}' for count, label in few])
        yield Finding("few", f"{len(few):,} classes have under {_FEW} pictures{where}: {shown}")
    else:
        for count, label in few:
            yield Finding("few", f'"{visible(label)}": {many(count, "picture")}{where}')
    least, most = min(sizes, key=lambda name: sizes[name]), max(sizes, key=lambda name: sizes[name])
    if sizes[most] > _LOPSIDED * max(sizes[least], 1):
        each = f'"{visible(least)}" has {many(sizes[least], "picture")}, "{visible(most)}" {sizes[most]:,}'
        yield Finding("unbalanced", each)
    for split in ("val", "test"):
        present = {one.label for one in usable if one.split == split}
        absent = sorted(labels - present)
        if present and absent:
            yield Finding("few", f"no picture in {split}: {first_ten([visible(name) for name in absent])}")


def _spellings(listing: Listing | None) -> Iterator[list[str]]:
    """Yield the folders that are read as one class, for Unicode says that they are one name."""
    spelt = defaultdict(set)
    for entry in listing.entries if listing is not None else ():
        for part in entry.name.split("/")[:-1]:
            if unicodedata.normalize("NFC", part) == entry.label:
                spelt[entry.label].add(part)
    yield from (sorted(names) for names in spelt.values() if len(names) > 1)
