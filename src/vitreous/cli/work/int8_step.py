"""`vitreous export --int8`: which images calibrate the quantisation, and which decide whether its accuracy is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.opening import OpenedCheckpoint
from vitreous.cli.work.evaluating import scoring
from vitreous.data.images.reading import read_image
from vitreous.data.sources.opening import Split
from vitreous.errors import DataError
from vitreous.export.quantisation.files import Int8
from vitreous.export.quantisation.quantise import MAX_DROP, Quantised
from vitreous.export.quantisation.running import Top1
from vitreous.export.reading import placed

__all__ = ["MAX_DROP", "DataInt8"]

_CALIBRATION = 300  # images; more change the ranges of activations little
_BATCH = 32
_FEWEST = 20  # images that choose, below which a loss of accuracy cannot be seen at all

Pixels = npt.NDArray[np.uint8]


@dataclass
class DataInt8:
    """Quantises a written file on labelled images; a :class:`vitreous.export.run.Quantiser`.

    Images of train calibrate, without their labels. Images of val choose among settings and layers. Of data with one
    split, every fourth image calibrates and the others choose.

    Args:
        data: Labelled images, as for `vitreous evaluate`.
        folder: Folder of known datasets.
        max_drop: Accepted loss of top-1 accuracy, or mAP of several labels, on the images that choose, in points.
        tell: Receives lines for the user.
    """

    data: str
    folder: str | None = None
    max_drop: float = MAX_DROP
    tell: Callable[[str], None] = field(default_factory=lambda: lambda line: None)
    result: Quantised | None = field(default=None, init=False)
    precision: str = field(default="int8", init=False)

    def __call__(self, form: str, files: list[Path], opened: OpenedCheckpoint) -> list[Path]:
        """Quantise the files in place; the model's weights name the layers of the graph.

        Raises:
            UsageError: The format has no int8.
            DataError: There are too few images.
            OutputError: No quantised graph keeps the accuracy.
        """
        info = opened.info
        several = info.multilabel is not None
        data = scoring.open_data(info, self.data, self.folder, None, several=several)
        calibrating, choosing = _roles(data.splits)
        if len(choosing[1]) < _FEWEST or not calibrating[1]:
            raise DataError(
                f"{data.name} has {len(choosing[1])} images to measure the loss of int8 with, it must be at least "
                f"{_FEWEST}, and others to calibrate on: give more images, or export without --int8"
            )
        self.tell(
            f"int8: {len(calibrating[1]):,} images of {data.name}, {calibrating[0]}, calibrate; "
            f"{len(choosing[1]):,} of {choosing[0]} choose{', by mAP, which is the accuracy below' if several else ''}"
        )
        split, rows = data.splits[choosing[0]], choosing[1]
        by_name = scoring.label_sets_by_name if several else scoring.labels_by_name
        labels = by_name(info.classes, data, split).numpy()[rows]
        top1 = Top1(_batches(info, split, rows), labels)
        named = {name: value.cpu().numpy() for name, value in opened.model.state_dict().items()}
        batches = _batches(info, data.splits[calibrating[0]], calibrating[1])
        step = Int8(batches, top1, self.max_drop, self.tell, named)
        files = step(form, files)
        self.result = step.result
        return files


def _roles(splits: dict[str, Split]) -> tuple[tuple[str, list[int]], tuple[str, list[int]]]:
    """Return split and rows of the images that calibrate, and of those that choose."""
    choosing = next(name for name in ("val", "test", *splits) if name in splits)
    if "train" in splits and choosing != "train":
        train = np.random.default_rng(0).permutation(len(splits["train"]))[:_CALIBRATION]
        return ("train", sorted(train.tolist())), (choosing, list(range(len(splits[choosing]))))
    rows = range(len(splits[choosing]))
    return (choosing, list(rows[::4])[:_CALIBRATION]), (choosing, [row for row in rows if row % 4])


def _batches(info: ModelInfo, split: Split, rows: Sequence[int]) -> list[Pixels]:
    """Return inputs of the graph in which its resize finds nothing to do, (B, h, w, C) each."""
    images, found = scoring.images_of(split), []
    for start in range(0, len(rows), _BATCH):
        pixels = [info.pipeline.pixels(read_image(images[row])) for row in rows[start : start + _BATCH]]
        found.append(placed(info.pipeline, np.stack(pixels)))
    return found
