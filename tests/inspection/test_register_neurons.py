"""Register neurons that were planted are found, and the norm of outliers is split exactly."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from measured_models import images_of, model_of
from planted_outliers import BLOCK, NEURON, outlying_patch, planted
from torch import Tensor

from vit_reference import Seen, activate, layer_norm, linear, reference
from vitreous.accelerate.model import accelerate
from vitreous.errors import ConfigError
from vitreous.inspection.norms import token_norms
from vitreous.inspection.registers.neurons import mlp_activations, register_neurons
from vitreous.model.vit import VisionTransformer


@pytest.mark.parametrize("fast", [False, True])
def test_activations_are_those_of_the_reference(fast: bool) -> None:
    model = model_of(fast, block={"layer_scale": 0.3}, registers=1)
    images, w = images_of(model, 2), {n: t.detach() for n, t in model.state_dict().items()}
    seen: Seen = {}
    reference(images, w, model.config, seen=seen)
    with torch.no_grad():
        values = model.intermediates(images)
        for i, layer in enumerate(values.layers):
            heads = torch.cat(seen["mixed"][i * 3 : i * 3 + 3], -1)
            z = seen["before"][i] + linear(heads, w, f"blocks.{i}.attn.proj") * w[f"blocks.{i}.ls1.gamma"]
            x = layer_norm(z, w, f"blocks.{i}.norm2", model.config.norm_eps)
            expected = activate(linear(x, w, f"blocks.{i}.mlp.fc1"), "gelu")
            torch.testing.assert_close(mlp_activations(model.blocks[i], layer), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("norm", [120, 1000])
@pytest.mark.parametrize("fast", [False, True])
def test_a_planted_neuron_is_found_and_no_other(
    trained: VisionTransformer, digits: tuple[Tensor, Tensor], norm: float, fast: bool
) -> None:
    images = digits[0][:200]
    assert register_neurons(trained, images).to_dict() == {"neurons": [], "block": None, "outliers": 0}
    model = planted(trained, digits[0], norm)
    model = accelerate(model) if fast else model
    outliers = token_norms(model, images).outliers()
    assert outliers.mask[BLOCK, :, outlying_patch(trained, digits[0])].mean() > 0.8
    found = register_neurons(model, images)
    assert [(each.block, each.neuron) for each in found.neurons] == [(BLOCK, NEURON)]
    assert found.block == BLOCK
    assert found.outliers == outliers.mask[BLOCK].sum()
    (neuron,) = found.neurons
    assert neuron.share == pytest.approx(1, abs=0.1)  # others may write against it
    assert neuron.on_outliers > 5 > 0.5 > abs(neuron.elsewhere)
    again = register_neurons(model, images, batch_size=7)
    assert again.neurons[0].share == pytest.approx(neuron.share, rel=1e-6)
    assert again.outliers == found.outliers
    assert json.loads(json.dumps(found.to_dict()))["neurons"][0]["neuron"] == NEURON


def test_shares_are_those_of_written_out_sums(trained: VisionTransformer, digits: tuple[Tensor, Tensor]) -> None:
    images = digits[0][:20]
    model = planted(trained, digits[0], 100).double()
    P, found = model.config.prefix_tokens, register_neurons(model, images, batch_size=6, min_share=1e-9)
    mask = token_norms(model, images).outliers().mask[BLOCK]
    with torch.no_grad():
        layer = model.intermediates(images.double(), [BLOCK]).layers[0]
        hidden = mlp_activations(model.blocks[BLOCK], layer)[:, P:].numpy()
        columns, after = model.blocks[BLOCK].mlp.fc2.weight.numpy(), layer.after[:, P:].numpy()
    for each in found.neurons:
        elsewhere = np.mean([hidden[i, j, each.neuron] for i, j in np.argwhere(~mask)])
        shares = []
        for i, j in np.argwhere(mask):
            length = math.sqrt(sum(after[i, j] ** 2))
            along = sum(columns[:, each.neuron] * after[i, j]) / length / length
            shares.append((hidden[i, j, each.neuron] - elsewhere) * along)
        assert each.share == pytest.approx(np.mean(shares), abs=1e-10)
        assert each.elsewhere == pytest.approx(elsewhere, abs=1e-10)


def test_limits_out_of_range_are_refused(trained: VisionTransformer, digits: tuple[Tensor, Tensor]) -> None:
    for wrong in ({"max_neurons": 0}, {"min_share": 0.0}, {"min_share": 1.0}):
        with pytest.raises(ConfigError, match="max_neurons"):
            register_neurons(trained, digits[0][:2], **wrong)
