"""`vitreous replay` repeats a step with its second task."""

from __future__ import annotations

import pytest
import torch

from vitreous.data.config import DataConfig
from vitreous.errors import CheckpointError, NonFiniteError
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.auxiliary.config import AuxConfig
from vitreous.train.auxiliary.module import AuxModule
from vitreous.train.resume.replay import REPLAY, replay

MAE = AuxConfig("mae", decoder_width=8, decoder_depth=1, decoder_heads=2)
PSEUDO = AuxConfig("fixmatch", threshold=0.1, begin=0.0)


@pytest.fixture
def broken_off(runs, digits, tmp_path, monkeypatch):
    """Train with a weight of a huge value until a step is not finite, and return the file of that step."""

    def train(aux, weight, **options):
        original = AuxModule.on_train_start

        def spoilt(self):
            original(self)
            owner, _, name = weight.partition(".")
            with torch.no_grad():
                getattr(self, owner).get_parameter(name).fill_(3e38)

        monkeypatch.setattr(AuxModule, "on_train_start", spoilt)
        data = DataConfig(str(digits / "images.csv"))
        with pytest.raises(NonFiniteError):
            runs.train(runs.config(tmp_path / "run", data=data, aux=aux, batch_size=40, **options))
        return tmp_path / "run" / REPLAY

    return train


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_module_of_the_decoder_is_named(broken_off, accumulate):
    file = broken_off(MAE, "auxiliary.decoder.predict.weight", accumulate=accumulate)
    finding = replay(file)
    assert (finding.module, finding.notes) == ("decoder.predict", ())
    assert finding.text == "the output of decoder.predict is the first that is not finite"
    for batch in read_state(file)["batches"]:
        assert len(batch["unlabelled"]["images"]) == 40 // accumulate
        assert len(batch["labels"]) == 40 // accumulate


def test_images_without_a_label_are_repeated(broken_off):
    """With a mended decoder, a step fails by its unlabelled images alone."""
    file = broken_off(MAE, "auxiliary.decoder.predict.weight")
    stored = read_state(file)
    mended = {name: value.clamp(-1, 1) for name, value in stored["auxiliary"]["weights"].items()}
    write_state(file, {**stored, "auxiliary": {**stored["auxiliary"], "weights": mended}})
    assert replay(file).module is None
    stored["batches"][0]["unlabelled"]["images"] = torch.full((40, 1, 8, 8), float("nan"))
    write_state(file, {**stored, "auxiliary": {**stored["auxiliary"], "weights": mended}})
    assert replay(file).module == "images"
    alone = [{name: value for name, value in batch.items() if name != "unlabelled"} for batch in stored["batches"]]
    write_state(file, {**stored, "batches": alone, "auxiliary": {**stored["auxiliary"], "weights": mended}})
    assert replay(file).module is None


def test_a_module_of_the_model_is_named(broken_off):
    file = broken_off(MAE, "model.blocks.0.mlp.fc1.weight", accumulate=1)
    assert replay(file).module == "blocks.0.mlp.fc1"


def test_pseudo_labels_are_repeated_and_said_to_be_others(broken_off):
    finding = replay(broken_off(PSEUDO, "model.head.weight"))
    assert finding.module is not None
    assert finding.notes == (
        "pseudo-labels are those of the trained weights: the step's own may be those of their moving average",
    )


@pytest.mark.parametrize(
    "change", [{"weights": {}}, {"per_step": 1}, {"options": {"method": "mae", "mask": "much"}}, {"options": {}}]
)
def test_an_invalid_task_is_refused(broken_off, change):
    file = broken_off(MAE, "auxiliary.decoder.predict.weight")
    stored = read_state(file)
    write_state(file, {**stored, "auxiliary": {**stored["auxiliary"], **change}})
    with pytest.raises(CheckpointError, match="cannot be replayed"):
        replay(file)
