"""Equal-mass and class-wise calibration error against TorchUncertainty, torchmetrics, loops and cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from vitreous.errors import DataError
from vitreous.evaluate.trust.calibration import (
    adaptive_calibration_error,
    calibration_errors,
    class_wise_calibration_error,
    expected_calibration_error,
    fit_temperature,
)


def predictions(n: int = 997, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return 3 * (logits + 1.5 * torch.nn.functional.one_hot(labels, classes)), labels


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_equal_mass_agrees_with_torch_uncertainty_and_a_loop(bins: int) -> None:
    logits, labels = predictions()
    probs = torch.softmax(logits, dim=1)
    ours = adaptive_calibration_error(probs, labels, bins)
    confidence, correct = probs.amax(dim=1).numpy(), (probs.argmax(dim=1) == labels).numpy()
    order = np.argsort(confidence)
    parts = np.array_split(order, bins)
    by_hand = sum(len(part) / 997 * abs(correct[part].mean() - confidence[part].mean()) for part in parts)
    assert ours == pytest.approx(by_hand, abs=1e-12)
    tu = pytest.importorskip("torch_uncertainty.metrics", exc_type=ImportError)
    metric = tu.AdaptiveCalibrationError(task="multiclass", num_classes=5, num_bins=bins, norm="l1")
    metric.update(probs, labels)
    assert ours == pytest.approx(float(metric.compute()), abs=1e-6)


@pytest.mark.parametrize("bins", [1, 15])
def test_class_wise_agrees_with_torchmetrics(bins: int) -> None:
    logits, labels = predictions()
    probs = torch.softmax(logits, dim=1)
    each = [
        binary_calibration_error(probs[:, k].contiguous(), (labels == k).long(), n_bins=bins, norm="l1")
        for k in range(5)
    ]
    assert class_wise_calibration_error(probs, labels, bins) == pytest.approx(float(sum(each)) / 5, abs=1e-6)


def test_equal_confidences_do_not_depend_on_the_order() -> None:
    probs = torch.tensor([[0.75, 0.25]], dtype=torch.float64).repeat(8, 1)
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    for order in (torch.arange(8), torch.arange(7, -1, -1)):
        assert adaptive_calibration_error(probs, labels[order], 4) == pytest.approx(0, abs=1e-12)


def test_a_temperature_lowers_all_three() -> None:
    logits, labels = predictions()
    before, after = (
        calibration_errors(logits, labels),
        calibration_errors(logits, labels, fit_temperature(logits, labels)),
    )
    assert after.equal_width < before.equal_width / 2
    assert after.equal_mass < before.equal_mass / 2
    assert after.class_wise < before.class_wise
    assert before.equal_width == expected_calibration_error(torch.softmax(logits, dim=1), labels)
    assert set(before.to_dict()) == {"equal_width", "equal_mass", "class_wise"}


def test_bad_arguments_are_refused() -> None:
    logits, labels = predictions(10)
    for measure in (adaptive_calibration_error, class_wise_calibration_error):
        with pytest.raises(DataError, match="bins is 0"):
            measure(torch.softmax(logits, dim=1), labels, 0)
    with pytest.raises(DataError, match="temperature is 0"):
        calibration_errors(logits, labels, 0)
