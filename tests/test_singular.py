"""Sentences of one block, one class or one core are in the singular."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vitreous.accelerate.model import create
from vitreous.checkpoint.adapters.shapes import _describe
from vitreous.errors import ConfigError
from vitreous.model.intermediates import intermediates
from vitreous.train import setup
from vitreous.train.config import TuneConfig
from vitreous.train.finetune.stages.decisions import too_few_images
from vitreous.train.finetune.trainable import choose_trained


def test_one_of_a_kind_is_in_the_singular(monkeypatch):
    model = create("mu/16", num_classes=1, image_size=32).eval()
    assert model.config.depth == 1
    with pytest.raises(ConfigError, match="the model has 1 block: use -1 to 0"):
        intermediates(model, torch.zeros(1, 3, 32, 32), layers=[4])
    with pytest.raises(ConfigError, match="but the model has 1 block: last-1 trains all"):
        choose_trained(model, TuneConfig(source="x", mode="last-2"))
    assert ", 1 block, " in _describe(model.config)
    assert ", 1 class: the tensors' shapes" in _describe(model.config)
    assert too_few_images(1, 2).startswith("1 training image of 2 classes: it takes")
    machine = SimpleNamespace(cores=1, gpu=None, bf16=True)
    monkeypatch.setattr(setup, "describe_machine", lambda device: machine)
    assert setup.describe_hardware(torch.device("cpu"), "float32") == "1 CPU core, float32"
