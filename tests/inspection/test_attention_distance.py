"""Attention distance and entropy against closed forms and written-out loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from measured_models import images_of, model_of

from vit_reference import Seen, reference
from vitreous.errors import ConfigError, DataError
from vitreous.inspection.attention_distance import attention_distance
from vitreous.model.vit import VisionTransformer


def uniform(model: VisionTransformer) -> VisionTransformer:
    """Without weights in front of queries and keys, every token attends to all equally."""
    for block in model.blocks:
        block.attn.qkv.weight.data.zero_()
        block.attn.qkv.bias.data.zero_()
    return model


@pytest.mark.parametrize(("height", "width"), [(4, 48), (48, 4)])
@pytest.mark.parametrize("registers", [0, 2])
def test_uniform_attention_in_one_line_has_a_third_of_its_length(height: int, width: int, registers: int) -> None:
    """The mean of |i - j| over all pairs of n numbers is (n² - 1) / (3 n)."""
    model = uniform(model_of(image_size=(height, width), patch_size=(4, 4), registers=registers))
    found = attention_distance(model, images_of(model, 2))
    n = 12
    np.testing.assert_allclose(found.distance, 4 * (n**2 - 1) / (3 * n), atol=1e-12)
    np.testing.assert_allclose(found.entropy, math.log(n + 1 + registers), atol=1e-12)
    np.testing.assert_allclose(found.entropy_share, 1, atol=1e-12)
    np.testing.assert_allclose(found.prefix_share, (1 + registers) / (n + 1 + registers), atol=1e-12)
    assert found.uniform == pytest.approx(4 * (n**2 - 1) / (3 * n))


def test_attention_to_oneself_has_distance_and_entropy_zero() -> None:
    """Positions of length 1,000 that are orthogonal make every query find its own key alone."""
    model = model_of(position="learned", class_token=False, pool="mean", width=24, heads=1)
    D = model.config.width
    model.pos_embed.data = 1e3 * torch.eye(D, dtype=torch.float64)[None, : model.config.patches]
    identity = torch.eye(D, dtype=torch.float64)
    for block in model.blocks:
        block.attn.qkv.weight.data = torch.cat([100 * identity, identity, 0 * identity])
        block.attn.qkv.bias.data.zero_()
        block.norm1.weight.data.fill_(1)
        block.norm1.bias.data.zero_()
        block.mlp.fc2.weight.data.zero_()
        block.mlp.fc2.bias.data.zero_()
    found = attention_distance(model, images_of(model, 2))
    np.testing.assert_allclose(found.distance, 0, atol=1e-9)
    np.testing.assert_allclose(found.entropy, 0, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"registers": 2}, {"position": "relative"}, {"pool": "mean"}], ids=str)
@pytest.mark.parametrize("fast", [False, True])
def test_every_head_is_that_of_the_written_out_reference(options: dict[str, object], fast: bool) -> None:
    model = model_of(fast, patch_size=(4, 2), image_size=(16, 12), **options)
    images, c = images_of(model, 3), model.config
    seen: Seen = {}
    reference(images, {n: t.detach() for n, t in model.state_dict().items()}, c, seen=seen)
    P, (h, w) = c.prefix_tokens, c.grid
    centres = [(4 * i + 2.0, 2 * j + 1.0) for i in range(h) for j in range(w)]
    found = attention_distance(model, images, batch_size=2)
    for layer in range(c.depth):
        for head in range(c.heads):
            share = seen["share"][layer * c.heads + head].numpy()
            distances, entropies = [], []
            for image in share:
                for i, row in enumerate(image[P:]):
                    patches = row[P:] / row[P:].sum()
                    distances.append(sum(p * math.dist(centres[i], at) for p, at in zip(patches, centres, strict=True)))
                    entropies.append(-sum(p * math.log(p) for p in row))
            assert found.distance[layer, head] == pytest.approx(np.mean(distances), abs=1e-10)
            assert found.entropy[layer, head] == pytest.approx(np.mean(entropies), abs=1e-10)
            assert found.prefix_share[layer, head] == pytest.approx(share[:, P:, :P].sum(-1).mean(), abs=1e-10)


def test_batches_of_any_size_give_the_same() -> None:
    model = model_of()
    images = images_of(model, 5)
    one, other = attention_distance(model, images, batch_size=1), attention_distance(model, iter([images]))
    for name in ("distance", "entropy", "prefix_share"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)
    plain = json.loads(json.dumps(one.to_dict()))
    assert plain["images"] == 5
    assert plain["distance"] == one.distance.tolist()


def test_wrong_input_is_refused() -> None:
    model = model_of()
    images = images_of(model, 2)
    with pytest.raises(DataError, match="no images"):
        attention_distance(model, images[:0])
    with pytest.raises(ConfigError, match="batch_size is 0"):
        attention_distance(model, images, batch_size=0)
    with pytest.raises(DataError, match="same size"):
        attention_distance(model, [images, images[:, :, :4]])
    with pytest.raises(ConfigError, match=r"model\.eval"):
        attention_distance(model.train(), images)
