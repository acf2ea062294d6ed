"""The sheet of an augmented batch shows its images and names the classes that each is a mix of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import OutputError
from vitreous.report import batch_figure
from vitreous.report.batch_figure import save_batch_figure
from vitreous.report.fonts import FontSet

CLASSES = ("daisy", "dandelion", "roses", "sunflowers", "tulips")


def lines(target: torch.Tensor, classes: tuple[str, ...] = CLASSES) -> list[str]:
    return batch_figure._target_lines(target, classes, FontSet(classes))


def tiles(count: int, height: int, width: int) -> torch.Tensor:
    photo = load_sample_image("flower.jpg")
    pieces = [photo[30 + 3 * i : 30 + 3 * i + height, 100 + 5 * i : 100 + 5 * i + width] for i in range(count)]
    return torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("channels", "size", "count"), [(3, (64, 48), 50), (1, (8, 8), 5), (3, (120, 130), 1)])
def test_a_batch_of_any_size_becomes_a_sheet(tmp_path, channels, size, count):
    pipeline = EvalPipeline(size, channels, PreprocessConfig(mean=(0.4,) * channels, std=(0.3,) * channels))
    augment = BatchAugment(AugmentConfig(pad_crop=2, cutmix=1.0, erasing=0.2), pipeline, 5, 0, 0.1)
    images, targets = augment(tiles(count, *size)[:, :channels], torch.arange(count) % 5, epoch=0, step=0)
    save_batch_figure(tmp_path / "batch.png", images, targets, CLASSES, pipeline)
    with Image.open(tmp_path / "batch.png") as sheet:
        assert sheet.format == "PNG"
        assert min(sheet.size) > 150
        assert len(sheet.convert("RGB").getcolors(2**24)) > 100


def test_normalisation_is_undone():
    pipeline = EvalPipeline((40, 50), 3, PreprocessConfig(mean=(0.1, 0.5, 0.9), std=(0.2, 0.3, 0.4)))
    images = tiles(4, 40, 50)
    shown = batch_figure._denormalise(pipeline.normalise(images), pipeline)
    assert np.abs(shown * 255 - images.permute(0, 2, 3, 1).numpy()).max() < 1e-3


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ([0, 1.0, 0, 0, 0], ["dandelion"]),
        ([0.02, 0.92, 0.02, 0.02, 0.02], ["dandelion"]),
        ([0.7, 0, 0, 0, 0.3], ["daisy 0.7", "+ tulips 0.3"]),
        ([0.02 + 0.9 * 0.25, 0.02, 0.02 + 0.9 * 0.75, 0.02, 0.02], ["roses 0.75", "+ daisy 0.25"]),
        ([0.999, 0, 0, 0, 0.001], ["daisy"]),
    ],
)
def test_mixed_labels_are_written_as_their_shares_without_smoothing(target, expected):
    assert lines(torch.tensor(target)) == expected


def test_plain_labels_are_written_as_their_class():
    assert lines(torch.tensor(3)) == ["sunflowers"]
    assert lines(torch.tensor([0.4, 0.6]), ("no", "yes")) == ["yes 0.6", "+ no 0.4"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    pipeline = EvalPipeline((8, 8), 3, PreprocessConfig(mean=(0.4,) * 3, std=(0.3,) * 3))
    with pytest.raises(OutputError, match="does not exist"):
        save_batch_figure(tmp_path / "no" / "batch.png", torch.zeros(1, 3, 8, 8), torch.tensor([0]), CLASSES, pipeline)
