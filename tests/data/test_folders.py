"""How people lay out labelled folders, and what they are told where it cannot be understood."""

from __future__ import annotations

import shutil
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from vitreous.data.config import DataConfig
from vitreous.data.sources.finding import find_images
from vitreous.data.sources.folders import list_folder
from vitreous.data.sources.listing import UNLABELLED
from vitreous.data.sources.opening import open_source
from vitreous.data.sources.unlabelled import list_unlabelled
from vitreous.errors import DataError


@pytest.fixture
def put(flowers: Path, tmp_path: Path):
    """Put a few different photographs into each of these folders below one root, and return the root."""
    supply = iter(sorted(flowers.glob("val/*/*.jpg")))

    def make(*folders: str, count: int = 3) -> Path:
        for folder in folders:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for n in range(count):
                shutil.copy(next(supply), tmp_path / folder / f"{n}.jpg")
        return tmp_path

    return make


def listed(root: Path) -> Counter[tuple[str | None, str]]:
    return Counter((entry.split, entry.label) for entry in list_folder(root).entries)


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("train", "val", "test"), ("Training", "VALID", "testing"), ("train", "validation", "Test")],
)
def test_split_folders_by_any_of_their_names(put, train, val, test):
    root = put(*(f"{split}/{label}" for split in (train, val, test) for label in ("daisy", "rose")))
    assert listed(root) == {(s, c): 3 for s in ("train", "val", "test") for c in ("daisy", "rose")}


def test_train_and_test_without_val_splits_val_off_train(put):
    root = put("train/daisy", "train/rose", count=20)
    put("test/daisy", "test/rose")
    data = open_source(DataConfig(source=str(root)))
    assert len(data.splits["train"]) + len(data.splits["val"]) == 40
    assert len(data.splits["val"]) > 0
    assert {name.split("/")[0] for name in data.splits["val"].names} == {"train"}
    assert {name.split("/")[0] for name in data.splits["test"].names} == {"test"}


def test_an_empty_val_folder_counts_as_none(put):
    root = put("train/daisy", "train/rose", count=20)
    (root / "val" / "daisy").mkdir(parents=True)
    data = open_source(DataConfig(source=str(root)))
    assert len(data.splits["val"]) > 0
    assert "folder val has no images in class folders, it is ignored" in data.notes


def test_images_of_nested_folders_belong_to_the_class_folder(put):
    root = put("daisy/2023/spring", "daisy", "rose/red", "rose/white/tall")
    assert listed(root) == {(None, "daisy"): 6, (None, "rose"): 6}
    split = put("train/daisy/near", "train/rose/far")
    assert listed(split)[("train", "daisy")] == 3


def test_a_class_may_be_called_train(put):
    root = put("car", "train", "plane")
    assert listed(root) == {(None, "car"): 3, (None, "train"): 3, (None, "plane"): 3}


def test_any_alphabet_and_both_unicode_forms_of_a_name(put):
    decomposed = unicodedata.normalize("NFD", "pâquerette")
    root = put(f"train/{decomposed}", "train/花 と 木", "train/роза", "val/pâquerette", "val/花 と 木", "val/роза")
    data = open_source(DataConfig(source=str(root)))
    assert data.classes == ("pâquerette", "роза", "花 と 木")
    assert len(data.splits["val"]) == 9


def test_what_is_ignored_is_noted(put):
    root = put("daisy", "rose")
    shutil.copy(root / "rose" / "0.jpg", root / "loose.jpg")
    (root / "rose" / "readme.txt").write_text("roses")
    (root / "rose" / ".DS_Store").write_text("x")
    (root / "tulip").mkdir()
    listing = list_folder(root)
    assert listing.notes == [
        "1 file ignored, not images (first: rose/readme.txt)",
        "1 image ignored, outside class folders (first: loose.jpg)",
        "1 class folder without images: tulip",
    ]
    assert len(listing.entries) == 6


@pytest.fixture
def run(put) -> Path:
    """Two class folders, and below them a run with an inspection in it, both with figures."""
    root = put("daisy", "rose")
    run = root / "runs" / "photos-1"
    for folder, page, document in (
        (run, "report.html", "recipe.yaml"),
        (run / "inspection", "inspection.html", "inspection.json"),
    ):
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "curves.png")
        for name in (page, document):
            (folder / name).write_text("")
    return run


def test_figures_of_runs_and_inspections_are_no_class(run):
    root = run.parents[1]
    listing = list_folder(root)
    assert {entry.label for entry in listing.entries} == {"daisy", "rose"}
    assert listing.notes == ["figures that vitreous wrote are left out: runs/photos-1"]
    (run / "recipe.yaml").unlink()
    listing = list_folder(root)
    assert {entry.label for entry in listing.entries} == {"daisy", "rose", "runs"}  # the run's, now any folder
    assert "figures that vitreous wrote are left out: runs/photos-1/inspection" in listing.notes


def test_a_run_is_read_when_it_is_named(run):
    assert [path.name for path in find_images(run).pictures] == ["curves.png"]
    assert find_images(run.parent).pictures == []
    with pytest.raises(DataError, match=r"holds no images.*; figures that vitreous wrote are left out: photos-1"):
        list_folder(run.parent)


def test_photographs_beside_an_inspection_are_still_photographs(run):
    root = run.parents[1]
    for name in ("inspection.html", "inspection.json"):  # `vitreous inspect --out rose`
        shutil.copy(run / "inspection" / name, root / "rose" / name)
    assert sum(entry.label == "rose" for entry in list_folder(root).entries) == 3


def test_folders_beside_the_splits_are_noted(put):
    listing = list_folder(put("train/daisy", "train/rose", "unlabelled", "val/daisy"))
    assert "folders beside the splits ignored: unlabelled" in listing.notes


def test_class_folders_may_be_links(put, tmp_path_factory):
    root = put("rose")
    outside = tmp_path_factory.mktemp("elsewhere") / "daisies"
    shutil.copytree(root / "rose", outside)
    (root / "daisy").symlink_to(outside)
    assert listed(root) == {(None, "daisy"): 3, (None, "rose"): 3}


def test_a_class_folder_that_is_a_link_to_another_class_is_told(put):
    root = put("daisy", "rose")
    (root / "aster").symlink_to(root / "rose")  # first by name, and still the real folder keeps its images
    found = list_folder(root)
    assert {entry.label for entry in found.entries} == {"daisy", "rose"}
    told = "1 link leads to folders already listed, whose images count once: aster is rose"
    assert told in found.notes


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ((), r"holds no images: expected is one folder per class, such as photos/daisy/1.jpg"),
        ((".",), "holds 3 images, but not in class folders: expected is one folder per class"),
        (("train", "val"), "has train, val and no class folders in train"),
        (("test/daisy", "val/daisy"), "has test, val and no folder train"),
        (("daisy",), "only one class, 'daisy', at least two are needed: expected is one folder per class"),
        (("photos/daisy", "photos/rose"), "only one class, 'photos'.*; if daisy, rose are the classes, give .*/photos"),
        (("train/daisy", "val/daisy"), "only one class, 'daisy'"),
        (
            ("train/daisy", "train/rose", "val/daisy", "val/tulip", "val/violet"),
            "val has classes that train does not have: tulip, violet; train has daisy, rose",
        ),
        (("train/daisy", "train/rose", "test/lily"), "test has classes that train does not have: lily"),
    ],
)
def test_what_cannot_be_understood_says_what_is_expected(put, folders, message):
    with pytest.raises(DataError, match=message) as error:
        open_source(DataConfig(source=str(put(*folders))))
    assert "\n" not in str(error.value)


def test_no_images_counts_the_other_files(put):
    root = put()
    (root / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"holds no images \(it has 1 other file\)"):
        list_folder(root)


def test_images_of_val_that_are_also_in_train_are_noted(put):
    root = put("train/daisy", "train/rose", "val/daisy", "val/rose")
    shutil.copy(root / "train" / "rose" / "1.jpg", root / "val" / "rose" / "again.jpg")
    data = open_source(DataConfig(source=str(root)))
    assert "1 val image also in train: val/rose/again.jpg" in data.notes


def listed_without_labels(root: Path) -> Counter[tuple[str | None, str]]:
    return Counter((entry.split, entry.label) for entry in list_unlabelled(root).entries)


def test_where_no_label_is_needed_val_and_test_are_no_images_of_train(put):
    root = put("val", "Testing/rose", "daisy", "tulip/red")
    labels = {("val", UNLABELLED): 3, ("test", "rose"): 3, ("train", "daisy"): 3, ("train", "tulip"): 3}
    assert listed_without_labels(root) == labels
    data = open_source(DataConfig(source=str(root)), needs_labels=False)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 6, "val": 3, "test": 3}


def test_a_folder_of_unlabelled_images_beside_train_is_of_train(put):
    """As STL-10 has it."""
    root = put("train/cat", "test/cat", "Unlabeled", "unlabelled/part", "other")
    assert listed_without_labels(root) == {("train", "cat"): 3, ("test", "cat"): 3, ("train", UNLABELLED): 6}
    assert list_unlabelled(root).notes == ["3 images ignored, beside the folders of the splits"]


def test_a_folder_of_unlabelled_images_makes_no_splits(put):
    assert listed_without_labels(put("unlabeled", "daisy")) == {(None, UNLABELLED): 3, (None, "daisy"): 3}


def test_val_and_test_alone_are_nothing_to_learn_from(put):
    root = put("val/daisy", "test")
    with pytest.raises(DataError, match="has no image to learn from, only 6 images in folders of val or test: give"):
        open_source(DataConfig(source=str(root)), needs_labels=False)
