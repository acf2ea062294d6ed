"""Probes against loops, scikit-learn and closed forms, on real digits as features."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from vitreous.errors import ConfigError, DataError, NonFiniteError
from vitreous.evaluate.features.fewshot import LeastSquares, probe_few_shot
from vitreous.evaluate.features.labelled import Labelled, labelled
from vitreous.evaluate.features.logistic import STRENGTHS, fit_path, probe_linear
from vitreous.evaluate.features.probes import probe_knn, probe_report


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small matrices: threads would cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits() -> dict[str, Labelled]:
    """Pixels of 1,797 real digits as features (n, 64), in three splits."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    parts = {"train": order[:1000], "val": order[1000:1400], "test": order[1400:]}
    return {name: labelled(x[rows], y[rows], name) for name, rows in parts.items()}


def arrays(data: dict[str, Labelled], *names: str) -> list[np.ndarray]:
    return [array for name in names for array in data[name]]


def vote(train: Labelled, query: np.ndarray, k: int, temperature: float) -> int:
    """Classify one image by DINO's rule, written out."""
    similarities = [
        float(np.dot(row, query) / np.linalg.norm(row) / np.linalg.norm(query)) for row in train.features.astype(float)
    ]
    votes: Counter[int] = Counter()
    for index in np.argsort(similarities)[::-1][:k]:
        votes[int(train.labels[index])] += math.exp(similarities[index] / temperature)
    return max(sorted(votes), key=lambda label: votes[label])


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_neighbours_vote_as_a_loop_does(digits, temperature):
    queries = digits["val"].subset(np.arange(60))
    for k in (1, 20, 200):
        called = [vote(digits["train"], query.astype(float), k, temperature) for query in queries.features]
        (score,) = probe_knn(digits["train"], {"val": queries}, 10, neighbours=[k], temperature=temperature)
        assert (score.k, score.accuracy["val"]) == (k, np.mean(called == queries.labels))


@pytest.mark.parametrize("k", [1, 10, 100])
def test_equal_votes_are_scikit_learns(digits, k):
    reference = KNeighborsClassifier(k, metric="cosine").fit(*digits["train"])
    (score,) = probe_knn(digits["train"], {"val": digits["val"]}, 10, neighbours=[k], temperature=math.inf)
    assert score.accuracy["val"] == reference.score(*digits["val"])


def test_neighbours_in_chunks_are_the_same(digits, monkeypatch):
    scored = {"val": digits["val"], "test": digits["test"]}
    whole = probe_knn(digits["train"], scored, 10)
    monkeypatch.setattr("vitreous.evaluate.features.probes._MAX_SIMILARITIES", 7 * len(digits["train"].labels))
    assert probe_knn(digits["train"], scored, 10) == whole
    assert [score.k for score in whole] == [10, 20, 100, 200]


def test_a_low_temperature_is_the_nearest_neighbour(digits):
    nearest, cold = (
        probe_knn(digits["train"], {"val": digits["val"]}, 10, neighbours=[k], temperature=t)[0].accuracy
        for k, t in ((1, 1.0), (200, 1e-6))
    )
    assert nearest == cold


@pytest.mark.parametrize(("strength", "weighted"), [(1e-4, False), (1e-2, False), (1.0, False), (1e-2, True)])
def test_the_linear_probe_is_scikit_learns_optimum(digits, strength, weighted):
    scaler = StandardScaler().fit(digits["train"].features)
    z, y = scaler.transform(digits["train"].features), digits["train"].labels
    weight = np.where(np.arange(10) < 3, 3.0, 0.5).astype(np.float32) if weighted else None
    each = np.ones(len(y)) if weight is None else weight[y]
    reference = LogisticRegression(C=strength, tol=1e-8, max_iter=5000).fit(z, y, each)
    model = list(fit_path(digits["train"], 10, [strength / 10, strength], class_weight=weight))[-1]

    def objective(logits: np.ndarray, weight: np.ndarray) -> float:
        """Scikit-learn's: the sum of losses, and the penalty on the weights of standardised features."""
        log_sums = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
        return (each * (log_sums - logits[np.arange(len(y)), y])).sum() + (weight**2).sum() / (2 * strength)

    ours = model.logits(digits["train"].features)
    best = objective(reference.decision_function(z), reference.coef_)
    assert objective(ours, model.weight * scaler.scale_) == pytest.approx(best, rel=1e-4)
    odds = np.exp(ours - ours.max(1, keepdims=True))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), reference.predict_proba(z), atol=0.01)
    assert model.converged
    assert model.strength == strength


def test_with_a_test_split_val_chooses_as_a_sweep_by_hand(digits):
    scored = {"val": digits["val"], "test": digits["test"]}
    probe = probe_linear(digits["train"], scored, 10)
    scaler = StandardScaler().fit(digits["train"].features)
    z = {name: scaler.transform(data.features) for name, data in digits.items()}
    on_test = {}
    for point in probe.sweep[:7]:
        reference = LogisticRegression(C=point.strength, max_iter=2000).fit(z["train"], digits["train"].labels)
        on_val = reference.score(z["val"], digits["val"].labels)
        assert point.accuracy == pytest.approx(on_val, abs=0.011)  # 4 of 400 near a boundary
        on_test[point.strength] = reference.score(z["test"], digits["test"].labels)
    assert probe.chosen_on == "val"
    assert all(point.val == point.accuracy for point in probe.sweep)
    best = max(point.accuracy for point in probe.sweep)
    assert probe.strength == next(point.strength for point in probe.sweep if point.accuracy == best)
    assert probe.accuracy["val"] == best
    assert probe.accuracy["test"] == pytest.approx(on_test[probe.strength], abs=0.011)
    assert [point.strength for point in probe.sweep] == list(STRENGTHS[: len(probe.sweep)])


def test_val_can_be_asked_to_choose_without_a_test_split(digits):
    asked = probe_linear(digits["train"], {"val": digits["val"]}, 10, on_val=True)
    beside = probe_linear(digits["train"], {"val": digits["val"], "test": digits["test"]}, 10)
    assert (asked.chosen_on, asked.strength, asked.sweep) == ("val", beside.strength, beside.sweep)
    assert asked.accuracy["val"] == max(point.val for point in asked.sweep)


def test_without_a_test_split_val_has_no_say(digits):
    shuffled = Labelled(digits["val"].features, np.random.default_rng(0).permutation(digits["val"].labels))
    honest, blind = (probe_linear(digits["train"], {"val": val}, 10) for val in (digits["val"], shuffled))
    assert honest.chosen_on == "a fifth of train"
    assert honest.strength == blind.strength
    np.testing.assert_array_equal(honest.model.weight, blind.model.weight)
    assert [point.accuracy for point in honest.sweep] == [point.accuracy for point in blind.sweep]
    assert honest.accuracy["val"] > 0.9
    assert blind.accuracy["val"] < 0.3
    refit = next(fit_path(digits["train"], 10, [honest.strength]))  # on all of train, not on four fifths
    np.testing.assert_array_equal(refit.weight, honest.model.weight)


def test_the_linear_probe_does_not_mind_scale_constants_or_absent_classes(digits):
    plain = next(fit_path(digits["train"], 10, [0.01])).logits(digits["val"].features)
    grown = labelled(digits["train"].features * 1000 + 5e4, digits["train"].labels, "train")
    model = next(fit_path(grown, 12, [0.01]))
    logits = model.logits(digits["val"].features * 1000 + 5e4)
    np.testing.assert_allclose(logits[:, :10], plain, atol=0.02)
    assert (logits[:, 10:] == -np.inf).all()
    assert (model.weight[:, 0] == 0).all()  # the corner pixel is 0 in every digit


def ridge(data: Labelled, l2: float, whiten: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Weight and bias by numpy's least squares on a system with l2 as further rows; and mean and deviation used."""
    x = data.features.astype(np.float64)
    mean, std = (x.mean(0), x.std(0) + 1e-5) if whiten else (np.zeros(64), np.ones(64))
    x = np.c_[(x - mean) / std, np.full(len(x), 100.0)]
    targets = np.where(data.labels[:, None] == np.arange(10), 1.0, -1.0)
    rows, right = np.r_[x, math.sqrt(l2) * np.eye(65)], np.r_[targets, np.zeros((65, 10))]
    solution = np.linalg.lstsq(rows, right, rcond=None)[0]
    return solution[:-1], 100 * solution[-1], mean, std


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("n", [10, 40, 300])  # fewer and more images than features
@pytest.mark.parametrize("l2", [1.0, 2.0**10])
def test_least_squares_are_numpys(digits, n, whiten, l2):
    shots = digits["train"].subset(np.arange(n))
    solver = LeastSquares(shots, 10, whiten)
    weight, bias, mean, std = ridge(shots, l2, whiten)
    found = solver.weights(l2)
    np.testing.assert_allclose(found[:-1], weight, atol=1e-8)
    np.testing.assert_allclose(100 * found[-1], bias, atol=1e-7)
    expected = ((digits["val"].features - mean) / std @ weight + bias).argmax(1)
    np.testing.assert_array_equal(solver.predict(digits["val"].features, [7.0, l2])[1], expected)


def test_least_squares_are_scikit_learns_ridge_on_the_extended_features(digits):
    x = np.c_[digits["train"].features, np.full(1000, 100.0)]
    targets = 2.0 * np.eye(10)[digits["train"].labels] - 1
    reference = Ridge(alpha=3.0, fit_intercept=False, solver="cholesky").fit(x, targets)
    np.testing.assert_allclose(LeastSquares(digits["train"], 10).weights(3.0).T, reference.coef_, atol=1e-8)


def test_few_shots_draw_solve_and_spread_as_by_hand(digits):
    results = probe_few_shot(digits["train"], {"val": digits["val"]}, 10, shots=[5, 1], seeds=3, l2=16.0)
    assert [(each.shots, each.l2, each.chosen_on, each.short) for each in results] == [
        (1, 16.0, "given", 0),
        (5, 16.0, "given", 0),
    ]
    for each in results:
        expected = []
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(1000)
            taken = np.concatenate([order[digits["train"].labels[order] == label][: each.shots] for label in range(10)])
            weight, bias, *_ = ridge(digits["train"].subset(taken), 16.0, whiten=False)
            expected.append(np.mean((digits["val"].features @ weight + bias).argmax(1) == digits["val"].labels))
        assert each.accuracy["val"] == pytest.approx(tuple(expected))
        assert each.mean("val") == pytest.approx(np.mean(expected))
        assert each.spread("val") == pytest.approx(np.std(expected, ddof=1))
    assert results[1].mean("val") > results[0].mean("val") + 0.05
    assert probe_few_shot(digits["train"], {"val": digits["val"]}, 10, shots=[1], seeds=1)[0].spread("val") is None


def test_l2_is_chosen_by_train_images_that_are_no_shots(digits):
    shuffled = Labelled(digits["val"].features, digits["val"].labels[::-1])
    honest, blind = (
        probe_few_shot(digits["train"], {"val": val}, 10, shots=[5], seeds=2)[0] for val in (digits["val"], shuffled)
    )
    assert honest.chosen_on == "the rest of train"
    assert honest.l2 == blind.l2
    fixed = [
        probe_few_shot(digits["train"], {"val": digits["val"]}, 10, shots=[5], seeds=2, l2=2.0**power)[0].mean("val")
        for power in range(-10, 21, 2)
    ]
    assert honest.mean("val") >= max(fixed) - 0.03


def test_a_class_with_fewer_images_than_shots_uses_all_it_has(digits):
    few = digits["train"].labels == 3
    rows = np.r_[np.flatnonzero(~few), np.flatnonzero(few)[:2]]
    train = digits["train"].subset(rows)
    report = probe_report(*train, *digits["val"], shots=[1, 5], seeds=2)
    assert [each.short for each in report.few_shot] == [0, 1]
    assert "5 shots: classes with fewer train images use all they have: 1 of 10" in report.notes
    tiny = digits["train"].subset(np.concatenate([np.flatnonzero(digits["train"].labels == n)[:1] for n in range(10)]))
    report = probe_report(*tiny, *digits["val"], shots=[5], seeds=2)
    assert report.few_shot[0].chosen_on == report.linear.chosen_on == "nothing"
    assert [score.k for score in report.knn] == [10]
    assert report.notes == (
        "train has 10 images: a larger k is reduced to that",
        "no class has a second train image to choose C: the default C of 0.01 is used",
        "5 shots: classes with fewer train images use all they have: 10 of 10",
        "5 shots are all of train, which leaves none to choose l2: it is 1024",
    )


def test_the_report_is_complete_repeatable_and_json(digits):
    steps: list[tuple[int, int]] = []
    more = {"shots": [1, 5], "seeds": 2}
    first, second = (
        probe_report(
            *arrays(digits, "train", "val"),
            test=digits["test"],
            progress=lambda *at: steps.append(at),
            **more,
        )
        for _ in range(2)
    )
    document = json.loads(json.dumps(first.to_dict(), allow_nan=False))
    assert document == json.loads(json.dumps(second.to_dict()))
    assert document["pictures"] == {"train": 1000, "val": 400, "test": 397}
    assert (document["classes"], document["features"], document["judged_on"]) == (10, 64, "test")
    assert first.best_knn.accuracy["val"] == max(score.accuracy["val"] for score in first.knn)
    assert first.best_knn.accuracy["test"] > 0.95
    assert set(document["few_shot"]["scores"][0]["mean"]) == {"val", "test"}
    assert steps[-1] == (12, 12)
    assert steps == sorted(steps[: len(steps) // 2]) * 2


def test_a_scored_class_that_train_lacks_counts_as_wrong(digits):
    train = digits["train"].subset(np.flatnonzero(digits["train"].labels != 9))
    report = probe_report(*train, *digits["val"], shots=[5], seeds=1)
    nines = int((digits["val"].labels == 9).sum())
    assert f"{nines:,} val images are of classes without a train image: they count as wrong" in report.notes
    assert report.linear.accuracy["val"] <= 1 - nines / 400
    assert report.best_knn.accuracy["val"] <= 1 - nines / 400


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"train_features": np.full((3, 2), np.nan)}, NonFiniteError, "train features of 3 of 3 images are NaN"),
        ({"val_features": [[1.0, 1e300]]}, NonFiniteError, "val features of 1 of 1 images are NaN or infinite"),
        ({"val_features": [[1.0]]}, DataError, "different numbers of features, {'train': 2, 'val': 1}"),
        ({"val_labels": [0, 1]}, DataError, r"val features \(1, 2\) and labels \(2,\) do not match"),
        ({"train_labels": [0, 0, 0]}, DataError, "at least two classes"),
        ({"train_labels": [0, -1, 0]}, DataError, "train labels must be class indices: integers of at least 0"),
        ({"train_labels": [0.0, 1.0, 0.0]}, DataError, "train labels must be class indices: integers of at least 0"),
        ({"val_features": np.zeros((0, 2)), "val_labels": []}, DataError, "val features are empty"),
        ({"test": ([[1.0, 2.0]], [])}, DataError, r"test features \(1, 2\) and labels \(0,\) do not match"),
        ({"neighbours": [0]}, ConfigError, "k is 0: it must be an integer of at least 1"),
        ({"temperature": 0.0}, ConfigError, "temperature is 0.0, it must be a number above 0"),
        ({"strengths": [0.0, 1.0]}, ConfigError, "C is 0.0, 1.0: all values must be above 0"),
        ({"shots": [0]}, ConfigError, "shots are 0 and seeds 5: each must be at least 1"),
        ({"seeds": 0}, ConfigError, "seeds 0: each must be at least 1"),
        ({"l2": -1.0}, ConfigError, "l2 is -1.0, it must be a number above 0"),
    ],
)
def test_what_cannot_be_is_said(change, error, message):
    given = {
        "train_features": [[0.0, 1.0], [1.0, 0.0], [0.5, 1.0]],
        "train_labels": [0, 1, 0],
        "val_features": [[0.0, 1.0]],
        "val_labels": [0],
    }
    with pytest.raises(error, match=message):
        probe_report(**(given | change))
