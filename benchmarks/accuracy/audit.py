"""Measure what `vitreous audit` finds of twenty faults planted in real photographs, and what it reports falsely.

    python benchmarks/accuracy/audit.py --data ~/data/flowers --work /tmp/audit

DATA is a folder with train/ and val/, each with one folder per class. Links the photographs into a work folder, except
those that an audit of DATA reports; these are printed, as they are real findings. The audit of the linked photographs
must report nothing. Then one fault of each kind is planted, and the audit must find each in the right images and
nothing else. Prints a Markdown table and the seconds per thousand images, first and from the cache.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import struct
import time
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from vitreous.audit.findings import Audit
from vitreous.audit.run import audit, exclusions
from vitreous.data.config import DataConfig

Found = set[tuple[str, frozenset[str]]]


def png_of(width: int, height: int) -> bytes:
    """Return a grey PNG of a few hundred bytes whose header claims the given size, one bit per pixel."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = zlib.compress(bytes(1000))
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    """Encode an image."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


class Planter:
    """Plants faults in a folder with train/ and val/, and records what an audit should report.

    Args:
        root: The folder.
        spare: Photographs that are not in it.
    """

    def __init__(self, root: Path, spare: list[Path]) -> None:
        self.root, self.spare = root, spare
        self.expected: list[tuple[str, str, frozenset[str]]] = []
        self.classes = sorted(path.name for path in (root / "train").iterdir())

    def photo(self) -> Image.Image:
        """Take an unused photograph, as RGB."""
        return Image.open(self.spare.pop()).convert("RGB")

    def put(self, name: str, content: bytes) -> str:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return name

    def expect(self, what: str, kind: str, *names: str) -> None:
        """Record an expected finding."""
        self.expected.append((what, kind, frozenset(names)))

    def plant(self) -> None:
        """Plant every fault."""
        self._files()
        self._forms()
        self._copies()
        self._classes()

    def _files(self) -> None:
        a, b = self.classes[:2]
        jpeg, png = saved(self.photo(), "JPEG"), saved(self.photo(), "PNG")
        damaged = bytearray(png)
        damaged[len(png) // 2 : len(png) // 2 + 64] = bytes(64)
        bomb = png_of(50_000, 50_000)
        self.expect("zero bytes", "empty", self.put(f"train/{a}/p-empty.jpg", b""))
        self.expect("truncated JPEG", "truncated", self.put(f"train/{a}/p-cut.jpg", jpeg[: len(jpeg) // 2]))
        self.expect("damaged PNG", "truncated", self.put(f"train/{b}/p-damaged.png", bytes(damaged)))
        self.expect("text called .jpg", "undecodable", self.put(f"val/{b}/p-text.jpg", b"not an image\n" * 20))
        self.expect("PNG of 50,000 x 50,000", "bomb", self.put(f"train/{b}/p-bomb.png", bomb))

    def _forms(self) -> None:
        a, b = self.classes[:2]
        photo = self.photo()
        exif = Image.Exif()
        exif[0x0112] = 6
        frames = [self.photo().resize((120, 90)) for _ in range(3)]
        deep = np.asarray(self.photo().convert("L")).astype(np.uint16) * 257
        half = self.photo()
        half.putalpha(Image.linear_gradient("L").resize(half.size))
        for what, kind, name, content in (
            ("PNG called .jpg", "extension", f"train/{a}/p-png.jpg", saved(self.photo(), "PNG")),
            (
                "animated GIF",
                "frames",
                f"train/{a}/p-moves.gif",
                saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
            ),
            ("CMYK JPEG", "cmyk", f"train/{b}/p-cmyk.jpg", saved(self.photo().convert("CMYK"), "JPEG")),
            ("PNG with alpha", "alpha", f"train/{b}/p-alpha.png", saved(half, "PNG")),
            ("16-bit PNG", "deep", f"val/{a}/p-deep.png", saved(Image.fromarray(deep), "PNG")),
            ("turned by EXIF", "rotated", f"train/{a}/p-turned.jpg", saved(photo, "JPEG", exif=exif)),
            ("8 : 1", "aspect", f"train/{b}/p-wide.jpg", saved(self.photo().resize((800, 100)), "JPEG")),
            ("20 x 15 pixels", "tiny", f"train/{a}/p-tiny.png", saved(self.photo().resize((20, 15)), "PNG")),
        ):
            self.expect(what, kind, self.put(name, content))

    def _copies(self) -> None:
        a, b = self.classes[:2]
        one, two, three, four = (saved(self.photo(), "JPEG", quality=95) for _ in range(4))
        again = Image.open(io.BytesIO(one)).convert("RGB")
        self.expect(
            "JPEG in train, its PNG in val",
            "leak",
            self.put(f"train/{a}/p-1.jpg", one),
            self.put(f"val/{a}/p-1.png", saved(again, "PNG")),
        )
        self.expect(
            "same file twice", "copies", self.put(f"train/{b}/p-2.jpg", two), self.put(f"train/{b}/p-2b.jpg", two)
        )
        self.expect(
            "same file in two classes",
            "two-labels",
            self.put(f"train/{a}/p-3.jpg", three),
            self.put(f"train/{b}/p-3.jpg", three),
        )
        photo = Image.open(io.BytesIO(four)).convert("RGB")
        smaller = photo.resize((photo.width * 2 // 3, photo.height * 2 // 3))
        self.expect(
            "smaller and brighter in val",
            "near-leak",
            self.put(f"train/{a}/p-4.jpg", four),
            self.put(f"val/{a}/p-4.jpg", saved(ImageEnhance.Brightness(smaller).enhance(1.25), "JPEG", quality=60)),
        )
        five = self.photo()
        width, height = five.size
        cut = five.crop((width // 60, height // 60, width - width // 60, height - height // 60))
        self.expect(
            "its margin cut, in another class",
            "near-two-labels",
            self.put(f"train/{a}/p-5.jpg", saved(five, "JPEG")),
            self.put(f"train/{b}/p-5.jpg", saved(cut, "JPEG", quality=50)),
        )

    def _classes(self) -> None:
        a = self.classes[0]
        twin = f"{a.upper()} "
        for n in range(12):
            self.put(f"train/{twin}/{n}.jpg", saved(self.photo(), "JPEG"))
        self.put(f"val/{twin}/1.jpg", saved(self.photo(), "JPEG"))
        self.expect("class whose name differs by case and space", "class-names", a, twin)
        for n in range(3):
            self.put(f"train/rare/{n}.jpg", saved(self.photo(), "JPEG"))
        self.put("val/rare/1.jpg", saved(self.photo(), "JPEG"))
        self.expect("class of three images", "few", "rare")


def found_in(result: Audit) -> Found:
    """Return kind and images (or classes) of every finding, except remarks about the folder layout."""
    rows = set()
    for finding in result.findings:
        names = [result.images[n].name for n in finding.images]
        if finding.kind in ("class-names", "few", "unbalanced", "class-unknown"):
            labels = {image.label for image in result.images}
            names = [
                label for label in labels if f'"{label}"' in finding.text or f'"{label[:-1]}\\x20"' in finding.text
            ]
        if finding.kind != "listing":
            rows.add((finding.kind, frozenset(names)))
    return rows


def link_clean(data: Path, root: Path, keep_out: set[str], spare: int, every: int = 1) -> list[Path]:
    """Link the photographs without findings into a folder, and keep some aside.

    Args:
        data: Folder with train/ and val/.
        root: Where to link.
        keep_out: Names in the findings of the data.
        spare: How many to keep aside.
        every: Link one photograph out of this many.

    Returns:
        Those kept aside.
    """
    aside: list[Path] = []
    for split in ("train", "val"):
        files = [
            path for path in sorted((data / split).rglob("*.jpg")) if path.relative_to(data).as_posix() not in keep_out
        ]
        for n, path in enumerate(files):
            if split == "train" and len(aside) < spare and n % 7 == 3:
                aside.append(path)
            elif n % every == 0:
                target = root / path.relative_to(data)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(path.resolve(), target)
    return aside


def compare(expected: list[tuple[str, str, frozenset[str]]], found: Found) -> tuple[list[str], Found]:
    """Return the planted faults that were not found, and the findings that were not planted."""
    missed = [what for what, kind, names in expected if (kind, names) not in found]
    # The class of three images also makes the classes unbalanced.
    extra = {(kind, names) for kind, names in found if kind != "unbalanced"} - {
        (kind, names) for _, kind, names in expected
    }
    return missed, extra


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = str(options.work / "cache")

    def timed(root: Path, fresh: bool = False) -> tuple[Audit, float]:
        start = time.perf_counter()
        result, _ = audit(DataConfig(str(root)), fresh=fresh)
        return result, (time.perf_counter() - start) / len(result.images) * 1000

    shutil.rmtree(options.work / "planted", ignore_errors=True)
    real, first = timed(options.data, fresh=True)
    _, again = timed(options.data)
    print(f"{len(real.images):,} images: {first:.2f} s per thousand, {again:.2f} s once they are in the cache\n")
    print("findings in the data itself:\n")
    for kind, findings in real.by_kind().items():
        print(f"- {kind}: {len(findings):,}")
    keep_out = {real.images[n].name for finding in real.findings for n in finding.images}
    root = options.work / "planted"
    spare = link_clean(options.data, root, keep_out, spare=60)
    clean, _ = timed(root)
    print(f"\nclean part: {len(clean.images):,} images, {len(found_in(clean))} findings")
    planter = Planter(root, spare)
    planter.plant()
    planted, _ = timed(root)
    found = found_in(planted)
    missed, extra = compare(planter.expected, found)
    print("\n| planted | kind | found |\n|---|---|---|")
    for what, kind, names in planter.expected:
        print(f"| {what} | {kind} | {'yes' if (kind, names) in found else 'NO'} |")
    print(
        f"\n{len(planter.expected) - len(missed)} of {len(planter.expected)} found; {len(extra)} that were not planted"
    )
    for kind, names in sorted(extra, key=str):
        print(f"- {kind}: {', '.join(sorted(names))}")
    listed = options.work / "exclude.txt"
    listed.write_text("\n".join(exclusions(planted)) + "\n", encoding="utf-8")
    left, _ = audit(DataConfig(str(root), exclude=str(listed)))
    print(f"\nerrors before and after the list of exclusions: {planted.counts()['error']} and {left.counts()['error']}")


if __name__ == "__main__":
    main()
