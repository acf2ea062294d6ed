"""Scores against scikit-learn, torchmetrics and cases small enough to do by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torchmetrics.functional import classification as tm

from vitreous.errors import DataError, NonFiniteError
from vitreous.evaluate.scoring.metrics import ConfusedPair, evaluate, most_confused, worst_mistakes


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (1597, 10) of a linear classifier that saw 200 real digits, and the labels of the others."""
    images, labels = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=200).fit(images[:200] / 16, labels[:200])
    return torch.from_numpy(model.decision_function(images[200:] / 16)), torch.from_numpy(labels[200:])


@pytest.fixture(scope="module")
def sparse() -> tuple[torch.Tensor, torch.Tensor]:
    """Twelve classes, of which some have no image, some no prediction, and some neither."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 8, (200,), generator=generator)
    logits = torch.randn(200, 12, generator=generator) + 2 * torch.nn.functional.one_hot(labels, 12)
    logits[:, [5, 10, 11]] = -20.0  # not lower: scikit-learn's log_loss clips probabilities at 2e-16
    return logits, labels


@pytest.mark.parametrize("case", ["digits", "sparse"])
def test_agrees_with_scikit_learn(case: str, request: pytest.FixtureRequest) -> None:
    logits, labels = request.getfixturevalue(case)
    scores, k = evaluate(logits, labels), logits.shape[1]
    true, predicted = labels.numpy(), logits.argmax(dim=1).numpy()
    probs = torch.softmax(logits.double(), dim=1).numpy()

    assert scores.n == len(labels)
    assert scores.top1 == sk.accuracy_score(true, predicted)
    assert scores.top5 == pytest.approx(sk.top_k_accuracy_score(true, probs, k=5, labels=range(k)), abs=1e-12)
    assert scores.log_loss == pytest.approx(sk.log_loss(true, probs, labels=range(k)), rel=1e-9)
    np.testing.assert_array_equal(scores.confusion, sk.confusion_matrix(true, predicted, labels=range(k)))
    each = sk.precision_recall_fscore_support(true, predicted, labels=range(k), zero_division=0)
    np.testing.assert_array_equal(np.array(scores.per_class), np.stack(each, axis=1))
    macro = sk.precision_recall_fscore_support(true, predicted, average="macro", zero_division=0)[:3]
    assert (scores.macro_precision, scores.macro_recall, scores.macro_f1) == pytest.approx(macro, abs=1e-12)
    micro = sk.precision_recall_fscore_support(true, predicted, average="micro")[:3]
    assert (scores.precision, scores.recall, scores.f1) == pytest.approx(micro, abs=1e-12)


@pytest.mark.parametrize("case", ["digits", "sparse"])
def test_agrees_with_torchmetrics(case: str, request: pytest.FixtureRequest) -> None:
    logits, labels = request.getfixturevalue(case)
    scores, k = evaluate(logits, labels), logits.shape[1]
    for name, function in (("precision", tm.multiclass_precision), ("recall", tm.multiclass_recall)):
        assert getattr(scores, f"macro_{name}") == pytest.approx(float(function(logits, labels, k, "macro")), abs=1e-6)
        assert getattr(scores, name) == pytest.approx(float(function(logits, labels, k, "micro")), abs=1e-6)
    assert scores.macro_f1 == pytest.approx(float(tm.multiclass_f1_score(logits, labels, k, "macro")), abs=1e-6)
    top5 = tm.multiclass_accuracy(logits, labels, k, "micro", top_k=5)
    assert scores.top5 == pytest.approx(float(top5), abs=1e-6)


def test_classes_that_do_not_occur_do_not_count() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    logits = torch.eye(4)[[0, 0, 1, 2]]  # class 2 is predicted but not held; class 3 is neither
    scores = evaluate(logits, labels)
    assert scores.macro_precision == pytest.approx((1 + 1 + 0) / 3)
    assert scores.macro_recall == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert scores.macro_f1 == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert scores.per_class[3] == (0.0, 0.0, 0.0, 0)


def test_equal_logits_go_to_the_first_class_in_every_score() -> None:
    scores = evaluate(torch.zeros(10, 10), torch.arange(10))
    assert scores.top1 == 0.1
    assert scores.top5 == 0.5
    assert scores.confusion[:, 0].tolist() == [1] * 10
    assert scores.log_loss == pytest.approx(np.log(10), rel=1e-12)


@pytest.mark.parametrize(("k", "has"), [(1, False), (2, False), (5, False), (6, True)])
def test_top5_is_absent_where_it_says_nothing(k: int, has: bool) -> None:
    scores = evaluate(torch.zeros(3, k), torch.zeros(3, dtype=torch.int64))
    assert (scores.top5 is not None) is has
    assert ("top5" in scores.summary()) is has


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_takes_every_floating_type_and_large_logits(dtype: torch.dtype) -> None:
    scores = evaluate(torch.tensor([[30000.0, 0.0], [0.0, 30000.0]], dtype=dtype), torch.tensor([0, 0]))
    assert scores.log_loss == pytest.approx(float(torch.tensor(30000.0, dtype=dtype)) / 2)


def test_to_dict_is_json_with_the_same_numbers(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    scores = evaluate(*digits)
    read = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert read["confusion"] == scores.confusion.tolist()
    assert read["per_class"][7] == scores.per_class[7]._asdict()
    assert {name: read[name] for name in scores.summary()} == scores.summary()


def test_most_confused_orders_by_count_then_share_then_class() -> None:
    confusion = np.array([[5, 2, 0], [2, 1, 1], [1, 0, 9]])
    assert most_confused(confusion, ["a", "b", "c"]) == [
        ConfusedPair("b", "a", 2, 0.5),
        ConfusedPair("a", "b", 2, 2 / 7),
        ConfusedPair("b", "c", 1, 0.25),
        ConfusedPair("c", "a", 1, 0.1),
    ]
    assert len(most_confused(confusion, ["a", "b", "c"], n=1)) == 1
    assert most_confused(np.diag([3, 4]), ["a", "b"]) == []
    with pytest.raises(DataError, match=r"\(3, 3\) does not match 2 class names"):
        most_confused(confusion, ["a", "b"])


def test_worst_mistakes_are_wrong_and_ordered_by_loss(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = digits
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    wrong = {i for i in range(len(labels)) if int(logits[i].argmax()) != int(labels[i])}
    everything = worst_mistakes(logits, labels, n=len(labels))
    assert set(everything) == wrong
    assert everything == sorted(wrong, key=lambda i: -float(losses[i]))
    assert worst_mistakes(logits, labels, n=7) == everything[:7]
    assert worst_mistakes(torch.eye(3), torch.arange(3)) == []


def test_says_what_is_wrong_with_the_input() -> None:
    with pytest.raises(DataError, match=r"logits \(2, 3\) and labels \(3,\) do not match"):
        evaluate(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(DataError, match="nothing to score"):
        evaluate(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(DataError, match="labels range from 0 to 3, but a model of 3 classes has 0 to 2"):
        evaluate(torch.zeros(2, 3), torch.tensor([0, 3]))
    with pytest.raises(NonFiniteError, match="NaN or infinite for 1 of 2 images"):
        evaluate(torch.tensor([[0.0, float("nan")], [0.0, 1.0]]), torch.tensor([0, 1]))
