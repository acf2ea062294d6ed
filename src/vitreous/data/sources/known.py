"""Known sets by name: scikit-learn's digits, which are bundled, and torchvision's classification sets.

To add one, add a line to :data:`KNOWN`, and to :func:`_contents` if its pictures lie in another attribute.
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

__all__ = ["KNOWN", "KnownSet", "PixelSet", "load_known"]

_TIMEOUT = 30.0  # seconds without an answer from a download server; torchvision itself would wait forever


@dataclass(frozen=True)
class KnownSet:
    """Where a known set comes from, and its figures.

    Args:
        dataset: Class in torchvision.datasets; empty for scikit-learn's digits.
        channels: 3 for colour, 1 for grey.
        size: Height and width in pixels; None where pictures differ.
        classes: Number of classes.
        splits: Arguments of the class for each official split.
        files: What to put into the data folder where it cannot be downloaded.
        url: Where to get those files.
        downloads: Whether torchvision can download it.
    """

    dataset: str
    channels: int
    size: tuple[int, int] | None
    classes: int
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: str = ""
    url: str = ""
    downloads: bool = True


_TRAIN_TEST_FLAG = {"train": {"train": True}, "test": {"train": False}}
_TRAIN_TEST = {"train": {"split": "train"}, "test": {"split": "test"}}
_MNIST = "raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"

KNOWN: dict[str, KnownSet] = {
    "digits": KnownSet("", 1, (8, 8), 10),
    "cifar10": KnownSet(
        *("CIFAR10", 3, (32, 32), 10, _TRAIN_TEST_FLAG, "cifar-10-python.tar.gz"),
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ),
    "cifar100": KnownSet(
        *("CIFAR100", 3, (32, 32), 100, _TRAIN_TEST_FLAG, "cifar-100-python.tar.gz"),
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    ),
    "mnist": KnownSet(
        *("MNIST", 1, (28, 28), 10, _TRAIN_TEST_FLAG, f"MNIST/{_MNIST}"),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    "fashion-mnist": KnownSet(
        *("FashionMNIST", 1, (28, 28), 10, _TRAIN_TEST_FLAG, f"FashionMNIST/{_MNIST}"),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    "svhn": KnownSet(
        *("SVHN", 3, (32, 32), 10, _TRAIN_TEST, "train_32x32.mat and test_32x32.mat"),
        "http://ufldl.stanford.edu/housenumbers/",
    ),
    "stl10": KnownSet(
        *("STL10", 3, (96, 96), 10, _TRAIN_TEST, "stl10_binary.tar.gz"),
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    ),
    "flowers102": KnownSet(
        *("Flowers102", 3, None, 102, {**_TRAIN_TEST, "val": {"split": "val"}}),
        "flowers-102/102flowers.tgz, flowers-102/imagelabels.mat and flowers-102/setid.mat",
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    ),
    "oxford-pets": KnownSet(
        *("OxfordIIITPet", 3, None, 37, {"train": {"split": "trainval"}, "test": {"split": "test"}}),
        "oxford-iiit-pet/images.tar.gz and oxford-iiit-pet/annotations.tar.gz",
        "https://www.robots.ox.ac.uk/~vgg/data/pets/data/",
    ),
    "food101": KnownSet(
        *("Food101", 3, None, 101, _TRAIN_TEST, "food-101.tar.gz"),
        "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
    ),
    "eurosat": KnownSet(
        *("EuroSAT", 3, (64, 64), 10, {"train": {}}, "eurosat/EuroSAT.zip"),
        "https://huggingface.co/datasets/torchgeo/eurosat",
    ),
    "imagenet": KnownSet(
        *("ImageNet", 3, None, 1000, {"train": {"split": "train"}, "val": {"split": "val"}}),
        "ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar",
        "https://image-net.org/download (it asks for a registration)",
        downloads=False,
    ),
}


@dataclass
class PixelSet:
    """A set that comes decoded.

    Args:
        classes: Class names in their official order.
        splits: Pixels uint8 (n, H, W, C) and labels int64 (n,) of each official split.
        test_fraction: Share to hold out for a test split where the set has none.
    """

    classes: tuple[str, ...]
    splits: dict[str, tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]
    test_fraction: float = 0.0


def load_known(name: str, folder: str) -> PixelSet | Listing:
    """Load a known set: from the folder if it is there, else downloaded to it.

    Args:
        name: A key of :data:`KNOWN`.
        folder: The data folder; torchvision makes its own folders in it.

    Raises:
        DataError: If the set is not there and cannot be downloaded; it says which files to put where.
    """
    if name == "digits":
        return _digits()
    root = Path(folder).expanduser()
    official = {split: _torchvision_set(name, root, options) for split, options in KNOWN[name].splits.items()}
    classes = _class_names(name, official["train"])
    contents = {split: _contents(dataset) for split, dataset in official.items()}
    if all(isinstance(pictures, np.ndarray) for pictures, _ in contents.values()):
        return PixelSet(classes, contents)
    entries = [
        Entry(Path(path), os.path.relpath(path, root).replace(os.sep, "/"), classes[label], split)
        for split, (paths, labels) in contents.items()
        for path, label in zip(paths, labels.tolist(), strict=True)
    ]
    # ImageNet's archives were verified when they were unpacked; opening 150 GB before every run would take hours.
    return Listing(root, entries, classes=classes, trusted=name == "imagenet")


def _digits() -> PixelSet:
    """1,797 handwritten digits of 8 x 8 pixels in 17 greys (UCI optical recognition test set, in scikit-learn)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)[..., None]
    return PixelSet(tuple("0123456789"), {"train": (pixels, data.target.astype(np.int64))}, test_fraction=0.2)


def _torchvision_set(name: str, root: Path, options: Mapping[str, Any]) -> Any:
    """Open one official split, downloading the set if it is not there."""
    import torchvision.datasets

    known = KNOWN[name]
    build = getattr(torchvision.datasets, known.dataset)
    attempts: list[dict[str, Any]] = [{}, {"download": True}] if known.downloads else [{}]
    for more in attempts:
        try:
            if not root.is_dir():
                root.mkdir(parents=True)
            with _torchvision_manners():
                return build(root, **options, **more)
        except (OSError, RuntimeError, ImportError) as error:  # torchvision: not found, no network, a wrong checksum
            last = error
    why = f"could not be downloaded ({_one_line(last)})" if known.downloads else "cannot be downloaded by a program"
    raise DataError(
        f"{name} is not in {root} and {why}: put {known.files} into {root}, from {known.url}, "
        f"or name the folder that has it with --data-dir"
    ) from last


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


@contextlib.contextmanager
def _torchvision_manners() -> Iterator[None]:
    """While torchvision works: no endless wait for a server, messages on stderr, no notes from NumPy on its pickles."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        socket.setdefaulttimeout(timeout)


def _contents(dataset: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """Pixels uint8 (n, H, W, C), or a list of paths, and the labels of a torchvision dataset."""
    for pictures_in, labels_in in (
        ("data", "targets"),
        ("data", "labels"),
        ("_image_files", "_labels"),
        ("_images", "_labels"),
    ):
        if hasattr(dataset, pictures_in) and hasattr(dataset, labels_in):
            pictures, labels = getattr(dataset, pictures_in), np.asarray(getattr(dataset, labels_in), dtype=np.int64)
            if isinstance(pictures, list):
                return pictures, labels
            pixels = np.asarray(pictures)
            if pixels.ndim == 3:  # grey (n, H, W)
                pixels = pixels[..., None]
            elif pixels.shape[1] == 3 and pixels.shape[3] != 3:  # (n, C, H, W)
                pixels = pixels.transpose(0, 2, 3, 1)
            return np.ascontiguousarray(pixels), labels
    return [path for path, _ in dataset.samples], np.asarray([label for _, label in dataset.samples], dtype=np.int64)


def _class_names(name: str, dataset: Any) -> tuple[str, ...]:
    """The set's own class names, made different where two are the same (ImageNet has two cranes and two maillots)."""
    names = getattr(dataset, "classes", None) or [str(number) for number in range(KNOWN[name].classes)]
    plain = [", ".join(n) if isinstance(n, tuple) else str(n) for n in names]
    counts = Counter(plain)
    return tuple(f"{n} ({at})" if counts[n] > 1 else n for at, n in enumerate(plain))
