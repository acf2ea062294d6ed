"""Known datasets by name: scikit-learn's digits, which are bundled, and classification datasets of torchvision.

To add one, add a line to :data:`KNOWN`, and to :func:`_contents` if torchvision stores its images in another attribute.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.data.sources.listing import Entry, Listing
from vitreous.errors import DataError
from vitreous.files.locating import expand_home

__all__ = ["KNOWN", "KnownSet", "PixelSet", "load_known"]

_TIMEOUT = 30.0  # seconds without an answer from a download server; torchvision has no timeout


@dataclass(frozen=True)
class KnownSet:
    """A known dataset."""

    dataset: str  # name of the class in torchvision.datasets; empty for scikit-learn's digits
    classes: int
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # arguments of the class by official split
    files: str = ""  # to put into the data folder if it cannot be downloaded
    url: str = ""  # where to get them
    downloads: bool = True  # by torchvision


_TRAIN_TEST_FLAG = {"train": {"train": True}, "test": {"train": False}}
_TRAIN_TEST = {"train": {"split": "train"}, "test": {"split": "test"}}
_MNIST = "raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"

KNOWN: dict[str, KnownSet] = {
    "digits": KnownSet("", 10),
    "cifar10": KnownSet(
        *("CIFAR10", 10, _TRAIN_TEST_FLAG, "cifar-10-python.tar.gz"),
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ),
    "cifar100": KnownSet(
        *("CIFAR100", 100, _TRAIN_TEST_FLAG, "cifar-100-python.tar.gz"),
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    ),
    "mnist": KnownSet(
        *("MNIST", 10, _TRAIN_TEST_FLAG, f"MNIST/{_MNIST}"),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    "fashion-mnist": KnownSet(
        *("FashionMNIST", 10, _TRAIN_TEST_FLAG, f"FashionMNIST/{_MNIST}"),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    "svhn": KnownSet(
        *("SVHN", 10, _TRAIN_TEST, "train_32x32.mat and test_32x32.mat"),
        "http://ufldl.stanford.edu/housenumbers/",
    ),
    "stl10": KnownSet(
        *("STL10", 10, _TRAIN_TEST, "stl10_binary.tar.gz"),
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    ),
    "flowers102": KnownSet(
        *("Flowers102", 102, {**_TRAIN_TEST, "val": {"split": "val"}}),
        "flowers-102/102flowers.tgz, flowers-102/imagelabels.mat and flowers-102/setid.mat",
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    ),
    "oxford-pets": KnownSet(
        *("OxfordIIITPet", 37, {"train": {"split": "trainval"}, "test": {"split": "test"}}),
        "oxford-iiit-pet/images.tar.gz and oxford-iiit-pet/annotations.tar.gz",
        "https://www.robots.ox.ac.uk/~vgg/data/pets/data/",
    ),
    "food101": KnownSet(
        *("Food101", 101, _TRAIN_TEST, "food-101.tar.gz"),
        "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
    ),
    "eurosat": KnownSet(
        *("EuroSAT", 10, {"train": {}}, "eurosat/EuroSAT.zip"),
        "https://huggingface.co/datasets/torchgeo/eurosat",
    ),
    "imagenet": KnownSet(
        # Scores are reported on the official validation split, so it is the test split; runs hold out part of train.
        *("ImageNet", 1000, {"train": {"split": "train"}, "test": {"split": "val"}}),
        "ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar",
        "https://image-net.org/download (it asks for a registration)",
        downloads=False,
    ),
}
"""The datasets that can be named instead of a path."""


@dataclass
class PixelSet:
    """A dataset that is already decoded."""

    classes: tuple[str, ...]  # in their official order
    splits: dict[str, tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]  # pixels (n, H, W, C) and labels (n,)
    test_fraction: float = 0.0  # to hold out, for a dataset without test split


def load_known(name: str, folder: str) -> PixelSet | Listing:
    """Load a known dataset, a key of :data:`KNOWN`, from the data folder, after downloading it if it is not there."""
    if name == "digits":
        return _digits()
    root = expand_home(folder)
    official = {split: _torchvision_set(name, root, options) for split, options in KNOWN[name].splits.items()}
    classes = _class_names(name, official["train"])
    contents = {split: _contents(dataset) for split, dataset in official.items()}
    if all(isinstance(images, np.ndarray) for images, _ in contents.values()):
        return PixelSet(classes, contents)
    entries = [
        Entry(Path(path), os.path.relpath(path, root).replace(os.sep, "/"), classes[label], split)
        for split, (paths, labels) in contents.items()
        for path, label in zip(paths, labels.tolist(), strict=True)
    ]
    # Torchvision verifies ImageNet's archives when it unpacks them; reading 150 GB before every run would take hours.
    return Listing(root, entries, classes=classes, trusted=name == "imagenet")


def _digits() -> PixelSet:
    """Return 1,797 handwritten digits, 8 x 8 pixels with 17 levels (UCI optical recognition test set)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)[..., None]
    return PixelSet(tuple("0123456789"), {"train": (pixels, data.target.astype(np.int64))}, test_fraction=0.2)


def _torchvision_set(name: str, root: Path, options: Mapping[str, Any]) -> Any:
    import torchvision.datasets

    known = KNOWN[name]
    build = getattr(torchvision.datasets, known.dataset)
    attempts: list[dict[str, Any]] = [{}, {"download": True}] if known.downloads else [{}]
    for more in attempts:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with _quiet_torchvision():
                return build(root, **options, **more)
        except (OSError, RuntimeError, ImportError) as error:  # not found, no network, or a wrong checksum
            last = error
    reason = " ".join(str(last).split())[:200]
    why = f"could not be downloaded ({reason})" if known.downloads else "cannot be downloaded automatically"
    raise DataError(
        f"{name} is not in {root} and {why}: put {known.files} into {root}, from {known.url}, "
        f"or name the folder that contains it with --data-dir"
    ) from last


@contextlib.contextmanager
def _quiet_torchvision() -> Iterator[None]:
    """Within: network timeouts, messages of torchvision on stderr, no warnings of NumPy about its pickles."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        socket.setdefaulttimeout(timeout)


def _contents(dataset: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return the pixels uint8 (n, H, W, C), or a list of paths, and the labels of a torchvision dataset."""
    pairs = (("data", "targets"), ("data", "labels"), ("_image_files", "_labels"), ("_images", "_labels"))
    for images_in, labels_in in pairs:
        if hasattr(dataset, images_in) and hasattr(dataset, labels_in):
            images, labels = getattr(dataset, images_in), np.asarray(getattr(dataset, labels_in), dtype=np.int64)
            if isinstance(images, list):
                return images, labels
            pixels = np.asarray(images)
            if pixels.ndim == 3:  # greyscale (n, H, W)
                pixels = pixels[..., None]
            elif pixels.shape[1] == 3 and pixels.shape[3] != 3:  # (n, C, H, W)
                pixels = pixels.transpose(0, 2, 3, 1)
            return np.ascontiguousarray(pixels), labels
    return [path for path, _ in dataset.samples], np.asarray([label for _, label in dataset.samples], dtype=np.int64)


def _class_names(name: str, dataset: Any) -> tuple[str, ...]:
    """Return the dataset's class names, duplicates numbered (ImageNet has two cranes and two maillots)."""
    names = getattr(dataset, "classes", None) or [str(number) for number in range(KNOWN[name].classes)]
    plain = [", ".join(n) if isinstance(n, tuple) else str(n) for n in names]
    counts = Counter(plain)
    return tuple(f"{n} ({label})" if counts[n] > 1 else n for label, n in enumerate(plain))
