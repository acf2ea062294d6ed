"""Linear CKA against its definition with all index tuples written out, and against closed forms."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from measured_models import images_of, model_of
from numpy.typing import NDArray

from vitreous.errors import ConfigError, DataError
from vitreous.inspection.layer_features import layer_features
from vitreous.inspection.similarity import layer_similarity, linear_cka

Array = NDArray[np.float64]


def hsic_of_tuples(x: Array, y: Array) -> float:
    """The unbiased estimator as a U-statistic: means over all tuples of distinct images (Song et al., 2012)."""
    k, l, images = x @ x.T, y @ y.T, range(len(x))  # noqa: E741
    pairs = np.mean([k[i, j] * l[i, j] for i, j in itertools.permutations(images, 2)])
    apart = np.mean([k[i, j] * l[q, r] for i, j, q, r in itertools.permutations(images, 4)])
    joined = np.mean([k[i, j] * l[i, q] for i, j, q in itertools.permutations(images, 3)])
    return float(pairs + apart - 2 * joined)


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def test_cka_is_the_u_statistic_over_all_tuples() -> None:
    x, y = drawn(2, 7, 3) + 5, drawn(3, 7, 4, seed=1)
    y[1] = x[0] @ drawn(3, 4, seed=2)  # related features
    found = linear_cka(x, y)
    for i, j in np.ndindex(found.shape):
        own = math.sqrt(hsic_of_tuples(x[i], x[i]) * hsic_of_tuples(y[j], y[j]))
        assert found[i, j] == pytest.approx(hsic_of_tuples(x[i], y[j]) / own, abs=1e-10)


def test_parts_average_the_estimates() -> None:
    """Two parts of 6 and 8 images: the remainder joins the last, and each counts by its images."""
    x, y = drawn(1, 14, 3), drawn(1, 14, 3, seed=1) + drawn(1, 14, 3)

    def mean(a: Array, b: Array) -> float:
        return 6 / 14 * hsic_of_tuples(a[0, :6], b[0, :6]) + 8 / 14 * hsic_of_tuples(a[0, 6:], b[0, 6:])

    assert linear_cka(x, y, part=6)[0, 0] == pytest.approx(mean(x, y) / math.sqrt(mean(x, x) * mean(y, y)), abs=1e-10)


def test_rotation_scale_and_shift_change_nothing_and_unrelated_features_have_none() -> None:
    x = drawn(1, 600, 20)
    rotation = np.linalg.qr(drawn(20, 20, seed=1))[0]
    assert linear_cka(x, 3 * x @ rotation + 7)[0, 0] == pytest.approx(1, abs=1e-12)
    # The biased estimator would give about 0.3 here: there are more features than images in a part.
    unrelated = linear_cka(drawn(1, 600, 200), drawn(1, 600, 200, seed=1))[0, 0]
    assert abs(unrelated) < 0.01


def test_parts_estimate_what_all_images_give() -> None:
    x = drawn(1, 2048, 16)
    y = x + drawn(1, 2048, 16, seed=1)
    assert linear_cka(x, y, part=64)[0, 0] == pytest.approx(linear_cka(x, y, part=2048)[0, 0], abs=0.01)


@pytest.mark.parametrize("fast", [False, True])
def test_depths_of_models_are_compared(fast: bool) -> None:
    model, other = model_of(fast, depth=3), model_of(depth=1, registers=1)
    images = images_of(model, 40)
    features, columns = layer_features(model, images), layer_features(other, images)
    found = layer_similarity(model, images, batch_size=7)
    np.testing.assert_allclose(
        found.class_token[1:, 1:], linear_cka(features.of("class")[1:], features.of("class")[1:].copy()), atol=1e-5
    )  # type: ignore[index]
    np.testing.assert_allclose(np.diagonal(found.patches), 1, atol=1e-9)
    np.testing.assert_allclose(found.patches, found.patches.T, atol=1e-12)
    crossed = layer_similarity(model, iter([images[:9], images[9:]]), other)
    assert crossed.patches.shape == (4, 2)
    np.testing.assert_allclose(crossed.patches, linear_cka(features.mean_patch, columns.mean_patch), atol=1e-5)


def test_the_class_token_does_not_vary_before_the_first_block() -> None:
    model = model_of()
    found = layer_similarity(model, images_of(model, 8))
    assert np.isnan(found.class_token[0]).all()  # type: ignore[index]
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["class_token"][0] == [None] * 3
    assert plain["images"] == 8
    mean = model_of(pool="mean")
    assert layer_similarity(mean, images_of(mean, 8)).class_token is None


def test_too_few_images_are_refused() -> None:
    with pytest.raises(DataError, match="at least 4: 3 and 3"):
        linear_cka(drawn(1, 3, 2), drawn(1, 3, 2))
    with pytest.raises(DataError, match="5 and 6"):
        linear_cka(drawn(1, 5, 2), drawn(1, 6, 2))
    with pytest.raises(ConfigError, match="part is 3"):
        linear_cka(drawn(1, 5, 2), drawn(1, 5, 2), part=3)
