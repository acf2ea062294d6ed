"""What an audit can find: the kinds with their level and meaning, a finding, and the audit's outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from vitreous.audit.look import Look

__all__ = ["KINDS", "LEVELS", "Audit", "Finding", "Kind", "Picture"]

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
"""error: what is trained or measured is not what was meant. warning: probably so. note: handled, and good to know."""


@dataclass(frozen=True)
class Kind:
    """One kind of finding.

    Args:
        level: How bad it is.
        title: In a few words.
        meaning: What it does to training or scores, and what can be done.
    """

    level: Level
    title: str
    meaning: str


KINDS: dict[str, Kind] = {
    "empty": Kind("error", "empty file", "0 bytes: the copy or download failed. Training leaves it out."),
    "truncated": Kind(
        "error", "truncated or damaged file", "It ends too early, or is broken inside. Training leaves it out."
    ),
    "undecodable": Kind("error", "cannot be decoded", "No picture, or none that can be read. Training leaves it out."),
    "bomb": Kind(
        "error", "too many pixels", "Refused before it is decoded, as a decompression bomb. Training leaves it out."
    ),
    "breaks": Kind("error", "stops its decoder", "It takes too long, or crashes. Training leaves it out."),
    "unopened": Kind("error", "cannot be opened", "The file is missing or closed to you. Training leaves it out."),
    "leak": Kind(
        "error",
        "same picture in two splits",
        "Equal in every pixel. Scores on val or test count pictures that were trained on. The list of exclusions has "
        "the copy in train.",
    ),
    "two-labels": Kind(
        "error",
        "same picture under two labels",
        "Equal in every pixel: at least one label is wrong. The list of exclusions has all of them.",
    ),
    "class-names": Kind(
        "error", "one class under two names", "They differ only by case, space or marks, and train as two classes."
    ),
    "class-unknown": Kind("error", "class that train does not have", "It can be neither learned nor scored."),
    "near-leak": Kind(
        "warning",
        "near duplicates in two splits",
        "The same scene, resized, re-encoded, edited or shot again: scores on val or test are too high. The list of "
        "exclusions has the one in train.",
    ),
    "near-two-labels": Kind(
        "warning",
        "near duplicates under two labels",
        "The same scene with different labels: look which is right. The list of exclusions has all of them.",
    ),
    "suspect": Kind(
        "warning",
        "label that looks wrong",
        "By confident learning, least plausible first: probabilities of a model that was not fitted on the picture.",
    ),
    "copies": Kind(
        "warning",
        "exact copies",
        "Equal in every pixel, in one split under one label: they count more than others. The list of exclusions "
        "has all but the first.",
    ),
    "tiny": Kind(
        "warning", "tiny picture", "A shorter side under 32 pixels, far smaller than the others: a thumbnail?"
    ),
    "blank": Kind("warning", "blank image", "One colour, or nearly: there is nothing to learn from it."),
    "aspect": Kind("warning", "extreme aspect ratio", "4 : 1 or more. A crop to the model's shape sees little of it."),
    "inflates": Kind(
        "warning", "inflates when decoded", "Over 16 million pixels in few bytes: nearly nothing on it, and slow."
    ),
    "few": Kind("warning", "class with few pictures", "Too few to learn from, or to be scored on."),
    "unbalanced": Kind(
        "warning",
        "unbalanced classes",
        "The largest has over ten times as many as the smallest: --class-weights or --balanced-sampling may help.",
    ),
    "near-copies": Kind(
        "note", "near duplicates", "The same scene in one split under one label: series, edits, re-encodings."
    ),
    "extension": Kind("note", "wrong extension", "Read by its content here; other programs may refuse it."),
    "frames": Kind("note", "several frames or pages", "Of an animation or a document the first one is used."),
    "cmyk": Kind("note", "CMYK", "Converted to RGB without its colour profile: colours are a little off."),
    "alpha": Kind("note", "transparency", "Composited on white."),
    "deep": Kind("note", "more than 8 bits a channel", "Scaled to 8 bits."),
    "rotated": Kind("note", "turned by EXIF", "Turned upright as its EXIF says. Programs that ignore it see it lying."),
    "class-spelling": Kind("note", "class spelt in two ways", "Unicode writes it in two ways; read as one class."),
    "listing": Kind("note", "about the folder or table", "What was passed over, and how it is split."),
}
"""By name, in the order in which they are shown."""


@dataclass(frozen=True)
class Picture:
    """One labelled picture of the data.

    Args:
        name: As the data calls it; what a list of exclusions is made of.
        label: Class name.
        split: `train`, `val`, `test`, or `all`.
        look: What was seen of it.
        path: The file; None for pixels in memory.
        pixels: Gives the pixels in memory.
    """

    name: str
    label: str
    split: str
    look: Look
    path: Path | None = None
    pixels: Callable[[], Image.Image] = Image.Image


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or good to know.

    Args:
        kind: A name of :data:`KINDS`.
        text: What is particular about this one.
        pictures: Positions in the audit's pictures.
        drop: Those of them that a list of exclusions takes out.
        score: How bad, for those that are ranked; higher first.
    """

    kind: str
    text: str = ""
    pictures: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    score: float | None = None


@dataclass
class Audit:
    """The outcome.

    Args:
        name: Of the data.
        pictures: All that it lists, readable or not.
        findings: In the order of :data:`KINDS`.
        seconds: What it took.
        from_cache: Pictures that were not opened, for they were seen before.
        notes: What a reader of the findings should know.
    """

    name: str
    pictures: list[Picture]
    findings: list[Finding]
    seconds: float = 0.0
    from_cache: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, findings: list[Finding]) -> None:
        """Add findings, and keep the order."""
        order = {name: place for place, name in enumerate(KINDS)}
        self.findings = sorted([*self.findings, *findings], key=lambda one: order[one.kind])

    def of_kind(self) -> dict[str, list[Finding]]:
        """Findings by kind, those kinds that were found."""
        groups: dict[str, list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault(finding.kind, []).append(finding)
        return groups

    def counts(self) -> dict[Level, int]:
        """Number of findings by level."""
        counted = Counter(KINDS[finding.kind].level for finding in self.findings)
        return {level: counted[level] for level in LEVELS}

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values, ready for JSON."""

        def plain(position: int) -> dict[str, Any]:
            picture = self.pictures[position]
            one = {"name": picture.name, "label": picture.label, "split": picture.split}
            return one | ({"path": str(picture.path)} if picture.path else {})

        return {
            "data": self.name,
            "pictures": len(self.pictures),
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
                    "pictures": [plain(n) for n in one.pictures],
                    "exclude": [self.pictures[n].name for n in one.drop],
                }
                | ({} if one.score is None else {"score": one.score})
                for one in self.findings
            ],
        }
