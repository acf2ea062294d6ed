"""What is measured in pretraining: labels of one class are none, and each checked step counts once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitreous.cli.verbs.pretrain import configure
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.listing import UNLABELLED
from vitreous.data.sources.opening import Split
from vitreous.errors import ConfigError, UsageError
from vitreous.train.pretrain.monitor import CollapseError, CollapseWatch, FeatureMonitor


def split_of(*labels):
    pixels = np.zeros((len(labels), 4, 4, 3), np.uint8)
    return Split(np.asarray(labels), tuple(map(str, range(len(labels)))), arrays=pixels)


@pytest.mark.parametrize(
    ("train", "val", "probed"),
    [((0, 1), (0, 1), True), ((0, 0), (0, 1), False), ((0, 2), (0, 1), False), ((0, 1), (2, 2), False)],
)
def test_features_are_probed_if_the_training_images_have_two_classes(train, val, probed):
    data = SimpleNamespace(classes=("a", "b", UNLABELLED), splits={"train": split_of(*train), "val": split_of(*val)})
    monitor = FeatureMonitor(data, EvalPipeline((4, 4), 3, PreprocessConfig()), 100, seed=0)
    assert ("val_knn" in monitor.columns) == probed


@pytest.mark.parametrize(
    ("train", "val", "probed"),
    [("x xy y", "x y", True), ("x x x", "x y", False), ("x xy -", "- -", False), ("- - x", "x x", False)],
)
def test_several_labels_are_probed_if_they_tell_training_images_apart(train, val, probed):
    images = {name: split_of(*[0] * len(sets.split())) for name, sets in (("train", train), ("val", val))}
    sets = {}
    for name, texts in (("train", train), ("val", val)):
        names = tuple(f"{name} {n}" for n in range(len(images[name])))
        images[name] = replace(images[name], names=names)
        sets |= {each: tuple(text.replace("-", "")) for each, text in zip(names, texts.split(), strict=True)}
    data = SimpleNamespace(classes=(UNLABELLED,), splits=images)
    monitor = FeatureMonitor(data, EvalPipeline((4, 4), 3, PreprocessConfig()), 100, 0, sets)
    assert ("val_knn_map" in monitor.columns) == probed
    assert "val_knn" not in monitor.columns


def test_a_step_of_several_micro_batches_is_checked_once_and_what_is_not_finite_never():
    objective = SimpleNamespace(find_collapse=lambda embeddings: "all alike", remedy="change something")
    watch = CollapseWatch(objective, "mae")
    for step in (20, 20, 20, 30, 30):
        watch.see(step, torch.zeros(8, 4))
    watch.see(40, torch.full((8, 4), torch.nan))
    with pytest.raises(CollapseError, match="by step 51: all alike"):
        watch.see(50, torch.zeros(8, 4))


def test_options_that_would_do_nothing_are_refused():
    with pytest.raises(UsageError, match="keeps the model of the source: omit --model B/16"):
        configure(["digits", "--from", "dinov2-s", "--model", "B/16"])
    with pytest.raises(ConfigError, match="select is last, but only training on labels uses it"):
        configure(["digits", "--select", "last"])
