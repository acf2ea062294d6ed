"""Checks of class names, class sizes and single files, and what they must not report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits

from vitreous.audit.checks import check_classes, check_files, reason_kind
from vitreous.audit.findings import AuditImage
from vitreous.audit.look import Inspection, look, spread_of
from vitreous.data.sources.listing import Entry, Listing

WHOLE = Inspection(digest="0", length=50_000, form="JPEG", mode="RGB", size=(300, 400), thumb=b"0")


def images(sizes: dict[str, int], split: str = "train", facts: Inspection = WHOLE) -> list[AuditImage]:
    return [
        AuditImage(f"{split}/{label}/{n}.jpg", label, split, facts, Path(f"/{split}/{label}/{n}.jpg"))
        for label, count in sizes.items()
        for n in range(count)
    ]


def found(rows: list[AuditImage], listing: Listing | None = None) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for finding in check_classes(rows, listing):
        kinds.setdefault(finding.kind, []).append(finding.text)
    return kinds


@pytest.mark.parametrize(
    "names",
    [
        ("daisy", "Daisy"),
        ("daisy", "daisy "),
        ("red rose", "red_rose"),
        ("red rose", "redrose"),
        ("stra\u00dfe", "STRASSE"),
        ("\ufb01g", "fig"),
        ("daisy", "dai\u200bsy"),
        ("daisy", "\u202edaisy"),
        ("caf\u00e9", "CAFE\u0301"),
        ("\uff21", "a"),
    ],
)
def test_names_that_pass_for_each_other(names):
    (text,) = found(images({**dict.fromkeys(names, 20), "other": 20}))["class-names"]
    assert text.count('"') + text.count("'") == 4
    one, other = text.split(" and ")
    assert one != other
    assert text.isprintable()


def test_names_that_only_look_a_little_alike_are_two():
    assert (
        found(images(dict.fromkeys(["cat", "cats", "c++", "c", "1", "01", "e\u0301t\u00e9", "ete", "-", "_"], 20)))
        == {}
    )


def test_folders_that_unicode_writes_in_two_ways_are_said():
    names = ["caf\u00e9/1.jpg", "cafe\u0301/2.jpg", "tea/3.jpg"]
    entries = [
        Entry(Path("/") / name, name, label, None)
        for name, label in zip(names, ["caf\u00e9"] * 2 + ["tea"], strict=True)
    ]
    (text,) = found(images({"caf\u00e9": 20, "tea": 20}), Listing(Path("/"), entries))["class-spelling"]
    assert text == r"'cafe\u0301' and 'caf\xe9'"


def test_sizes_of_classes():
    even = images({"a": 60, "b": 40})
    assert found(even) == {}
    assert found(images({"a": 9, "b": 12})) == {"few": ['"a": 9 images in train']}
    assert found(images({"a": 1, "b": 12}, split="all")) == {
        "few": ['"a": 1 image'],
        "unbalanced": ['"a" has 1 image, "b" 12'],
    }
    assert found(images({"a": 101, "b": 10}))["unbalanced"] == ['"b" has 10 images, "a" 101']
    assert "unbalanced" not in found(images({"a": 100, "b": 10}))
    assert found(images({"a": 50}))["few"] == ['only one class, "a": a classifier needs at least two']
    with_val = [*even, *images({"a": 3}, split="val")]
    assert found(with_val) == {"few": ["no image in val: b"]}
    assert found([*even, *images({"b": 2, "c": 2}, split="test")])["class-unknown"] == ['"c": 2 images, all in test']
    many = found(images(dict.fromkeys("abcdefghijklmnop", 3)))["few"]
    assert len(many) == 1
    assert many[0].startswith("16 classes have under 10 images in train: ")


def test_a_file_that_cannot_be_read_does_not_count():
    rows = [*images({"a": 20, "b": 9}), *images({"b": 20}, facts=Inspection("truncated"))]
    assert found(rows)["few"] == ['"b": 9 images in train']


@pytest.mark.parametrize(
    ("facts", "name", "kinds"),
    [
        (WHOLE, "a.jpg", []),
        (WHOLE, "a.JPEG", []),
        (WHOLE, "a.jfif", []),
        (WHOLE, "a.png", ["extension"]),
        (WHOLE, "a", ["extension"]),
        (Inspection(form="MPO", mode="RGB", size=(3000, 4000), length=4_000_000, thumb=b"0"), "a.jpg", []),
        (Inspection(form="PNG", mode="RGB", size=(300, 1200), length=9000, thumb=b"0"), "a.png", ["aspect"]),
        (Inspection(form="PNG", mode="RGB", size=(300, 1190), length=9000, thumb=b"0"), "a.png", []),
        (Inspection(form="PNG", mode="L", size=(8000, 8000), length=60_000, thumb=b"0"), "a.png", ["inflates"]),
        (Inspection(form="PNG", mode="RGB", size=(31, 40), length=900, thumb=b"0"), "a.png", ["tiny"]),
        (
            Inspection(form="TIFF", mode="CMYK", size=(300, 400), length=900, frames=3, deep=True),
            "a.tif",
            ["frames", "cmyk", "deep"],
        ),
    ],
)
def test_one_file_among_ordinary_ones(facts, name, kinds):
    rows = [*images({"a": 10}), AuditImage(name, "a", "train", facts, Path("/") / name)]
    assert [finding.kind for finding in check_files(rows)] == kinds


def image_of(kind: str) -> Image.Image:
    """An image with nothing on it, or with a little."""
    random = np.random.default_rng(0)
    pixels = np.full((300, 400, 3), 255, np.uint8)
    if kind == "black":
        pixels[:] = 0
    elif kind == "red":
        pixels[:] = (200, 10, 30)
    elif kind == "noise of a scanner":
        pixels[:] = 250 + random.integers(-3, 4, pixels.shape)
    elif kind == "two reds and greens of one grey":
        pixels[:, :200], pixels[:, 200:] = (200, 20, 40), (20, 112, 40)
    elif kind == "a word on white":
        ImageDraw.Draw(image := Image.fromarray(pixels)).text((180, 140), "daisy", fill="black")
        return image
    elif kind == "a sky":
        pixels[:] = np.linspace(180, 220, 300)[:, None, None]
    return Image.fromarray(pixels)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "L"])
@pytest.mark.parametrize(
    ("kind", "blank"),
    [
        *((kind, True) for kind in ("white", "black", "red", "noise of a scanner")),
        *((kind, False) for kind in ("two reds and greens of one grey", "a word on white", "a sky")),
    ],
)
def test_a_blank_image_is_one_with_nothing_on_it(tmp_path, kind, blank, form):
    image = image_of(kind)
    if form == "L":
        image = image.convert("L")
        blank |= kind == "two reds and greens of one grey"  # and so there is nothing left
    suffix = {"JPEG": "jpg", "GIF": "gif"}.get(form, "png")
    image.save(tmp_path / f"a.{suffix}", {"L": "PNG"}.get(form, form))
    rows = [
        *images({"a": 10}),
        AuditImage("a", "a", "train", look(str(tmp_path / f"a.{suffix}")), tmp_path / f"a.{suffix}"),
    ]
    assert [finding.kind for finding in check_files(rows)] == ["blank"] * blank


def test_no_handwritten_digit_and_no_photograph_is_blank(flowers):
    """The least spread that was measured: digits 223, CIFAR-10 55 (60,000 images), flowers 115 of 255 levels."""
    for pixels in load_digits().images:
        assert spread_of(Image.fromarray((pixels * 255 / 16).astype(np.uint8)).convert("RGB")) > 200
    for path in sorted(flowers.glob("val/*/*.jpg"))[::9]:
        assert look(str(path)).spread > 100


def test_a_set_of_small_images_has_no_tiny_ones():
    small = Inspection(form="PNG", mode="L", size=(8, 8), length=200, thumb=b"0")
    rows = [AuditImage(f"{n}.png", "a", "train", small, Path(f"/{n}.png")) for n in range(20)]
    assert list(check_files(rows)) == []


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("empty, 0 bytes", "empty"),
        ("truncated", "truncated"),
        ("damaged or truncated", "truncated"),
        ("not an image", "undecodable"),
        ("HEIC images need a decoder: pip install pi-heif, or save it as JPEG", "undecodable"),
        ("2,500,000,000 pixels, the limit for PNG is 50,000,000: save it smaller", "bomb"),
        ("no such file", "unopened"),
        ("permission denied", "unopened"),
        ("its decoder takes more than 2 s: save it as PNG or JPEG again", "breaks"),
    ],
)
def test_reasons_make_kinds(reason, kind):
    assert reason_kind(reason) == kind
