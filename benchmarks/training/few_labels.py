"""Writes manifests in which a part of the training images has labels, of CIFAR-10 or of a folder with train/ and val/.

    python benchmarks/training/few_labels.py cifar10/ few/ --share 0.1 --seeds 0 1 2
    python benchmarks/training/few_labels.py flowers/ few-flowers/ --share 0.05 --val 0.25

The first folder is what `vitreous train cifar10` keeps (cifar-10-batches-py), whose images are written beside the
manifests, or has train/ and val/ with one folder per class. The labelled images are drawn with the seed, the same share
of each class, and a part of them is the validation split; all of CIFAR-10's `test`, or of val/, is the test split.
Manifests are named by the seed: 0.csv.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR10

Row = tuple[str, str]
"""Path and label of an image."""


def of_cifar10(source: Path, out: Path) -> tuple[list[Row], list[Row]]:
    """Write the images of CIFAR-10, and return those of train and of test."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    found = []
    for name in ("train", "test"):
        rows, images = [], CIFAR10(str(source), train=name == "train")
        for n, (image, label) in enumerate(images):
            path = out / "images" / f"{name}-{n:05d}.png"
            if not path.exists():
                image.save(path)
            rows.append((f"images/{path.name}", images.classes[label]))
        found.append(rows)
    return found[0], found[1]


def of_folders(source: Path) -> tuple[list[Row], list[Row]]:
    """Return the images of train/ and of val/."""
    train, val = (
        [(str(path.resolve()), path.parent.name) for path in sorted((source / name).glob("*/*")) if path.is_file()]
        for name in ("train", "val")
    )
    return train, val


def main() -> None:
    """Write a manifest for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of cifar-10-batches-py, or with train/ and val/")
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=0.1, help="share of the training images that has labels")
    parser.add_argument("--val", type=float, default=0.1, help="share of these that is the validation split")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    has_folders = (options.source / "train").is_dir()
    train, tested = of_folders(options.source) if has_folders else of_cifar10(options.source, options.out)
    labels = np.array([label for _, label in train])
    for seed in options.seeds:
        order = np.random.default_rng(seed).permutation(len(labels))
        split = {}
        for label in dict.fromkeys(labels.tolist()):
            own = order[labels[order] == label]
            chosen = own[: round(options.share * len(own))]
            held_out = max(1, int(options.val * len(chosen)))
            split |= {n: "val" if place < held_out else "train" for place, n in enumerate(chosen)}
        rows = [(path, label if n in split else "", split.get(n, "train")) for n, (path, label) in enumerate(train)]
        rows += [(path, label, "test") for path, label in tested]
        with (options.out / f"{seed}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "label", "split"), *rows])


if __name__ == "__main__":
    main()
