"""What the page says of a test-time register: planted outliers go, accuracy stays, and a control is left alone."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from planted_outliers import BLOCK, NEURON, planted
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.inspection.norms import token_norms
from vitreous.inspection.registers.effect import register_effect
from vitreous.inspection.registers.test_time import with_test_time_registers
from vitreous.model.vit import VisionTransformer
from vitreous.report.inspection.register import register_figures, register_summary


def test_planted_outliers_move_and_the_page_says_what_changes(
    trained: VisionTransformer, digits: tuple[Tensor, Tensor]
) -> None:
    model, images = planted(trained, digits[0], 400), digits[0][:200]
    effect, changed = register_effect(model, images, (digits[0], digits[1]))
    assert effect.moved
    assert [(each.block, each.neuron) for each in effect.found.neurons] == [(BLOCK, NEURON)]
    expected = with_test_time_registers(model, images)
    with torch.no_grad():
        assert torch.equal(changed(images), expected(images))
        scores = [float((each(digits[0]).argmax(1) == digits[1]).double().mean()) for each in (model, expected)]
    assert effect.accuracy == pytest.approx(scores, abs=1e-12)
    assert effect.scored_images == len(digits[0])
    assert scores[1] >= scores[0] - 0.002
    np.testing.assert_array_equal(effect.after.norms, token_norms(expected, images).norms)
    document = json.loads(json.dumps(effect.to_dict()))
    assert document["outliers_before"] > 100
    assert document["outliers_after"] == 0
    assert max(document["largest_patch_after"]) < max(document["largest_patch_before"]) / 4
    assert document["mean_register_after"][BLOCK] > 200
    (figure,) = register_figures(effect)
    assert f"{effect.found.outliers:,} outliers after block 0 in 200 images, 0 with the register" in figure
    assert f"moved: neuron {NEURON} of block {BLOCK}" in figure
    shown = re.search(r"labelled images: ([\d.]+)% without, ([\d.]+)% with the register", figure)
    assert shown
    assert [float(each) for each in shown.groups()] == pytest.approx([100 * each for each in scores], abs=0.0501)


def test_a_model_without_outliers_is_left_as_it_is(trained: VisionTransformer, digits: tuple[Tensor, Tensor]) -> None:
    effect, changed = register_effect(trained, digits[0][:50], (digits[0][:50], digits[1][:50]))
    assert changed is trained
    assert not effect.moved
    assert effect.accuracy is not None
    assert effect.accuracy[0] == effect.accuracy[1]
    (figure,) = register_figures(effect)
    assert "No patch of 50 images is an outlier: the model needs no register" in figure
    assert "<svg" not in figure
    assert "Top-1" not in register_summary(register_effect(trained, digits[0][:1])[0])


def test_labels_that_do_not_match_are_refused(trained: VisionTransformer, digits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(DataError, match="3 images have 2 labels"):
        register_effect(trained, digits[0][:2], (digits[0][:3], digits[1][:2]))
    with pytest.raises(ConfigError, match="max_neurons is 0"):
        register_effect(trained, digits[0][:2], max_neurons=0)
