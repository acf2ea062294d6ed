"""Samples of labelled images for `vitreous inspect`: pixels, classes and names of some images of a split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.cli.output.terminal import progress_bar
from vitreous.cli.work.evaluating.scoring import choose_split, open_data
from vitreous.data.sources.opening import ImageData, Split
from vitreous.errors import DataError
from vitreous.predictor import Classifier

__all__ = ["Labelled", "Sample", "open_labelled", "sample"]

_MAX_BYTES = 2**28  # of the normalised images of a sample


@dataclass(frozen=True, eq=False)
class Sample:
    """Some images of a split.

    Attributes:
        images: Normalised, (n, C, H, W).
        rows: Their numbers in the split, (n,), ascending.
        split: The split.
    """

    images: Tensor
    rows: npt.NDArray[np.int64]
    split: Split

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Classes of the images, (n,), as indices into those of the data; (n, K) where they may have several labels."""
        return self.split.labels[self.rows]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled images: the split that is scored, and the one that is searched for similar images.

    Attributes:
        data: The data.
        name: Name of the scored split.
        scored: The split itself.
        searched: The training split, or the scored one without it.
    """

    data: ImageData
    name: str
    scored: Split
    searched: Split

    @property
    def title(self) -> str:
        """Name of the data and the scored split."""
        return self.data.name if self.name == "all" else f"{self.data.name}, {self.name}"


def open_labelled(classifier: Classifier, source: str, folder: str | None, split: str | None) -> Labelled:
    """Open labelled images, and choose their splits as `vitreous evaluate` does."""
    data = open_data(classifier.info, source, folder, split, several=True)
    name, scored = choose_split(data, split)
    return Labelled(data, name, scored, data.splits.get("train", scored))


def sample(classifier: Classifier, split: Split, count: int, label: str, seed: int = 0) -> Sample:
    """Return up to so many images of a split, drawn without replacement; files that cannot be read are left out.

    They are in random order, so that the first few are a sample too: those of a folder are of one class.

    Memory limits the number too.

    Raises:
        DataError: If no image can be read.
    """
    height, width = classifier.pipeline.size
    most = max(1, _MAX_BYTES // (4 * classifier.pipeline.channels * height * width))
    drawn = np.random.default_rng(seed).permutation(len(split))[: min(count, most)]
    images, rows = [], []
    with progress_bar(label) as update:
        for done, row in enumerate(drawn, start=1):
            try:
                images.append(classifier.pipeline(split.image(int(row))))
                rows.append(row)
            except DataError:
                continue
            finally:
                update(done, len(drawn))
    if not images:
        raise DataError("no image of the data can be read: `vitreous audit` lists the reasons")
    return Sample(torch.stack(images).to(classifier.device), np.asarray(rows, np.int64), split)
