"""Wrong labels are found by classifiers that did not see them, and right ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from vitreous.errors import DataError
from vitreous.evaluate.features.confident import FOLDS, _assign_folds, cross_validated, suspects

pytest.importorskip("cleanlab")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, set[int]]:
    """600 handwritten digits, their labels with 30 changed, the true ones, and which were changed."""
    data = load_digits()
    random = np.random.default_rng(0)
    wrong = random.choice(600, 30, replace=False)
    labels = data.target[:600].astype(np.int64)
    changed = labels.copy()
    changed[wrong] = (labels[wrong] + random.integers(1, 10, 30)) % 10
    return data.data[:600], changed, labels, set(wrong.tolist())


def test_changed_labels_are_found_and_ranked_first(digits):
    pixels, labels, truth, wrong = digits
    probabilities, strength = cross_validated(pixels, labels, range(600))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    found = suspects(probabilities, labels)
    hits = [one for one in found if one.position in wrong]
    assert len(hits) >= 23  # of 30
    assert len(found) - len(hits) <= 4  # of 570
    assert {one.position for one in found[:20]} <= wrong
    assert sum(one.likely == truth[one.position] for one in hits) >= 22
    margins = [one.own - one.other for one in found]
    assert margins == sorted(margins)
    assert 0 < strength <= 1


def test_no_image_is_judged_by_a_classifier_fitted_on_it(digits):
    """The same folds fitted by scikit-learn give the same probabilities."""
    pixels, labels, _, _ = digits
    probabilities, strength = cross_validated(pixels, labels, range(600))
    parts = _assign_folds(labels, range(600), 0)
    for part in range(FOLDS):
        held = parts == part
        scale = StandardScaler().fit(pixels[~held])
        model = LogisticRegression(C=strength, max_iter=2000).fit(scale.transform(pixels[~held]), labels[~held])
        expected = model.predict_proba(scale.transform(pixels[held]))
        np.testing.assert_allclose(probabilities[held], expected, atol=0.01)


def test_classes_are_spread_over_the_parts_and_copies_stay_together(digits):
    _, labels, _, _ = digits
    groups = [n - n % 3 if n < 300 else n for n in range(600)]
    parts = _assign_folds(labels, groups, 0)
    assert all(parts[n] == parts[group] for n, group in enumerate(groups))
    whole = _assign_folds(labels, range(600), 0)
    for label in range(10):
        counts = np.bincount(whole[labels == label], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    assert (_assign_folds(labels, range(600), 0) == whole).all()


def test_a_copy_with_another_label_does_not_hide_the_error(digits):
    pixels, labels, _, wrong = digits
    # Each wrong one has two copies with the same wrong label: seen, they would vouch for it.
    copies = sorted(wrong)[:10] * 2
    rows, marks = np.concatenate([pixels, pixels[copies]]), np.concatenate([labels, labels[copies]])
    groups = [*range(600), *copies]
    found = {one.position for one in suspects(cross_validated(rows, marks, groups)[0], marks)}
    assert len(found & set(copies)) >= 8


def test_one_class_cannot_be_judged(digits):
    with pytest.raises(DataError, match="at least two classes"):
        cross_validated(digits[0], np.zeros(600, np.int64), range(600))
