"""Builds the images that the recipe `backbone` learns from: 200 classes of ImageNet at 64 px and CIFAR-10's train split.

    python benchmarks/accuracy/backbone_data.py TINY_IMAGENET CIFAR10 tiny
    vitreous train tiny --recipe backbone --budget 80m --data.memory_gb 3

TINY_IMAGENET has folders train/CLASS and val/CLASS; CIFAR10 is the folder of torchvision. CIFAR-10's test split is not
read: of each class, 100 images of the train split are for validation. Images of TINY_IMAGENET are hard links.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path

from torchvision.datasets import CIFAR10

_HELD_OUT = 100  # images of each CIFAR-10 class for validation


def link_tree(source: Path, destination: Path) -> int:
    """Link all files of a folder with subfolders; return their number."""
    count = 0
    for path in sorted(source.rglob("*.png")):
        target = destination / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
        count += 1
    return count


def write_cifar(folder: Path, destination: Path) -> int:
    """Write CIFAR-10's train split as PNG files, in classes of their own; return their number."""
    dataset, seen = CIFAR10(str(folder), train=True), Counter[int]()
    for image, label in dataset:
        split = "val" if seen[label] < _HELD_OUT else "train"
        target = destination / split / f"cifar_{dataset.classes[label]}" / f"{seen[label]:04}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(target, compress_level=1)
        seen[label] += 1
    return sum(seen.values())


def main() -> None:
    """Build the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tiny_imagenet", type=Path)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("destination", type=Path)
    args = parser.parse_args()
    print(f"{link_tree(args.tiny_imagenet, args.destination):,} images of ImageNet linked")
    print(f"{write_cifar(args.cifar10, args.destination):,} images of CIFAR-10 written")


if __name__ == "__main__":
    main()
