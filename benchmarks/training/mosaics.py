"""A dataset with several labels from CIFAR-10: mosaics of one to three images, some of which overlap.

    python benchmarks/training/mosaics.py OUT --data-dir DIR [--train N] [--test N]

writes OUT/train/*.png, OUT/test/*.png and OUT/mosaics.csv with the columns path, split and labels. A mosaic has 64 x 64
pixels of grey, on which one, two or three photographs of 32 pixels lie at random places; a later one may hide up to
half of an earlier one. Two of them may share a class, so that a mosaic has one to three labels. Train and test mosaics
are made from CIFAR-10's own splits. The score of a run on them is in docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10

SIDE, PART = 64, 32
MOST_HIDDEN = 0.5  # of an earlier photograph
GREY = 128


def mosaic(rng: np.random.Generator, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, set[int]]:
    """Return a mosaic (64, 64, 3) and its labels."""
    canvas, places, found = np.full((SIDE, SIDE, 3), GREY, np.uint8), [], set()
    for _ in range(int(rng.integers(1, 4))):
        for _ in range(100):
            top, left = rng.integers(0, SIDE - PART + 1, 2)
            if all(_overlap(top, left, *other) <= MOST_HIDDEN for other in places):
                break
        else:
            continue
        n = int(rng.integers(len(images)))
        canvas[top : top + PART, left : left + PART] = images[n]
        places.append((top, left))
        found.add(int(labels[n]))
    return canvas, found


def _overlap(top: int, left: int, other_top: int, other_left: int) -> float:
    """Return the share of a photograph that another one at these places hides."""
    down, across = PART - abs(int(top) - int(other_top)), PART - abs(int(left) - int(other_left))
    return max(down, 0) * max(across, 0) / PART**2


def build(out: Path, data_dir: str, counts: dict[str, int], seed: int = 0) -> Path:
    """Write the images and the manifest; return the manifest."""
    rng, rows, classes = np.random.default_rng(seed), [], ()
    for split, count in counts.items():
        data = CIFAR10(data_dir, train=split == "train", download=False)
        classes, labels = data.classes, np.asarray(data.targets)
        (out / split).mkdir(parents=True, exist_ok=True)
        for n in range(count):
            pixels, found = mosaic(rng, data.data, labels)
            Image.fromarray(pixels).save(out / split / f"{n:05d}.png")
            rows.append((f"{split}/{n:05d}.png", split, ";".join(classes[k] for k in sorted(found))))
    manifest = out / "mosaics.csv"
    with manifest.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "split", "labels"))
        writer.writerows(rows)
    return manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-dir", required=True, help="folder of CIFAR-10")
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=2000)
    options = parser.parse_args()
    print(build(options.out, options.data_dir, {"train": options.train, "test": options.test}))


if __name__ == "__main__":
    main()
