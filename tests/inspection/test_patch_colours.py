"""Colours against scikit-learn's PCA, and the foreground of images whose foreground is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from measured_models import images_of, model_of
from sklearn.decomposition import PCA

from vitreous.errors import ConfigError
from vitreous.inspection.patch_colours import patch_colours, patch_features
from vitreous.model.vit import VisionTransformer


@pytest.mark.parametrize("options", [{}, {"registers": 2, "final_norm": "pooled", "pool": "mean"}], ids=str)
@pytest.mark.parametrize("layer", [None, 0, -1])
@pytest.mark.parametrize("fast", [False, True])
def test_colours_are_scaled_components_of_scikit_learn(
    options: dict[str, object], layer: int | None, fast: bool
) -> None:
    model = model_of(fast, **options)
    images, P = images_of(model, 4), model.config.prefix_tokens
    with torch.no_grad():
        values = model.intermediates(images)
    tokens = (values.tokens if layer is None else values.layers[layer].after)[:, P:].float().double().numpy()
    oracle = PCA(3, svd_solver="full")
    projected = oracle.fit_transform(tokens.reshape(-1, tokens.shape[-1]))
    expected = (projected - projected.min(0)) / (projected.max(0) - projected.min(0))
    found = patch_colours(model, images, layer=layer, batch_size=3)
    np.testing.assert_allclose(found.colours.reshape(-1, 3), expected, atol=1e-5)
    np.testing.assert_allclose(found.explained, oracle.explained_variance_ratio_, atol=1e-6)
    assert found.foreground.all()
    assert found.colours.shape == (4, 3, 4, 3)
    assert json.loads(json.dumps(found.to_dict()))["colours"] == found.colours.tolist()


def transparent(**options: object) -> VisionTransformer:
    """A model whose patch tokens are its pixels: blocks and positions add nothing, and there is no norm."""
    model = model_of(
        image_size=(24, 28), patch_size=4, width=48, heads=3, final_norm="none", position="none", **options
    )
    model.patch_embed.proj.weight.data = torch.eye(48, dtype=torch.float64).reshape(48, 3, 4, 4)
    model.patch_embed.proj.bias.data.zero_()
    for block in model.blocks:
        for layer in (block.attn.proj, block.mlp.fc2):
            layer.weight.data.zero_()
            layer.bias.data.zero_()
    return model


@pytest.mark.parametrize("sign", [1, -1])
def test_the_foreground_is_the_side_away_from_the_border(sign: int) -> None:
    """An object of 3 x 3 patches with three kinds of patches, on an even background, brighter or darker than it."""
    model = transparent()
    images = 0.05 * torch.randn(2, 3, 24, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images[0, :, 4:16, 8:20] += 3 * sign
    images[1, :, 8:20, 4:16] += 3 * sign
    images[0, 0, 4:8, 8:20] += 1  # one row of the object is redder
    found = patch_colours(model, images, foreground=True)
    expected = np.zeros((2, 6, 7), bool)
    expected[0, 1:4, 2:5] = expected[1, 2:5, 1:4] = True
    np.testing.assert_array_equal(found.foreground, expected)
    assert not found.colours[~expected].any()
    rows = patch_features(model, images)[0].reshape(2, 6, 7, -1)[expected].astype(float)
    projected = PCA(3, svd_solver="full").fit_transform(rows)
    np.testing.assert_allclose(
        found.colours[expected], (projected - projected.min(0)) / np.ptp(projected, axis=0), atol=1e-9
    )
    redder = found.colours[0, 1, 2:5, 0]  # the first colour separates the redder row from the rest
    others = np.concatenate((found.colours[0, 2:4, 2:5, 0].ravel(), found.colours[1, 2:5, 1:4, 0].ravel()))
    assert abs(redder.mean() - others.mean()) > 0.8


def test_what_cannot_be_coloured_is_refused() -> None:
    model = model_of()
    images = images_of(model, 1)
    with pytest.raises(ConfigError, match="threshold is 1"):
        patch_colours(model, images, threshold=1)
    with pytest.raises(ConfigError, match="layers has 2"):
        patch_colours(model, images, layer=2)
    narrow = model_of(width=2, heads=1, position="none")
    with pytest.raises(ConfigError, match="width 2 are left"):
        patch_colours(narrow, images)
    flat = torch.zeros(1, 3, 24, 28, dtype=torch.float64)
    with pytest.raises(ConfigError, match="0 patches"):
        patch_colours(transparent(), flat, foreground=True)
    assert not patch_colours(transparent(), flat).colours.any()
