"""Linear probes by depth against scikit-learn, and on features that reveal the class at a known depth only."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.inspection.depth import probe_by_depth, probe_layer_features
from vitreous.inspection.layer_features import LayerFeatures, layer_features
from vitreous.model.vit import VisionTransformer


def test_probes_are_those_of_scikit_learn(trained: VisionTransformer, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    train, scored = (x[:600], y[:600].numpy()), (x[1400:], y[1400:].numpy())
    found = probe_by_depth(trained, *train, *scored, batch_size=100)
    assert len(found.accuracy) == 4
    features, others = layer_features(trained, train[0]), layer_features(trained, scored[0])
    for depth, strength in enumerate(found.strengths):
        oracle = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=3000))
        if depth:  # the class token of depth 0 is the same for all images
            oracle.fit(features.of("class")[depth], train[1])
            assert found.accuracy[depth] == pytest.approx(oracle.score(others.of("class")[depth], scored[1]), abs=0.011)
            assert found.train_accuracy[depth] == pytest.approx(
                oracle.score(features.of("class")[depth], train[1]), abs=0.011
            )
    assert found.accuracy[0] < 0.2 < found.accuracy[1] < found.accuracy[3]
    document = json.loads(json.dumps(found.to_dict()))
    assert [document[name] for name in ("token", "train_images", "scored_images")] == ["class", 600, 397]
    assert found.margin == pytest.approx(1.96 * (0.25 / 397) ** 0.5)


def test_the_depth_at_which_the_class_appears_is_seen() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(3, size=240)
    patches = random.normal(size=(3, 240, 8)).astype(np.float32)
    patches[2, :, :3] += 8 * np.eye(3, dtype=np.float32)[labels]
    train, scored = (LayerFeatures(None, patches[:, half]) for half in (slice(120), slice(120, 240)))
    found = probe_layer_features(train, labels[:120], scored, labels[120:])
    assert found.token == "patches"
    assert max(found.accuracy[:2]) < 0.5
    assert found.accuracy[2] > 0.99
    with pytest.raises(ConfigError, match="no class token"):
        probe_layer_features(train, labels[:120], scored, labels[120:], token="class")
    with pytest.raises(DataError, match="do not match"):
        probe_layer_features(train, labels[:100], scored, labels[120:])
