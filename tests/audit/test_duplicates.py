"""Copies of real photographs are found in every disguise that leaves the scene, and different ones are not."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from vitreous.audit import duplicates
from vitreous.audit.duplicates import BITS, Pair, components, correlation, near_pairs
from vitreous.audit.look import fingerprint


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def stamped(image: Image.Image) -> Image.Image:
    image = image.copy()
    ImageDraw.Draw(image).text((10, image.height - 20), "(c) some photographer", fill="white")
    return image


def margins_cut(image: Image.Image) -> Image.Image:
    width, height = image.size
    return image.crop((width // 80, height // 80, width - width // 80, height - height // 80))


DISGUISES = {
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "64 pixels": lambda image: image.resize((64, 64)),
    "JPEG at quality 10": lambda image: recompressed(image, 10),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.25),
    "flat": lambda image: ImageEnhance.Contrast(image).enhance(0.6),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "stamped": stamped,
    "margins cut": margins_cut,
    "mirrored": ImageOps.mirror,
}


@pytest.fixture(scope="module")
def photographs(flowers) -> list[Image.Image]:
    """Twenty photographs of different scenes."""
    return [Image.open(path).convert("RGB") for path in sorted(flowers.glob("val/*/*.jpg"))[5::36][:20]]


def pairs_of(images: list[Image.Image]) -> list[Pair]:
    looks = [fingerprint(image) for image in images]
    return near_pairs([hashes for _, hashes in looks], [thumb for thumb, _ in looks])


def test_different_scenes_are_no_pair(photographs):
    assert pairs_of(photographs) == []


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_copy_is_found_in_disguise(photographs, disguise):
    n = len(photographs)
    found = pairs_of([*photographs, *(DISGUISES[disguise](image) for image in photographs)])
    assert found == [Pair(k, n + k, disguise == "mirrored") for k in range(n)]


def test_two_shots_of_something_symmetric_are_not_mirrored(flowers):
    """Each pair has one symmetric image in it and two others over it: neither is the mirror image of the other."""
    files = sorted(flowers.glob("val/*/*.jpg"))[5::12][:60]
    photos = [Image.open(path).convert("RGB").resize((240, 240)) for path in files]
    for share in (0.15, 0.25, 0.3):
        shots = []
        for n in range(0, 60, 3):
            symmetric = Image.blend(photos[n], ImageOps.mirror(photos[n]), 0.5)
            shots += [Image.blend(symmetric, over, share) for over in photos[n + 1 : n + 3]]
        assert [pair for pair in pairs_of(shots) if pair.mirrored] == []


def test_a_mirrored_copy_without_its_margins_is_mirrored(photographs):
    n = len(photographs)
    found = pairs_of([*photographs, *(margins_cut(ImageOps.mirror(image)) for image in photographs)])
    assert found == [Pair(k, n + k, True) for k in range(n)]


def test_flat_images_have_nothing_to_compare():
    plain = [Image.new("RGB", (200, 150), colour) for colour in ("white", "black", "navy")]
    assert pairs_of(plain) == []
    assert correlation(fingerprint(plain[0])[0], fingerprint(plain[1])[0]) == 0


def test_the_second_look_refuses_what_the_hashes_let_pass(photographs):
    thumbs = [fingerprint(image)[0] for image in photographs]
    assert near_pairs([(7, 1 << 63)] * len(thumbs), thumbs) == []  # one hash for all


def test_candidates_are_all_those_within_the_distance(monkeypatch):
    monkeypatch.setattr(duplicates, "_ROWS", 8)
    monkeypatch.setattr(duplicates, "_COLUMNS", 8)
    random = np.random.default_rng(0)
    hashes = (random.integers(0, 2**62, 30, dtype=np.uint64) & np.uint64(0xFFFFF)).astype(np.uint64)
    mirrors = hashes[::-1].copy()
    plain: set[tuple[int, int]] = set()
    flipped: set[tuple[int, int]] = set()
    for top in range(0, 30, 8):
        (a, b), (c, d) = duplicates._close(hashes, mirrors, top)
        plain.update(zip(a.tolist(), b.tolist(), strict=True))
        flipped.update(zip(c.tolist(), d.tolist(), strict=True))
    near = lambda one, other: (int(one) ^ int(other)).bit_count() <= BITS  # noqa: E731
    assert plain == {(a, b) for a, b in itertools.combinations(range(30), 2) if near(hashes[a], hashes[b])}
    assert flipped == {(a, b) for a, b in itertools.combinations(range(30), 2) if near(hashes[a], mirrors[b])}
    assert 0 < len(plain) < 435


def test_bits_are_counted_alike_by_old_and_new_numpy(monkeypatch):
    values = np.random.default_rng(1).integers(0, 2**64, (5, 7), dtype=np.uint64)
    expected = [[int(value).bit_count() for value in row] for row in values]
    assert duplicates._bits(values).tolist() == expected
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert duplicates._bits(values).tolist() == expected


def test_many_of_one_scene_are_one_group_and_not_all_pairs(photographs):
    look = fingerprint(photographs[0])
    found = near_pairs([look[1]] * 50, [look[0]] * 50)
    assert len(found) == 49
    assert components(60, [(pair.one, pair.other) for pair in found]) == [list(range(50))]


def test_components():
    assert components(6, [(4, 1), (1, 5), (2, 3)]) == [[1, 4, 5], [2, 3]]
    assert components(3, []) == []
