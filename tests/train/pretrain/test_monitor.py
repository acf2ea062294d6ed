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


class Flat(torch.nn.Module):
    """A model whose features are the pixels."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, images, what):
        return images.flatten(1)


def shaded(count, labelled, seed):
    """Dark images of noise; of those with a label, every second one is light."""
    pixels = np.random.default_rng(seed).integers(0, 64, (count, 4, 4, 3), np.uint8)
    labels = np.full(count, 2)
    labels[-labelled:] = np.arange(labelled) % 2
    pixels[labels == 0] += 128
    return Split(labels, tuple(map(str, range(count))), arrays=pixels)


def test_probes_are_of_the_labelled_images_and_ranks_of_any():
    splits, classes = {"train": shaded(400, 12, 0), "val": shaded(400, 8, 1)}, ("light", "dark", UNLABELLED)
    bare = {name: replace(split, labels=np.full(400, 2)) for name, split in splits.items()}
    pipeline = EvalPipeline((4, 4), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3))
    monitors = [
        FeatureMonitor(SimpleNamespace(classes=classes, splits=each), pipeline, 20, seed=0)
        for each in (splits, bare, splits)
    ]
    found, ranks, again = (each.measure(Flat(), probes=True) for each in monitors)
    assert (found["val_knn"], found["val_linear"]) == (1.0, 1.0)
    assert ranks.keys() == {"effective_rank", "rankme"}
    assert {name: found[name] for name in ranks} == ranks
    assert found == again
    assert len(monitors[0].dataset("train").pixels) == 12
    assert len(monitors[0].dataset("val").pixels) == len(monitors[0].val_features) == 20


def test_where_every_image_has_a_label_the_probes_are_of_the_sample_of_any():
    splits = {"train": shaded(60, 60, 0), "val": shaded(60, 60, 1)}
    pipeline = EvalPipeline((4, 4), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3))
    monitor = FeatureMonitor(SimpleNamespace(classes=("light", "dark"), splits=splits), pipeline, 20, seed=0)
    assert [len(monitor.dataset(name).pixels) for name in ("train", "val", "more")] == [20, 20, 0]
    assert monitor.measure(Flat(), probes=True)["val_linear"] == 1.0


@pytest.mark.parametrize(
    ("train", "val", "said"),
    [
        ((0, 1), (0, 1), None),
        ((2, 2), (2, 2), None),
        ((0, 0, 2), (1, 2), "train has 2 labelled images of one class, val has 1 labelled image. Probes need"),
        ((0, 1), (2, 2), "train has 2 labelled images, val has 0 labelled images. Probes need"),
        ((2, 2), (0, 1), "train has 0 labelled images, val has 2 labelled images. Probes need"),
    ],
)
def test_labels_that_do_not_suffice_for_probes_are_counted(train, val, said):
    data = SimpleNamespace(classes=("a", "b", UNLABELLED), splits={"train": split_of(*train), "val": split_of(*val)})
    found = FeatureMonitor(data, EvalPipeline((4, 4), 3, PreprocessConfig()), 100, seed=0).missing_labels
    assert found is None if said is None else said in found


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
