"""Which images are proposed: against direct definitions, and on planted clusters, outliers and confusions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.cluster import KMeans

from vitreous.evaluate.features import selection
from vitreous.evaluate.features.selection import (
    by_coverage,
    by_margin,
    by_thresholds,
    by_typicality,
    k_means,
    typicality,
)


def blobs(sizes, spread=0.05, seed=0):
    """Clusters around the axes of a space: features and the cluster of each."""
    draws = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return (np.eye(len(sizes))[labels] + spread * draws.standard_normal((len(labels), len(sizes)))).astype("f4"), labels


NONE = np.zeros((0, 4), np.float32)


def test_k_means_finds_planted_clusters_and_is_as_tight_as_scikit_learns():
    x, labels = blobs([30, 20, 50, 40])
    found = k_means(x, 4)
    assert len({(int(a), int(b)) for a, b in zip(found, labels, strict=True)}) == 4
    hard = np.random.default_rng(1).standard_normal((400, 6)).astype("f4")
    ours = k_means(hard, 8)
    spread = sum(((hard[ours == c] - hard[ours == c].mean(0)) ** 2).sum() for c in range(8))
    assert spread < 1.05 * KMeans(8, n_init=1, random_state=0).fit(hard).inertia_
    assert np.array_equal(ours, k_means(hard, 8))


def test_copies_make_no_more_clusters_than_distinct_rows():
    assert set(k_means(np.ones((7, 3), np.float32), 3)) == {0}
    assert len(by_typicality(np.ones((7, 4), np.float32), NONE, 7)) == 7
    assert sorted(n for n, _ in by_coverage(np.ones((5, 4), np.float32), NONE, 5)) == list(range(5))


def test_typicality_is_the_inverse_mean_distance_to_neighbours():
    x = np.random.default_rng(0).standard_normal((50, 5)).astype("f4")
    distances = np.sort(np.linalg.norm(x[:, None].astype("f8") - x[None], axis=2), axis=1)[:, 1:]
    np.testing.assert_allclose(typicality(x), 1 / (distances[:, :20].mean(1)), rtol=1e-4)
    few = np.sort(np.linalg.norm(x[:6, None].astype("f8") - x[None, :6], axis=2), axis=1)[:, 1:]
    np.testing.assert_allclose(typicality(x[:6]), 1 / (few[:, :3].mean(1)), rtol=1e-4)
    assert typicality(x[:1]).tolist() == [0.0]
    copies = np.repeat(x[:1] / np.linalg.norm(x[:1]), 4, axis=0)
    assert typicality(copies).tolist() == pytest.approx([1000.0] * 4)


def test_typical_images_are_of_uncovered_large_clusters_first_and_not_at_their_edge():
    x, labels = blobs([30, 60, 40, 50])
    assert [labels[n] for n, _ in by_typicality(x, NONE, 4)] == [1, 3, 2, 0]
    known = blobs([0, 1, 0, 0])[0]
    found = by_typicality(x, known, 3)  # four clusters again
    assert [labels[n] for n, _ in found] == [3, 2, 0]
    for n, score in found:
        inside = typicality(x[labels == labels[n]])
        assert score > np.median(inside)
    many = [n for n, _ in by_typicality(x, NONE, 180)]
    assert sorted(many) == list(range(180))


def test_small_clusters_come_last():
    x, labels = blobs([30, 4, 30, 30])
    assert 1 not in [labels[n] for n, _ in by_typicality(x, NONE, 4)]


def test_coverage_takes_the_farthest_image_in_turn():
    draws = np.random.default_rng(2)
    x, known = draws.standard_normal((40, 4)).astype("f4"), draws.standard_normal((5, 4)).astype("f4")
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, known)]
    centres, expected = list(unit[1]), []
    for _ in range(6):
        nearest = np.linalg.norm(unit[0][:, None] - np.array(centres)[None], axis=2).min(1)
        expected.append((int(nearest.argmax()), float(nearest.max())))
        centres.append(unit[0][nearest.argmax()])
    found = by_coverage(x, known, 6)
    assert [n for n, _ in found] == [n for n, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-3)
    first, second = by_coverage(x, NONE, 2)
    assert math.isnan(first[1])
    assert second[1] == pytest.approx(float(np.linalg.norm(unit[0] - unit[0][first[0]], axis=1).max()), abs=1e-3)


def test_coverage_of_many_images_computes_few_distances_at_once(monkeypatch):
    draws = np.random.default_rng(3)
    x, known = draws.standard_normal((50, 4)).astype("f4"), draws.standard_normal((30, 4)).astype("f4")
    expected, sizes, squared = by_coverage(x, known, 6), [], selection._squared

    def counted(a, b):
        sizes.append(len(a) * len(b))
        return squared(a, b)

    monkeypatch.setattr(selection, "_squared", counted)
    monkeypatch.setattr(selection, "_ROWS", 8)
    found = by_coverage(x, known, 6)
    assert max(sizes) <= 8 * 8
    assert [n for n, _ in found] == [n for n, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-3)


def test_small_margins_are_taken_from_every_confusion():
    first = np.tile([0.5, 0.49, 0.01], (40, 1))  # many images of one confusion
    second = np.tile([0.02, 0.5, 0.48], (10, 1))  # few of another, a little less close
    sure = np.tile([0.98, 0.01, 0.01], (50, 1))
    found = by_margin(np.concatenate((first, second, sure)).astype("f4"), 10)
    numbers = [n for n, _ in found]
    assert [n < 40 for n in numbers] == [True] * 5 + [False] * 5
    assert max(numbers) < 50
    assert [score for _, score in found] == sorted(score for _, score in found)
    assert found[0][1] == pytest.approx(0.01, abs=1e-6)
    assert len(set(numbers)) == 10


def test_of_several_labels_the_one_nearest_its_threshold_is_the_margin():
    thresholds = np.float32([0.5, 0.2, 0.9])
    first = np.tile([0.01, 0.21, 0.1], (40, 1))  # the second label is nearly decided the other way
    second = np.tile([0.47, 0.9, 0.1], (10, 1))
    sure = np.tile([0.99, 0.9, 0.01], (50, 1))
    found = by_thresholds(np.concatenate((first, second, sure)).astype("f4"), thresholds, 10)
    assert [n < 40 for n, _ in found] == [True] * 5 + [False] * 5
    assert max(n for n, _ in found) < 50
    assert [found[0][1], found[-1][1]] == pytest.approx([0.01 / 0.8, 0.03 / 0.5], abs=1e-6)


def test_a_rare_label_with_a_low_threshold_is_not_uncertain_everywhere():
    usual = np.tile([0.9, 0.01], (50, 1))  # far from the low threshold, as shares of it
    unsure = np.asarray([[0.49, 0.001]])
    found = by_thresholds(np.concatenate((usual, unsure)).astype("f4"), np.float32([0.5, 0.015]), 1)
    assert found == [(50, pytest.approx(0.02, abs=1e-6))]
