"""Writes CIFAR-10 as images with a manifest in which a part of the training images has labels.

    python benchmarks/accuracy/few_labels.py cifar10/ few/ --share 0.1 --seeds 0 1 2

The first folder is what `vitreous train cifar10` keeps (cifar-10-batches-py). Of the labelled images, drawn with the
seed, equally many of each class, a tenth is the validation split; all of `test` is the test split. Manifests are named
by the seed: 0.csv.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR10


def main() -> None:
    """Write the images once, and a manifest for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of cifar-10-batches-py")
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=0.1, help="share of the training images that has labels")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    (options.out / "images").mkdir(parents=True, exist_ok=True)
    splits = {name: CIFAR10(str(options.source), train=name == "train") for name in ("train", "test")}
    for name, images in splits.items():
        for n, (image, _) in enumerate(images):
            path = options.out / "images" / f"{name}-{n:05d}.png"
            if not path.exists():
                image.save(path)
    labels, names = np.array(splits["train"].targets), splits["train"].classes
    for seed in options.seeds:
        order = np.random.default_rng(seed).permutation(len(labels))
        split = {}
        for label in range(len(names)):
            own = order[labels[order] == label]
            chosen = own[: round(options.share * len(own))]
            split |= {n: "val" if place < len(chosen) // 10 else "train" for place, n in enumerate(chosen)}
        rows = [
            (f"images/train-{n:05d}.png", names[label] if n in split else "", split.get(n, "train"))
            for n, label in enumerate(labels)
        ]
        rows += [(f"images/test-{n:05d}.png", names[label], "test") for n, label in enumerate(splits["test"].targets)]
        with (options.out / f"{seed}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "label", "split"), *rows])


if __name__ == "__main__":
    main()
