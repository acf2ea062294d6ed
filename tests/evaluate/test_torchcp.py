"""Conformal sets against TorchCP.

TorchCP is not among the development dependencies, because torchsort, which it requires, has no wheels. Its scores and
predictors do not use torchsort: install it with `pip install --no-deps torchcp`.
"""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch

from vitreous.evaluate.trust.conformal import ConformalSets, fit_lac, fit_raps

K = 8


@pytest.fixture
def torchcp(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """TorchCP's classification, imported without its parts for graphs and language models and their dependencies."""
    for name in ("torchsort", "torchcp.graph", "torchcp.llm"):
        empty = types.ModuleType(name)
        vars(empty).update(soft_rank=None, soft_sort=None)  # names that a loss imports
        monkeypatch.setitem(sys.modules, name, empty)
    reason = "TorchCP cannot be imported: pip install --no-deps torchcp"
    predictor = pytest.importorskip("torchcp.classification.predictor", reason=reason, exc_type=ImportError)
    score = pytest.importorskip("torchcp.classification.score", reason=reason, exc_type=ImportError)
    return types.SimpleNamespace(predictor=predictor, score=score)


def predictions(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (n, K) in float64, and labels of classes of different difficulty."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, K, (n,), generator=generator)
    strength = torch.linspace(1, 3, K, dtype=torch.float64)[labels][:, None]
    noise = torch.randn(n, K, generator=generator, dtype=torch.float64)
    return noise + strength * torch.nn.functional.one_hot(labels, K), labels


@pytest.mark.filterwarnings("ignore:The 'temperature' parameter is deprecated:DeprecationWarning")
@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("method", ["lac", "lac by class", "raps"])
def test_thresholds_and_sets_agree_with_torchcp(torchcp, method: str, coverage: float) -> None:
    logits, labels = predictions(3000)
    known, new = (logits[:1501], labels[:1501]), logits[1501:]
    probs = torch.softmax(known[0], dim=1)
    rule: ConformalSets
    if method == "raps":
        rule = fit_raps(probs, known[1], coverage, penalty=0.05, free_ranks=2)
        score = torchcp.score.RAPS(randomized=False, penalty=0.05, kreg=2)
    else:
        rule = fit_lac(probs, known[1], coverage, class_conditional=method == "lac by class", fewest=1)
        score = torchcp.score.LAC()
    by_class = method == "lac by class"
    kind = torchcp.predictor.ClassConditionalPredictor if by_class else torchcp.predictor.SplitPredictor
    theirs = kind(score, device=torch.device("cpu"))
    theirs.calculate_threshold(*known, alpha=1 - coverage)
    # TorchCP keeps the thresholds of classes in float32.
    np.testing.assert_allclose(rule.thresholds, np.atleast_1d(theirs.q_hat.numpy()), atol=1e-6 if by_class else 1e-12)
    assert len(set(rule.thresholds)) == (K if by_class else 1)
    sets = theirs.predict_with_logits(new)
    np.testing.assert_array_equal(rule.sets(torch.softmax(new, dim=1)), np.asarray(sets).astype(bool))
