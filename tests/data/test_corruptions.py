"""The interface of corruptions: reproducible bytes, accepted and refused input, and severities that grow.

test_corruptions_formulas.py has the formulas, test_corruptions_published.py the comparison with the authors' code.
"""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from data.photos import tiles
from vitreous.data.corruptions import CORRUPTIONS
from vitreous.data.corruptions.apply import corrupt
from vitreous.data.corruptions.levels import Levels
from vitreous.errors import DataError, UsageError

NAMES = list(CORRUPTIONS)
RANDOM = [
    "gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog",
    "elastic_transform",
]  # fmt: skip

# By the published parameters: a severity of glass blur has fewer passes than the one before, but more blur; severity 4
# of frost has the same weight of frost as severity 3; CIFAR-10-C has the same width of motion blur at 3 and 4.
NEARLY_MONOTONE = {"glass_blur", "frost", "motion_blur"}


def grey(images: Tensor) -> Tensor:
    return images[:, 1:2].contiguous()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "channels"), [((32, 32), 3), ((32, 32), 1), ((96, 117), 3), ((117, 96), 1)])
def test_a_batch_of_1_equals_a_batch_of_32_byte_for_byte(name, size, channels):
    images = tiles(32, *size) if channels == 3 else grey(tiles(32, *size))
    before = images.clone()
    indices = [7 * number + 1 for number in range(32)]
    batch = corrupt(images, name, 4, indices=indices, seed=5)
    assert batch.dtype == torch.uint8
    assert batch.shape == images.shape
    assert torch.equal(images, before)
    for position in (31, 0, 13):
        alone = corrupt(images[position : position + 1], name, 4, indices=indices[position : position + 1], seed=5)
        assert torch.equal(alone[0], batch[position])
    assert torch.equal(corrupt(images.flip(0), name, 4, indices=indices[::-1], seed=5).flip(0), batch)


@pytest.mark.parametrize("name", NAMES)
def test_other_memory_layouts_give_the_same_bytes(name):
    images = tiles(4, 32, 40)
    last = images.contiguous(memory_format=torch.channels_last)
    expected = corrupt(images, name, 3, indices=range(4))
    assert torch.equal(corrupt(last, name, 3, indices=torch.arange(4)), expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_depend_on_seed_and_index_for_random_kinds_only(name):
    image = tiles(1, 48, 48)
    first = corrupt(image, name, 5, indices=[3])
    other_seed, other_index = corrupt(image, name, 5, indices=[3], seed=1), corrupt(image, name, 5, indices=[4])
    assert torch.equal(first, other_seed) == (name not in RANDOM)
    assert torch.equal(first, other_index) == (name not in RANDOM)


PRINT_HASH = """
import hashlib, torch
from vitreous.data.corruptions import CORRUPTIONS
from vitreous.data.corruptions.apply import corrupt
images = torch.arange(2 * 3 * 90 * 90).reshape(2, 3, 90, 90).mul(7919).remainder(251).to(torch.uint8)
parts = [corrupt(images, name, 2, indices=[8, 9]).numpy().tobytes() for name in CORRUPTIONS]
print(hashlib.sha256(b"".join(parts)).hexdigest())
"""


def test_processes_with_1_and_2_threads_give_the_same_bytes():
    def printed(threads: str) -> str:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {"PYTHONPATH": ":".join(sys.path), **dict.fromkeys(names, threads)}
        ran = subprocess.run([sys.executable, "-c", PRINT_HASH], env=environment, check=True, capture_output=True)
        return ran.stdout.decode()

    alone, together = printed("1"), printed("2")
    assert len(alone) == 65
    assert alone == together


@lru_cache
def flower_batch(folder: Path, side: int) -> Tensor:
    paths = sorted((folder / "val").glob("*/*.jpg"))[::15][:48]
    resized = [np.asarray(Image.open(path).convert("RGB").resize((side, side))) for path in paths]
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).contiguous()


def psnr(images: Tensor, corrupted: Tensor) -> float:
    error = (corrupted.double() - images.double()).square().mean(dim=(1, 2, 3))
    return float((10 * torch.log10(255**2 / error)).mean())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "elastic_transform"])
@pytest.mark.parametrize("side", [32, 128])
def test_psnr_falls_with_severity_on_photographs(flowers, name, side):
    images = flower_batch(flowers, side)
    values = [psnr(images, corrupt(images, name, severity, indices=range(48))) for severity in range(1, 6)]
    assert 5 < values[-1] < values[0] < 45
    if name not in NEARLY_MONOTONE:
        assert values == sorted(values, reverse=True)


def test_elastic_transform_grows_rougher_with_severity(flowers):
    """The affine part shrinks with severity, so PSNR does not fall. The displacement bends more: its slope grows."""
    ramp = torch.arange(160, dtype=torch.uint8).expand(160, 160)
    image = torch.stack([ramp, ramp.T, ramp])[None]
    roughness = []
    for severity in range(1, 6):
        moved = corrupt(image, "elastic_transform", severity, indices=[0])[0, :2, 40:120, 40:120].double()
        roughness.append(float(moved.diff(n=2, dim=1).abs().mean() + moved.diff(n=2, dim=2).abs().mean()))
    assert roughness[2] < roughness[3] < roughness[4]
    assert roughness[4] > 4 * roughness[0]


def test_the_shorter_side_chooses_the_table():
    levels = Levels(small=(1, 2, 3, 4, 5), large=(10, 20, 30, 40, 50))
    for height, width, expected in ((32, 32, 2), (84, 300, 2), (300, 84, 2), (85, 85, 20), (224, 224, 20)):
        assert levels.at(2, np.zeros((1, 3, height, width), dtype=np.uint8)) == expected


def test_an_empty_batch_stays_empty():
    assert corrupt(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), "fog", 1, indices=[]).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, 255])
def test_black_and_white_images_pass_without_a_warning(name, value):
    images = torch.full((2, 3, 32, 33), value, dtype=torch.uint8)
    assert corrupt(images, name, 5, indices=[0, 1]).shape == images.shape


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match=r"no corruption 'gausian_noise'.*Did you mean 'gaussian_noise'"):
        corrupt(tiles(1, 32, 32), "gausian_noise", 1, indices=[0])


@pytest.mark.parametrize("severity", [0, 6, -1, 1.5, True, "3"])
def test_a_severity_outside_1_to_5_is_refused(severity):
    with pytest.raises(UsageError, match="must be 1, 2, 3, 4 or 5"):
        corrupt(tiles(1, 32, 32), "fog", severity, indices=[0])


@pytest.mark.parametrize(
    ("images", "indices", "message"),
    [
        (torch.zeros(1, 3, 32, 31, dtype=torch.uint8), [0], "32 x 31 pixels.*32 x 32 or more"),
        (torch.zeros(1, 3, 32, 32), [0], "torch.float32, they must be torch.uint8"),
        (torch.zeros(1, 4, 32, 32, dtype=torch.uint8), [0], r"shape \(1, 4, 32, 32\)"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), [0], r"shape \(3, 32, 32\)"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), [0], "1 indices for 2 images"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), [-1], "smallest index of an image is -1"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), [0.5], "must be whole numbers"),
    ],
)
def test_unfit_images_and_indices_are_refused(images, indices, message):
    with pytest.raises(DataError, match=message):
        corrupt(images, "contrast", 1, indices=indices)


def test_listing_the_names_loads_no_numpy():
    code = "import sys, vitreous.data.corruptions as c; assert len(c.CORRUPTIONS) == 15; print('numpy' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    assert ran.stdout.split() == [b"False"]
