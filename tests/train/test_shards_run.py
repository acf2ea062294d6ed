"""A run on shards is the run on the folder they were made from: bit for bit, and each resumes the other."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from vitreous.data.config import DataConfig
from vitreous.data.shards.writing.destination import LocalDestination
from vitreous.data.shards.writing.writer import write_shards
from vitreous.errors import CheckpointError


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """120 digits in ten classes; beside them their shards, about ten images in each."""
    root = tmp_path_factory.mktemp("photos")
    bunch = load_digits()
    for n in range(120):
        folder = root / "photos" / str(bunch.target[n])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((bunch.images[n] * 15).astype("uint8")).save(folder / f"{n}.png")
    write_shards(DataConfig(str(root / "photos")), LocalDestination(root / "shards"), shard_bytes=1000)
    return root


def config(runs, out, source, **data):
    plain = {"memory_gb": 0.0, "workers": 0, **data}
    return runs.config(out, data=DataConfig(str(source), **plain), batch_size=32)


def test_a_run_goes_on_with_shards_and_back_and_ends_in_the_same_bits(runs, photos, tmp_path):
    runs.train(config(runs, tmp_path / "whole", photos / "photos", shuffle_shards=100))
    runs.broken_off(config(runs, tmp_path / "parts", photos / "photos", shuffle_shards=100), steps=1)
    runs.broken_off(config(runs, tmp_path / "parts", photos / "shards", shuffle_shards=100), steps=3, resume=True)
    runs.train(config(runs, tmp_path / "parts", photos / "photos", shuffle_shards=100), resume=True)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_window_of_shards_is_part_of_the_run(runs, photos, tmp_path):
    windowed = config(runs, tmp_path / "run", photos / "shards", shuffle_shards=3)
    runs.broken_off(windowed, steps=1)
    with pytest.raises(CheckpointError, match="order of the images"):
        runs.train(
            dataclasses.replace(windowed, data=config(runs, "x", photos / "photos", shuffle_shards=3).data), resume=True
        )
    runs.train(windowed, resume=True)
    assert json.loads((tmp_path / "run" / "report.json").read_text())
