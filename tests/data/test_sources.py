"""Known sets, folders and how they are opened: digits, CIFAR-10 through torchvision, real photographs on disk."""

from __future__ import annotations

import os
import pickle
import shutil
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vitreous.data.config import DataConfig
from vitreous.data.sources.opening import ImageData, open_source
from vitreous.data.sources.scan import content_hash
from vitreous.data.sources.split import held_out
from vitreous.errors import DataError, UsageError


@pytest.fixture(scope="module")
def jpegs(flowers: Path) -> list[Path]:
    """60 photographs, all different."""
    return sorted(flowers.glob("val/*/*.jpg"))[::12][:60]


def tree(root: Path, jpegs: list[Path], layout: dict[str, int]) -> Path:
    """Make folders with that many photographs each, no photograph twice."""
    supply = iter(jpegs)
    for folder, count in layout.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            shutil.copy(next(supply), root / folder / f"IMG {number}.jpg")
    return root


def opened(root: Path | str, **options: object) -> ImageData:
    return open_source(DataConfig(source=str(root), **options))


def sides(data: ImageData) -> dict[str, str]:
    """The split of each image, by content."""
    return {
        content_hash(np.asarray(split.image(n)).tobytes()): name
        for name, split in data.splits.items()
        for n in range(len(split))
    }


def test_digits_are_scikit_learns_on_the_scale_of_images():
    data = open_source(DataConfig(source="digits", val_fraction=0.125))
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 1249, "val": 178, "test": 370}
    assert (data.channels, data.native_size, data.median_size) == (1, (8, 8), (8, 8))
    assert data.classes == tuple("0123456789")
    assert list(data.counts().values()) == np.bincount(load_digits().target).tolist()
    reference = load_digits()
    for split in data.splits.values():
        assert split.arrays is not None
        assert split.arrays.dtype == np.uint8
        for n in (0, len(split) // 2, len(split) - 1):
            position = int(split.name_of(n).removeprefix("digits/"))
            expected = np.rint(reference.images[position] * 255 / 16)
            assert (split.arrays[n, :, :, 0] == expected).all()
            assert (np.asarray(split.image(n))[..., 2] == expected).all()
            assert split.labels[n] == reference.target[position]


def test_digits_do_not_share_an_image_between_splits_and_repeat():
    first, again = open_source(DataConfig()), open_source(DataConfig())
    assert first.fingerprint == again.fingerprint
    assert first.splits["val"].names == again.splits["val"].names
    wider = open_source(DataConfig(val_fraction=0.4))
    assert set(first.splits["val"].names) < set(wider.splits["val"].names)
    assert wider.splits["test"].names == first.splits["test"].names
    assert wider.fingerprint == first.fingerprint


def test_cifar10_through_torchvisions_own_loader(cifar10_dir):
    data = open_source(DataConfig(source="cifar10", dir=str(cifar10_dir), val_fraction=0.1))
    assert data.classes[:3] == ("airplane", "automobile", "bird")
    assert (data.channels, data.native_size) == (3, (32, 32))
    assert len(data.splits["train"]) + len(data.splits["val"]) == 50_000
    assert np.bincount(data.splits["val"].labels).tolist() == [500] * 10

    def batch(name: str) -> tuple[np.ndarray, list[int]]:
        """The published file, read without torchvision: pixels (n, H, W, C) and labels."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = pickle.loads((cifar10_dir / "cifar-10-batches-py" / name).read_bytes(), encoding="latin1")
        return content["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), content["labels"]

    pixels, labels = batch("test_batch")
    assert (data.splits["test"].arrays == pixels).all()
    assert data.splits["test"].labels.tolist() == labels
    pixels, labels = batch("data_batch_1")
    for n in (0, 7, 400):
        position = int(data.splits["val"].name_of(n).removeprefix("train/"))
        assert (np.asarray(data.splits["val"].image(n)) == pixels[position]).all()
        assert data.splits["val"].labels[n] == labels[position]


def test_names_of_nothing(tmp_path, flowers):
    with pytest.raises(UsageError, match=r"'cifar-10' is neither a folder nor a known dataset .* mean 'cifar10'\?"):
        opened("cifar-10")
    with pytest.raises(DataError, match=rf"folder not found: {flowers}s\. Did you mean '{flowers}'\?"):
        opened(f"{flowers}s")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="is a file: give a folder of images, unpacked if it is an archive, or a"):
        opened(tmp_path / "notes.txt")
    with pytest.raises(DataError, match=r"'https://a\.org/b\.zip' is a URL, and nothing is fetched .* give the folder"):
        opened("https://a.org/b.zip")


def test_flowers_as_they_lie_and_fast(flowers):
    start = time.perf_counter()
    data = opened(flowers)
    seconds = time.perf_counter() - start
    assert seconds < 10  # two cores; 1 s on an idle machine
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 2934, "val": 736}
    assert data.classes == ("daisy", "dandelion", "roses", "sunflowers", "tulips")
    assert (data.channels, data.native_size, data.unreadable, data.name) == (3, None, [], "flowers")
    for name, split in data.splits.items():
        for n in range(0, len(split), 97):
            assert split.paths[n].parts[-3:-1] == (name, data.classes[split.labels[n]])
            assert split.name_of(n) == split.paths[n].relative_to(flowers).as_posix()
    assert "split: train 2,934, val 736, as the data has it" in data.notes


def test_a_single_folder_is_split_evenly_in_every_class(flowers):
    data = opened(flowers / "train")
    labels = {name: split.labels for name, split in data.splits.items()}
    for n in range(5):
        of_class = sum((values == n).sum() for values in labels.values())
        assert (labels["val"] == n).sum() == round(0.2 * of_class)


def test_by_hash_adding_renaming_and_removing_images_moves_none_across(jpegs, tmp_path):
    before = opened(tree(tmp_path / "a", jpegs[:40], {"x": 20, "y": 20}), val_fraction=0.3, split="hash")
    after = opened(tree(tmp_path / "b", jpegs[5:], {"y": 25, "z": 30}), val_fraction=0.3, split="hash")
    first, second = sides(before), sides(after)
    assert len(first.keys() & second.keys()) == 35
    assert all(first[key] == second[key] for key in first.keys() & second.keys())
    assert before.fingerprint != after.fingerprint


def test_copies_fall_on_one_side(jpegs, tmp_path):
    root = tree(tmp_path, jpegs, {"x": 20, "y": 20})
    for path in list((root / "x").iterdir()):
        shutil.copy(path, path.with_name(f"copy of {path.name}"))
    data = opened(root)
    where: dict[str, set[str]] = {}
    for name, split in data.splits.items():
        for path in split.paths:
            where.setdefault(content_hash(path.read_bytes()), set()).add(name)
    assert {len(names) for names in where.values()} == {1}


def test_held_out_is_the_share_of_a_uniform_hash():
    digests = [content_hash(str(n).encode()) for n in range(20_000)]
    first, second = held_out(digests, 0.2), held_out(digests, 0.2, salt=1)
    assert abs(first.mean() - 0.2) < 0.01
    assert abs(second.mean() - 0.2) < 0.01
    assert abs((first & second).mean() - 0.04) < 0.005  # the two draws do not depend on each other
    assert not held_out(digests, 0.0).any()
    assert held_out(digests, 1.0).all()
    assert held_out(["0" * 32, "f" * 32, "8" + "0" * 31], 0.5).tolist() == [True, False, False]


def test_fingerprint_is_of_names_labels_and_content(jpegs, tmp_path):
    root = tree(tmp_path / "one", jpegs, {"x": 8, "y": 8})
    shutil.copytree(root, tmp_path / "two")
    first = opened(root)
    assert opened(tmp_path / "two").fingerprint == first.fingerprint
    (tmp_path / "two" / "x" / "IMG 0.jpg").rename(tmp_path / "two" / "y" / "moved.jpg")
    assert opened(tmp_path / "two").fingerprint != first.fingerprint


def test_unreadable_files_are_left_out_named_and_never_replaced(jpegs, tmp_path):
    root = tree(tmp_path, jpegs, {"x": 20, "y": 20})
    cut = (root / "x" / "IMG 3.jpg").read_bytes()
    (root / "x" / "IMG 3.jpg").write_bytes(cut[: len(cut) // 2])
    (root / "y" / "пусто.PNG").touch()
    (root / "y" / "words.jpg").write_text("words")
    told: list[tuple[int, int]] = []
    data = open_source(DataConfig(source=str(root)), progress=lambda done, total: told.append((done, total)))
    assert data.unreadable == [
        (root / "x" / "IMG 3.jpg", "truncated"),
        (root / "y" / "words.jpg", "not an image"),
        (root / "y" / "пусто.PNG", "empty, 0 bytes"),
    ]
    kept = [path for split in data.splits.values() for path in split.paths]
    assert len(kept) == len(set(kept)) == 39
    assert not set(kept) & {path for path, _ in data.unreadable}
    assert told[-1] == (42, 42)
    with pytest.raises(DataError, match=r"3 of 42 files .* cannot be read \(x/IMG 3.jpg: truncated; y/words.jpg: not"):
        opened(root, strict=True)


def test_strict_names_the_first_ten(jpegs, tmp_path):
    root = tree(tmp_path, jpegs, {"x": 5, "y": 5})
    for n in range(13):
        (root / "x" / f"bad {n:02}.jpg").touch()
    with pytest.raises(DataError, match=r"13 of 23 files .*bad 00.*bad 09.jpg: empty, 0 bytes and 3 more\)") as error:
        opened(root, strict=True)
    assert "bad 10" not in str(error.value)


def test_nothing_readable(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1.jpg").touch()
    with pytest.raises(DataError, match=r"none of 1 image can be read \(x/1.jpg: empty, 0 bytes\)"):
        opened(tmp_path)


def test_a_class_without_a_readable_image_is_left_out_with_a_note(jpegs, tmp_path):
    root = tree(tmp_path, jpegs, {"x": 20, "y": 20})
    (root / "z").mkdir()
    (root / "z" / "1.jpg").touch()
    data = opened(root)
    assert data.classes == ("x", "y")
    assert "classes without a readable image, left out: z" in data.notes


def test_exclude_in_all_its_spellings(jpegs, tmp_path, monkeypatch):
    root = tree(tmp_path / "photos", jpegs, {"x": 20, "y": 20})
    (root / "x" / "only here.jpg").write_bytes(jpegs[50].read_bytes())
    monkeypatch.chdir(tmp_path)
    lines = [
        "# what we do not want",
        "x/IMG 0.jpg",
        str(root / "x" / "IMG 1.jpg"),
        "photos/y/IMG 2.jpg",
        "./y/IMG 3.jpg",
        "only here.jpg",
        "photos/y/IMG 4.jpg: cannot be decoded: broken data",
        "",
        "y/IMG 99.jpg",
        "IMG 5.jpg",
    ]
    (tmp_path / "out.txt").write_text("\n".join(lines), encoding="utf-8")
    data = opened(root, exclude=str(tmp_path / "out.txt"))
    kept = {name for split in data.splits.values() for name in split.names}
    assert len(kept) == 35
    assert not kept & {f"{folder}/IMG {n}.jpg" for folder, n in (("x", 0), ("x", 1), ("y", 2), ("y", 3), ("y", 4))}
    notes = "\n".join(data.notes)
    assert "6 images excluded" in notes
    assert "1 line without an image: y/IMG 99.jpg" in notes
    assert "add the folder: IMG 5.jpg" in notes
    with pytest.raises(DataError, match=r"missing.txt, cannot be read"):
        opened(root, exclude=str(tmp_path / "missing.txt"))


def test_exclude_from_digits(tmp_path):
    (tmp_path / "out.txt").write_text("digits/0\ndigits/17\n")
    data = open_source(DataConfig(exclude=str(tmp_path / "out.txt")))
    names = [name for split in data.splits.values() for name in split.names]
    assert len(names) == 1795
    assert not {"digits/0", "digits/17"} & set(names)


def test_a_class_without_val_is_noted_and_an_empty_val_is_an_error(jpegs, tmp_path):
    by_side: dict[bool, list[Path]] = {True: [], False: []}
    for path in jpegs:
        by_side[bool(held_out([content_hash(path.read_bytes())], 0.2)[0])].append(path)
    root = tree(tmp_path / "a", by_side[True][:3] + by_side[False], {"x": 8, "y": 8})
    assert "1 of 2 classes without a val image: y" in opened(root, split="hash").notes
    never = tree(tmp_path / "b", by_side[False], {"x": 8, "y": 8})
    with pytest.raises(DataError, match=r"val has no image: val_fraction is 0.2, .* 8 of 16 images; .* data.val_fr"):
        opened(never, split="hash")
    assert len(opened(never).splits["val"]) == 4


def test_grey_images_of_one_size_are_known_as_such(jpegs, tmp_path):
    from PIL import Image

    for n, path in enumerate(jpegs):
        folder = tmp_path / str(n % 11)
        folder.mkdir(exist_ok=True)
        Image.open(path).convert("L").resize((40, 30)).save(folder / f"{n}.png")
    data = opened(tmp_path)
    assert (data.channels, data.native_size, data.median_size) == (1, (30, 40), (30, 40))
    assert data.classes == tuple(str(n) for n in range(11))  # in the order of numbers


def test_the_current_folder_has_a_name(jpegs, tmp_path, monkeypatch):
    root = tree(tmp_path / "my photos", jpegs, {"x": 20, "y": 20})
    monkeypatch.chdir(root)
    data = opened(".")
    assert data.name == "my photos"
    assert Counter(name.split("/")[0] for split in data.splits.values() for name in split.names) == {"x": 20, "y": 20}
    assert os.fspath(data.splits["train"].paths[0]).startswith("x")


def test_without_hold_out_the_data_stays_as_it_is(jpegs, tmp_path):
    one_class = open_source(DataConfig(source=str(tree(tmp_path / "a", jpegs, {"x": 5}))), hold_out=False)
    assert one_class.classes == ("x",)
    assert {name: len(split) for name, split in one_class.splits.items()} == {"all": 5}
    halves = tree(tmp_path / "b", jpegs, {"train/x": 5, "train/y": 5, "test/x": 5})
    data = open_source(DataConfig(source=str(halves)), hold_out=False)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 10, "test": 5}
    assert data.notes == ["1 of 2 classes without a test image: y"]


def test_without_hold_out_train_may_be_missing_or_lack_classes(jpegs, tmp_path):
    root = tree(tmp_path, jpegs, {"x": 3, "y": 3, "z": 3})
    paths = sorted(root.rglob("*.jpg"))
    for splits, counts in (
        (["train"] * 6 + ["test"] * 3, {"train": 6, "test": 3}),
        (["val"] * 4 + ["test"] * 5, {"val": 4, "test": 5}),
        (["test"] * 9, {"test": 9}),
    ):
        rows = [f"{path},{path.parent.name},{split}\n" for path, split in zip(paths, splits, strict=True)]
        (tmp_path / f"{splits[0]}.csv").write_text("path,label,split\n" + "".join(rows))
        data = open_source(DataConfig(source=str(tmp_path / f"{splits[0]}.csv")), hold_out=False)
        assert data.classes == ("x", "y", "z")
        assert {name: len(split) for name, split in data.splits.items()} == counts
    with pytest.raises(DataError, match="test has classes that train does not have: z; train has x, y"):
        opened(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"test\.csv has no class in train, at least two are needed"):
        opened(tmp_path / "test.csv")
