"""Model files of format 1, written before the configuration was made of parts and kept as test data, still open."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from vitreous.checkpoint.model_config import MOVED, upgraded
from vitreous.checkpoint.model_file import load_model, recalibrate, save_model
from vitreous.evaluate.trust.conformal import ConformalSets
from vitreous.model.config import PARTS, ViTConfig
from vitreous.model.part import option_types

FOLDER = Path(__file__).parent / "format_1"
ANSWERS = json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))


def tuples(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def test_every_file_is_tested() -> None:
    assert {file.stem for file in FOLDER.glob("*.safetensors")} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_file_of_format_1_answers_as_when_it_was_written(name: str, tmp_path: Path) -> None:
    model, info = load_model(FOLDER / f"{name}.safetensors")
    answers = ANSWERS[name]
    flat = {field: tuples(value) for field, value in answers["config"].items()}
    assert model.config == ViTConfig(**upgraded(flat))
    height, width = (
        (model.config.image_size,) * 2 if isinstance(model.config.image_size, int) else model.config.image_size
    )
    channels = model.config.in_channels
    images = torch.linspace(-1, 1, 2 * channels * height * width).sin().reshape(2, channels, height, width)
    large = torch.linspace(-1, 1, 8 * channels * height * width).cos().reshape(2, channels, 2 * height, 2 * width)
    save_model(tmp_path / "again.safetensors", model, info)
    again, _ = load_model(tmp_path / "again.safetensors")
    for each in (model, again):
        with torch.no_grad():
            found = {"logits": each(images), "twice as large": each(large), "features": each(images, "features")}
        for output, value in found.items():
            torch.testing.assert_close(value, torch.tensor(answers[output]), rtol=1e-5, atol=1e-5, msg=output)
    assert again.config == model.config
    assert info.temperature == 1.5


@pytest.mark.parametrize("name", ANSWERS)
def test_a_file_of_format_1_can_be_calibrated(name: str, tmp_path: Path) -> None:
    model, info = load_model(FOLDER / f"{name}.safetensors")
    assert (info.abstention, info.conformal) == (None, None)
    sets = ConformalSets("lac", 0.9, (0.5,), len(info.classes))
    path = tmp_path / "again.safetensors"
    recalibrate(FOLDER / f"{name}.safetensors", path, dataclasses.replace(info, temperature=2.0, conformal=sets), {})
    again, after = load_model(path)
    assert (after.temperature, after.conformal, again.config) == (2.0, sets, model.config)


def test_every_flat_field_has_a_place() -> None:
    """Every flat field of format 1 is an option of a part now."""
    options = {(part, option) for part, kinds in PARTS.items() for kind in kinds for option in option_types(kind)}
    assert set(MOVED.values()) <= options
