"""Heads weigh classes as the training does that follows them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitreous.model.config import ViTConfig
from vitreous.train.config import RunConfig, TuneConfig
from vitreous.train.finetune.stages.features import Features
from vitreous.train.finetune.stages.heads import Heads

MODEL = ViTConfig(image_size=16, patch_size=4, num_classes=2, width=16, depth=2, heads=2, mlp_dim=32)


def features(counts, seed):
    """Two overlapping classes of so many images."""
    generator = np.random.default_rng(seed)
    labels = np.repeat([0, 1], counts)
    tokens = torch.from_numpy(generator.normal(size=(len(labels), 17, 16)).astype(np.float32))
    tokens[labels == 1] += 0.12
    return Features(tokens.mean(1), tokens, labels, list(range(len(labels))), computed=0, seconds=0.0)


@pytest.fixture
def heads():
    """A function that makes the heads of a run with 1,000 images of one class and 60 of another."""

    def make(**settings):
        config = RunConfig(model=MODEL, tune=TuneConfig(source="x", mode="auto"), **settings)
        setup = SimpleNamespace(
            config=config, device=torch.device("cpu"), data=SimpleNamespace(classes=("common", "rare"))
        )
        return Heads(setup, features((1000, 60), 0), features((500, 500), 1))

    return make


@pytest.mark.parametrize("head", ["linear", "attentive"])
def test_weighted_heads_find_the_rare_class(heads, head):
    def recall(**settings):
        found = heads(**settings)
        outcome = found.linear() if head == "linear" else found.attentive(1e-2)
        return float((outcome.candidate.logits[500:].argmax(1) == 1).double().mean())

    assert recall() < 0.6 < recall(class_weights="inverse")
    assert recall(class_weights="inverse") == recall(balanced_sampling=True)


def test_heads_without_time_for_all_images_take_some_of_them_and_say_so(heads):
    found = heads()
    assert found.seconds() > 0
    assert found.within(None) is found
    assert found.within(1e6) is found
    some = found.within(1e-9)
    assert (len(some.train.labels), some.left_out) == (32, 1028)
    rows = some.train.positions
    assert rows == sorted(set(rows))
    assert torch.equal(some.train.pooled, found.train.pooled[rows])
    assert torch.equal(some.train.tokens, found.train.tokens[rows])
    assert np.array_equal(some.train.labels, found.train.labels[rows])
    assert some.neighbours().detail.endswith(", on the 32 of 1,060 images that the budget allows")
    assert "budget" not in found.neighbours().detail
    assert found.on(32).train.positions == rows
    assert found.on(1060) is found.on(5000) is found
    negative, positive = (heads(seed=seed).on(32).train.positions for seed in (-1, 2**64 - 1))
    assert negative == positive != rows
