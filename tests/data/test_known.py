"""Torchvision's sets, laid out on disk as torchvision expects them, with real images in them."""

from __future__ import annotations

import inspect
import itertools
import json
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.data.config import DataConfig
from vitreous.data.sources.known import KNOWN, load_known
from vitreous.data.sources.known import _contents as contents
from vitreous.data.sources.opening import open_source
from vitreous.errors import DataError


@pytest.fixture
def photographs(flowers: Path):
    """Copies a new photograph to a path at each call."""
    supply = iter(sorted(flowers.glob("val/*/*.jpg")))

    def copy_to(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(next(supply), path)

    return copy_to


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_from_idx_files(tmp_path, name, folder):
    """The digits, enlarged to 28 pixels, written as the four files of MNIST."""
    digits = load_digits()
    large = np.kron(digits.images, np.ones((3, 3))).round().astype(np.uint8) * 15
    large = np.pad(large, ((0, 0), (2, 2), (2, 2)))
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    for part, chosen in (("train", slice(0, 1000)), ("t10k", slice(1000, None))):
        images, labels = large[chosen], digits.target[chosen].astype(np.uint8)
        header = struct.pack(">IIII", 0x00000803, len(images), 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x00000801, len(labels)) + labels.tobytes())
    data = open_source(DataConfig(source=name, dir=str(tmp_path)))
    assert (data.channels, data.native_size, len(data.classes)) == (1, (28, 28), 10)
    assert data.classes[0] == ("0 - zero" if name == "mnist" else "T-shirt/top")
    test = data.splits["test"]
    assert (test.arrays[..., 0] == large[1000:]).all()
    assert test.labels.tolist() == digits.target[1000:].tolist()
    assert len(data.splits["train"]) + len(data.splits["val"]) == 1000


def test_eurosat_is_split_by_content(tmp_path, photographs):
    classes = ("AnnualCrop", "Forest", "River")
    for n in range(60):
        photographs(tmp_path / "eurosat" / "2750" / classes[n % 3] / f"{n}.jpg")
    data = open_source(DataConfig(source="eurosat", dir=str(tmp_path)))
    assert data.classes == classes
    assert set(data.splits) == {"train", "val"}
    assert set(data.counts().values()) == {20}
    assert data.splits["val"].name_of(0).startswith("eurosat/2750/AnnualCrop/")


def test_food101_has_its_official_test_split(tmp_path, photographs):
    lists = {
        "train": {food: [f"{food}/{n}" for n in range(20)] for food in ("apple_pie", "ramen")},
        "test": {food: [f"{food}/{n}" for n in range(20, 23)] for food in ("apple_pie", "ramen")},
    }
    meta = tmp_path / "food-101" / "meta"
    meta.mkdir(parents=True)
    for split, foods in lists.items():
        (meta / f"{split}.json").write_text(json.dumps(foods))
        for image in itertools.chain(*foods.values()):
            photographs(tmp_path / "food-101" / "images" / f"{image}.jpg")
    (meta / "classes.txt").write_text("apple_pie\nramen\n")
    (meta / "labels.txt").write_text("Apple pie\nRamen\n")
    (tmp_path / "food-101" / "images" / "ramen" / "3.jpg").write_bytes(b"")
    data = open_source(DataConfig(source="food101", dir=str(tmp_path)))
    assert data.classes == ("apple_pie", "ramen")
    assert sorted(data.splits["test"].names) == sorted(
        f"food-101/images/{p}.jpg" for p in itertools.chain(*lists["test"].values())
    )
    assert len(data.splits["train"]) + len(data.splits["val"]) == 39
    assert [reason for _, reason in data.unreadable] == ["empty, 0 bytes"]


def test_imagenet_is_tested_on_its_official_validation_split_and_tells_its_two_cranes_apart(tmp_path, photographs):
    names = {"n02012849": ("crane",), "n03126707": ("crane",), "n03710721": ("maillot", "tank suit")}
    for wnid in names:
        for n in range(4):
            photographs(tmp_path / "train" / wnid / f"{wnid}_{n}.JPEG")
        photographs(tmp_path / "val" / wnid / "ILSVRC2012_val_00000001.JPEG")
    torch.save((names, list(names)), tmp_path / "meta.bin")
    data = open_source(DataConfig(source="imagenet", dir=str(tmp_path), val_fraction=0.25))
    assert data.classes == ("crane (0)", "crane (1)", "maillot, tank suit")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 9, "val": 3, "test": 3}
    assert data.splits["val"].labels.tolist() == data.splits["test"].labels.tolist() == [0, 1, 2]
    assert all(name.startswith("val/") for name in data.splits["test"].names)
    assert all(name.startswith("train/") for name in data.splits["val"].names)
    assert (data.channels, data.native_size) == (3, None)
    assert min(data.median_size) > 100


def test_pixels_of_channels_first_sets_are_turned():
    """SVHN and STL-10 keep (n, C, H, W)."""
    images = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    pixels, labels = contents(SimpleNamespace(data=images, labels=np.array([3, 1], np.uint8)))
    assert pixels.shape == (2, 4, 5, 3)
    assert (pixels[1, 2, 3] == images[1, :, 2, 3]).all()
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, 1]


def test_every_known_set_is_a_class_of_torchvision_with_its_official_splits():
    import torchvision.datasets

    for name, known in KNOWN.items():
        assert known.classes >= 10
        if name != "digits":
            assert callable(getattr(torchvision.datasets, known.dataset))
            assert "train" in known.splits
            assert known.files
            if known.downloads:  # the address is where torchvision itself looks
                source = inspect.getsource(inspect.getmodule(getattr(torchvision.datasets, known.dataset)))
                assert known.url in source


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "digits"])
def test_a_set_that_cannot_be_had_says_which_files_to_put_where(name, tmp_path, monkeypatch):
    def no_network(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("socket.create_connection", no_network)
    monkeypatch.setattr("socket.getaddrinfo", no_network)
    with pytest.raises(DataError) as error:
        load_known(name, str(tmp_path / "sets"))
    message = str(error.value)
    assert message.startswith(f"{name} is not in {tmp_path / 'sets'} and c")
    assert f"put {KNOWN[name].files} into {tmp_path / 'sets'}" in message
    assert "--data-dir" in message
    assert "\n" not in message


def test_a_damaged_archive_is_not_taken_for_the_set(tmp_path, cifar10_dir, monkeypatch):
    """A file of CIFAR-10 that lost its end: torchvision's checksum notices, and the error says what to do."""
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    for path in (cifar10_dir / "cifar-10-batches-py").iterdir():
        (tmp_path / "cifar-10-batches-py").mkdir(exist_ok=True)
        (tmp_path / "cifar-10-batches-py" / path.name).symlink_to(path)
    broken = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    broken.unlink()
    broken.write_bytes(b"cut")
    with pytest.raises(DataError, match=r"cifar10 is not in .*: put cifar-10-python.tar.gz into"):
        load_known("cifar10", str(tmp_path))


def test_a_data_dir_that_is_a_file_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="mnist is not in"):
        load_known("mnist", str(tmp_path / "file"))


def test_digits_are_images_of_64_pixels_that_pillow_can_show():
    pixels = load_known("digits", "")
    images, labels = pixels.splits["train"]
    assert images.shape == (1797, 8, 8, 1)
    assert (images.min(), images.max()) == (0, 255)
    assert Image.fromarray(images[0, :, :, 0]).size == (8, 8)
    assert np.bincount(labels).tolist() == np.bincount(load_digits().target).tolist()
