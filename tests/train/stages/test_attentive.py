"""The attentive probe: it is the model's own pool, computed without keys and values, and starts as a linear head."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from vitreous.accelerate.model import build
from vitreous.model.config import ViTConfig
from vitreous.train.finetune.stages.attentive import AttentiveProbe, attentive_config, fit_attentive, patch_means

SMALL = ViTConfig(image_size=16, patch_size=4, num_classes=3, width=16, depth=1, heads=4, mlp_dim=24, registers=2)


def model_of(probe, source):
    """Build the model that a probe becomes, with random weights below the pool."""
    model = build(attentive_config(source))
    weights = model.state_dict() | probe.tensors()
    model.load_state_dict(weights)
    return model.eval()


@pytest.mark.parametrize("source", [SMALL, dataclasses.replace(SMALL, pool="mean", final_norm="pooled", norm="rms")])
def test_the_probe_on_tokens_is_the_model_on_images(source):
    torch.manual_seed(0)
    probe = AttentiveProbe(source)
    for parameter in probe.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    model, images = model_of(probe, source), torch.randn(5, 3, 16, 16)
    source_model = build(source)
    source_model.load_state_dict({**source_model.state_dict(), **_shared(model, source_model)})
    tokens = source_model.eval()(images, "tokens")
    with torch.no_grad():
        torch.testing.assert_close(probe(tokens), model(images), rtol=1e-4, atol=1e-4)


def _shared(model, other):
    names = other.state_dict().keys() - {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    found = {name: value for name, value in model.state_dict().items() if name in names}
    if "norm.weight" in other.state_dict():
        found |= {name: value for name, value in model.state_dict().items() if name.startswith("norm.")}
    return found


def test_it_starts_as_the_linear_head_on_the_mean_of_the_patches():
    torch.manual_seed(1)
    probe, tokens = AttentiveProbe(SMALL), torch.randn(6, 19, 16)
    weight, bias = torch.randn(3, 16), torch.randn(3)
    probe.initialise(weight, bias, seed=0)
    with torch.no_grad():
        torch.testing.assert_close(probe(tokens), tokens[:, 3:].mean(1) @ weight.T + bias)
    torch.testing.assert_close(torch.cat(list(patch_means(probe, tokens))), tokens[:, 3:].mean(1))


def test_training_finds_the_patch_that_tells_and_keeps_the_best_epoch():
    """One of 16 patches holds the class, which the mean dilutes; a marker in another channel says which patch it is."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 192)
    tokens = generator.normal(size=(192, 19, 16)).astype(np.float32)
    place = 3 + generator.integers(0, 16, 192)
    tokens[np.arange(192), place, 0] = np.where(labels == 1, 3.0, -3.0)
    tokens[np.arange(192), place, 1] = 8.0
    probe = AttentiveProbe(dataclasses.replace(SMALL, num_classes=2))
    probe.initialise(torch.zeros(2, 16), torch.zeros(2), seed=0)
    truth, seen = torch.from_numpy(labels[128:]), []

    def right(logits):
        return float((logits.argmax(1) == truth).double().mean())

    def better(logits, other):
        seen.append(right(logits))
        return seen[-1] > right(other)

    halves = torch.from_numpy(tokens).half().split([128, 64])
    tensors, logits, epoch = fit_attentive(
        probe, torch.cat([halves[0]] * 8), np.tile(labels[:128], 8), halves[1], seed=0, smoothing=0.0, better=better
    )
    assert right(logits) == max(seen) > 0.85
    assert seen[epoch - 1] == max(seen)
    kept = AttentiveProbe(dataclasses.replace(SMALL, num_classes=2))
    kept.pool.load_state_dict({n.removeprefix("attn_pool."): v for n, v in tensors.items() if n.startswith("attn_")})
    kept.head.load_state_dict({n.removeprefix("head."): v for n, v in tensors.items() if n.startswith("head.")})
    with torch.no_grad():
        torch.testing.assert_close(kept(halves[1]), logits)
