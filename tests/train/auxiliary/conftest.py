"""Digits of which most have no label."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

LABELLED, TESTED, TOTAL = 100, 50, 400


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder of digits and a manifest of them, in which most rows have no label."""
    folder, found = tmp_path_factory.mktemp("digits"), load_digits()
    rows = []
    for n in range(TOTAL):
        Image.fromarray((found.images[n] * 255 / 16).astype(np.uint8)).save(folder / f"{n}.png")
        split = "train" if n < LABELLED else "test" if n < LABELLED + TESTED else ""
        rows.append((f"{n}.png", found.target[n] if split else "", split))
    with (folder / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return folder
