"""The kinds of findings with their level and meaning, and the result of an audit; not the checks themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image

from vitreous.audit.look import Inspection
from vitreous.data.images.stored import ImagePath
from vitreous.errors import pluralize

__all__ = ["KINDS", "LEVELS", "Audit", "AuditImage", "Finding", "Kind"]

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
"""error: training or scores are certainly affected. warning: probably affected. note: handled, for information."""


@dataclass(frozen=True)
class Kind:
    """One kind of finding."""

    level: Level
    title: str
    meaning: str  # its effect on training or scores, and the remedy


KINDS: dict[str, Kind] = {
    "empty": Kind("error", "empty file", "0 bytes: the copy or download failed. Training skips it."),
    "truncated": Kind("error", "truncated or damaged file", "The data ends early or is corrupt. Training skips it."),
    "undecodable": Kind("error", "cannot be decoded", "Not an image, or an unsupported format. Training skips it."),
    "bomb": Kind("error", "too many pixels", "Refused before decoding, as a decompression bomb. Training skips it."),
    "breaks": Kind("error", "stops its decoder", "Decoding takes too long or crashes. Training skips it."),
    "unopened": Kind("error", "cannot be opened", "The file is missing, or you lack permission. Training skips it."),
    "leak": Kind(
        "error",
        "same image in two splits",
        "All pixels are equal. Scores on val or test include images that were trained on. The exclusion list names the "
        "copy in train.",
    ),
    "two-labels": Kind(
        "error",
        "same image under two labels",
        "All pixels are equal: at least one label is wrong. The exclusion list names all copies.",
    ),
    "class-names": Kind(
        "error",
        "one class under two names",
        "The names differ only in case, spaces or invisible characters, and train as two classes.",
    ),
    "class-unknown": Kind(
        "error", "class missing from train", "The model cannot learn it, and every image of it counts as wrong."
    ),
    "near-leak": Kind(
        "warning",
        "near duplicates in two splits",
        "The same scene, resized, re-encoded, edited or shot again: scores on val or test are too high. The exclusion "
        "list names the image in train.",
    ),
    "near-two-labels": Kind(
        "warning",
        "near duplicates under two labels",
        "The same scene with different labels: check which is right. The exclusion list names all of them.",
    ),
    "suspect": Kind(
        "warning",
        "label that looks wrong",
        "Found by confident learning, least plausible first, with a model that was not fitted on the image.",
    ),
    "copies": Kind(
        "warning",
        "exact copies",
        "All pixels are equal, in one split under one label: they weigh more than other images. The exclusion list "
        "names all but the first.",
    ),
    "tiny": Kind(
        "warning",
        "tiny image",
        "The shorter side is under 32 pixels, far smaller than in the other images: a thumbnail?",
    ),
    "blank": Kind("warning", "blank image", "One colour, or nearly so: there is nothing to learn from it."),
    "aspect": Kind(
        "warning", "extreme aspect ratio", "4 : 1 or more. A crop to the model's input size shows little of it."
    ),
    "inflates": Kind(
        "warning",
        "inflates when decoded",
        "Over 16 million pixels in few bytes: almost no content, and slow to decode.",
    ),
    "few": Kind("warning", "class with few images", "Too few to train or to score on."),
    "unbalanced": Kind(
        "warning",
        "unbalanced classes",
        "The largest class has over ten times as many images as the smallest: --class-weights or "
        "--balanced-sampling may help.",
    ),
    "near-copies": Kind(
        "note", "near duplicates", "The same scene in one split under one label: series, edits or re-encoded copies."
    ),
    "extension": Kind(
        "note", "wrong extension", "The format is detected from the content; other programs may refuse the file."
    ),
    "frames": Kind("note", "several frames or pages", "Only the first is used."),
    "cmyk": Kind("note", "CMYK", "Converted to RGB without its colour profile: colours are slightly off."),
    "alpha": Kind("note", "transparency", "Composited on white."),
    "deep": Kind("note", "more than 8 bits per channel", "Scaled to 8 bits."),
    "rotated": Kind("note", "rotated by EXIF", "Rotated upright by its EXIF orientation, which some programs ignore."),
    "class-spelling": Kind(
        "note", "class name in two Unicode forms", "Equivalent by Unicode normalisation; read as one class."
    ),
    "listing": Kind("note", "about the folder or table", "Files that were skipped, and how the data is split."),
}
"""Kinds by name, in the order in which they are shown."""


@dataclass(frozen=True)
class AuditImage:
    """One image of the data."""

    name: str  # name within the data, as used in exclusion lists
    label: str  # class name, or several joined by semicolons, in one order
    split: str  # `train`, `val`, `test`, or `all`
    facts: Inspection
    path: ImagePath | None = None  # None for pixels in memory
    pixels: Callable[[], Image.Image] = Image.Image  # returns the image where it is in memory
    labels: tuple[str, ...] | None = None  # in data where an image may have several labels, or none
    has_label: bool = True  # whether its label, or that it has none of several, is known

    @property
    def classes(self) -> tuple[str, ...]:
        """The one class of the image, or its labels."""
        if not self.has_label:
            return ()
        return (self.label,) if self.labels is None else self.labels


@dataclass(frozen=True)
class Finding:
    """One finding."""

    kind: str  # a key of :data:`KINDS`
    text: str = ""  # details of this finding
    images: tuple[int, ...] = ()  # indices of its images in :attr:`Audit.images`
    drop: tuple[int, ...] = ()  # those of them that an exclusion list names
    score: float | None = None  # severity of findings that are ranked, highest first


@dataclass
class Audit:
    """The result of an audit."""

    name: str
    images: list[AuditImage]  # all listed images, readable or not
    findings: list[Finding]  # in the order of :data:`KINDS`
    seconds: float = 0.0
    from_cache: int = 0  # number of images whose inspection came from the cache
    notes: list[str] = field(default_factory=list)  # remarks on how to read the findings

    def add(self, findings: list[Finding]) -> None:
        """Add findings and keep the order of :data:`KINDS`."""
        order = list(KINDS)
        self.findings = sorted([*self.findings, *findings], key=lambda one: order.index(one.kind))

    def by_kind(self) -> dict[str, list[Finding]]:
        """Return the findings by kind, without empty kinds."""
        groups: dict[str, list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault(finding.kind, []).append(finding)
        return groups

    def counts(self) -> dict[Level, int]:
        """Return the number of findings by level."""
        counted = Counter(KINDS[finding.kind].level for finding in self.findings)
        return {level: counted[level] for level in LEVELS}

    def describe_counts(self) -> str:
        """Return the number of findings by level in words: ``3 errors, 1 warning, 0 notes``."""
        return ", ".join(pluralize(count, level) for level, count in self.counts().items())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""

        def plain(position: int) -> dict[str, Any]:
            image = self.images[position]
            entry = {"name": image.name, "label": image.label, "split": image.split}
            return entry | ({"path": str(image.path)} if image.path else {})

        return {
            "data": self.name,
            "pictures": len(self.images),
            "seconds": round(self.seconds, 2),
            "from_cache": self.from_cache,
            "counts": self.counts(),
            "notes": self.notes,
            "findings": [
                {
                    "kind": one.kind,
                    "level": KINDS[one.kind].level,
                    "title": KINDS[one.kind].title,
                    "text": one.text,
                    "pictures": [plain(n) for n in one.images],
                    "exclude": [self.images[n].name for n in one.drop],
                }
                | ({} if one.score is None else {"score": one.score})
                for one in self.findings
            ],
        }
