"""What is promised of the split: its numbers in every class, and how few images move when others come and go."""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from vitreous.data.config import DataConfig
from vitreous.data.sources.opening import open_source
from vitreous.data.sources.scan import content_hash
from vitreous.data.sources.split import as_recorded, held_out, hold_out_val, record_of, stratified
from vitreous.errors import ConfigError, DataError

SIZES = (1, 2, 3, 5, 10, 40, 400)
FRACTIONS = (0.05, 0.1, 0.15, 0.2, 0.29, 0.333, 0.5)


def contents(count: int, start: int = 0) -> list[str]:
    """Hashes of different contents."""
    return [content_hash(str(n).encode()) for n in range(start, start + count)]


def held_of(digests: list[str], labels: list[str], fraction: float) -> set[tuple[str, str]]:
    """Which (content, class) are held out."""
    held = stratified(digests, labels, fraction)
    return {(digests[n], labels[n]) for n in np.flatnonzero(held)}


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_every_class_gives_its_share_and_keeps_an_image(fraction):
    draw = random.Random(fraction)
    labels = [f"{n}" for n, size in enumerate(draw.choices(SIZES, k=30)) for _ in range(size)]
    held = stratified(contents(len(labels)), labels, fraction)
    whole = Counter(labels)
    given = Counter(label for label, out in zip(labels, held, strict=True) if out)
    for label, size in whole.items():
        exact = Fraction(str(fraction)) * size
        assert abs(given[label] - exact) <= Fraction(1, 2) or (size == 1 and given[label] == 0)
        assert given[label] < size


def test_forty_of_each_class_give_eight():
    labels = [label for label in "abcdefg" for _ in range(40)]
    held = stratified(contents(280), labels, 0.2)
    assert Counter(label for label, out in zip(labels, held, strict=True) if out) == dict.fromkeys("abcdefg", 8)
    assert held_out(contents(280), 0.2).sum() != 56  # what was called stratified before


def test_names_order_and_names_of_classes_do_not_matter():
    digests, labels = contents(200), [str(n % 7) for n in range(200)]
    expected = {content for content, _ in held_of(digests, labels, 0.3)}
    order = random.Random(0).sample(range(200), 200)
    renamed = ["class " + str(9 - int(labels[n])) for n in order]
    assert {content for content, _ in held_of([digests[n] for n in order], renamed, 0.3)} == expected


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("size", SIZES)
def test_growth_moves_no_more_than_is_promised(size, fraction):
    other = contents(100, start=10_000)
    for k in (1, 2, 7, 50):
        digests = contents(size)
        more = contents(k, start=1000)
        before = held_of([*digests, *other], ["a"] * size + ["b"] * 100, fraction)
        after = held_of([*digests, *other, *more], ["a"] * size + ["b"] * 100 + ["a"] * k, fraction)
        moved = before ^ {one for one in after if one[0] not in more}
        quota = len([one for one in after if one[1] == "a"]) - len([one for one in before if one[1] == "a"])
        displaced = len([one for one in after if one[0] in more])
        assert len(moved) == abs(quota - displaced) <= k
        assert {label for _, label in moved} <= {"a"}


def test_growth_moves_few_in_the_mean():
    """40 images that become 60: the quota grows by 4, and of the new 20 about 4 are held out."""
    moved = []
    for start in range(0, 20_000, 100):
        old, new = contents(40, start), contents(20, start + 40)
        before, after = held_of(old, ["a"] * 40, 0.2), held_of([*old, *new], ["a"] * 60, 0.2)
        moved.append(len(before ^ {one for one in after if one[0] in old}))
    assert np.mean(moved) < 2.0  # of 40
    assert max(moved) <= 8


def test_copies_stay_on_one_side_and_the_numbers_hold():
    draw = random.Random(3)
    for _ in range(200):
        digests, labels = [], []
        for n in range(draw.randrange(2, 60)):
            for label in draw.choices("abc", k=draw.choice((1, 1, 1, 2, 3))):  # in a class twice, or in several
                digests.append(content_hash(str(n).encode()))
                labels.append(label)
        fraction = draw.choice(FRACTIONS)
        held = stratified(digests, labels, fraction)
        sides = defaultdict(set)
        for digest, out in zip(digests, held.tolist(), strict=True):
            sides[digest].add(out)
        assert all(len(side) == 1 for side in sides.values())
        for label, size in Counter(labels).items():
            given = sum(1 for n in np.flatnonzero(held) if labels[n] == label)
            assert given <= Fraction(str(fraction)) * size + Fraction(1, 2)
            assert given < size


def test_a_class_that_holds_all_images_once_more_does_not_empty_val():
    digests = contents(80)
    held = held_of(digests * 2, ["all"] * 80 + ["a"] * 40 + ["b"] * 40, 0.2)
    assert Counter(label for _, label in held) == {"all": 16, "a": 8, "b": 8}


def test_a_large_group_of_copies_does_not_push_the_others_out():
    digests = [*contents(30), *([content_hash(b"same")] * 10)]
    assert len(held_of(digests, ["a"] * 40, 0.2)) == 8


def test_where_no_class_is_large_enough_the_error_says_so():
    sides = np.full(6, "train")
    with pytest.raises(DataError, match=r"val has no image: val_fraction is 0.05, .* class has 2 of 6 images;"):
        hold_out_val(DataConfig(val_fraction=0.05), contents(6), list("aabbcc"), sides)
    split, how, _ = hold_out_val(DataConfig(val_fraction=0.25), contents(6), list("aabbcc"), sides)
    assert sorted(split.tolist()) == ["train"] * 3 + ["val"] * 3
    assert how == "split: train 3, val 3, by class and content; the same on every run"


def test_where_labels_do_not_matter_the_split_is_by_content_and_no_class_is_named():
    sides = np.full(6, "train")
    with pytest.raises(DataError, match=r"val has no image: val_fraction is 0.05, and there are 6 images; add"):
        hold_out_val(DataConfig(val_fraction=0.05), contents(6), None, sides)
    split, how, _ = hold_out_val(DataConfig(val_fraction=0.5), contents(6), None, sides)
    assert how == "split: train 3, val 3, by content; the same on every run"
    assert (split == hold_out_val(DataConfig(val_fraction=0.5), contents(6), ["a"] * 6, sides)[0]).all()


def test_the_rule_of_earlier_versions_has_a_name():
    digests = contents(100)
    sides = np.full(100, "train")
    by_hash, _, _ = hold_out_val(DataConfig(split="hash"), digests, ["a"] * 100, sides)
    assert ((by_hash == "val") == held_out(digests, 0.2)).all()
    with pytest.raises(ConfigError, match="split is 'even', it must be stratified or hash"):
        DataConfig(split="even")  # type: ignore[arg-type]


def test_a_record_brings_back_what_was_held_out_and_a_strangers_is_harmless():
    digests = contents(300)
    held = stratified(digests, ["a"] * 300, 0.2)
    record = record_of(digests, held)
    assert record is not None
    assert len(record) == 12 * 60
    assert (as_recorded(record, digests) == held).all()
    more = [*contents(5, start=900), *digests]
    sides, how, _ = hold_out_val(DataConfig(), more, ["a"] * 305, np.full(305, "train"), record)
    assert {more[n] for n in np.flatnonzero(sides == "val")} == {digests[n] for n in np.flatnonzero(held)}
    assert how.endswith("as in the model's training")
    for odd in (None, 7, "", "xyz", record[:-1], record.upper(), ["a"], {"a": 1}, "g" * 12, "0" * 24):
        assert not as_recorded(odd, digests).any()
        sides, _, _ = hold_out_val(DataConfig(), digests, ["a"] * 300, np.full(300, "train"), odd)
        assert ((sides == "val") == held).all()
    assert record_of(contents(100_001), np.ones(100_001, np.bool_)) is None


@pytest.fixture(scope="module")
def photographs(flowers: Path) -> list[Path]:
    return sorted(flowers.glob("val/*/*.jpg"))[::7][:100]


def test_photographs_in_folders(photographs, tmp_path):
    """A class of one image is trained on; copies under two labels are on one side; others move as few as can be."""
    for n, path in enumerate(photographs[:83]):
        folder = tmp_path / "p" / ("rare" if n == 82 else f"{n % 2}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / f"{n}.jpg")
    data = open_source(DataConfig(str(tmp_path / "p")))
    counts = {name: Counter(split.labels.tolist()) for name, split in data.splits.items()}
    assert counts == {"train": {0: 33, 1: 33, 2: 1}, "val": {0: 8, 1: 8}}
    assert "1 of 3 classes without a val image: rare" in data.notes
    held = next(name for name in data.splits["val"].names if name.startswith("0/"))
    shutil.copy(tmp_path / "p" / held, tmp_path / "p" / "1" / "copy.jpg")
    for n, path in enumerate(photographs[83:]):
        shutil.copy(path, tmp_path / "p" / "1" / f"new {n}.jpg")
    grown = open_source(DataConfig(str(tmp_path / "p")))
    val = set(grown.splits["val"].names)
    assert (held in val) == ("1/copy.jpg" in val)
    assert Counter(name[0] for name in val) == {"0": 8, "1": 12}
