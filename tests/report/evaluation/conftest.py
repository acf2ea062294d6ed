"""Predictions of a real classifier on the digits, and the report's figures of them."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from vitreous.report.evaluation.results import EvaluationInput, EvaluationResult, measure

TEMPERATURE = 1.3


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    """The last 897 digits: uint8 (N, 8, 8)."""
    return (load_digits().images[900:] * 15).astype(np.uint8)


@pytest.fixture(scope="session")
def given() -> EvaluationInput:
    """What a logistic regression on 900 digits predicts for the others."""
    data = load_digits()
    logits = [
        torch.from_numpy(
            LogisticRegression(C=c, max_iter=5000)
            .fit(data.data[:900] / 16, data.target[:900])
            .decision_function(data.data[900:] / 16)
        )
        for c in (0.1, 0.001)
    ]
    n = len(logits[0])
    return EvaluationInput(
        model="runs/<b>one</b>",
        data="digits",
        split="test split",
        classes=[f"digit {k}" for k in range(9)] + ["<script>alert(9)</script>"],
        names=[f"folder/{k}.png" for k in range(n - 1)] + ["http://example.org/</script><img src=x>"],
        logits=logits[0],
        labels=torch.from_numpy(data.target[900:]).long(),
        temperature=TEMPERATURE,
        columns={"camera": ["left" if k % 3 else None for k in range(n)]},
        other=("runs/other", logits[1]),
    )


@pytest.fixture(scope="session")
def result(given: EvaluationInput) -> EvaluationResult:
    """All figures of the report."""
    return measure(given)
