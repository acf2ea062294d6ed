"""Components of the patch projection against scikit-learn's PCA."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from measured_models import model_of
from sklearn.decomposition import PCA

from vitreous.errors import ConfigError
from vitreous.inspection.filters import patch_filters
from vitreous.inspection.principal_components import principal_components


@pytest.mark.parametrize("stem", ["patch", "linear"])
@pytest.mark.parametrize("fast", [False, True])
def test_filters_are_those_of_scikit_learn(stem: str, fast: bool) -> None:
    model = model_of(fast, stem=stem, patch_size=(4, 2), image_size=(16, 12))
    kernels = model.patch_embed.proj.weight.detach().numpy()  # (D, C, P_h, P_w)
    rows = np.stack([kernel.transpose(1, 2, 0).ravel() for kernel in kernels])
    oracle = PCA(5, svd_solver="full").fit(rows)
    found = patch_filters(model, 5)
    assert found.images.shape == (5, 4, 2, 3)
    np.testing.assert_allclose(found.images.reshape(5, -1), oracle.components_, atol=1e-9)
    np.testing.assert_allclose(found.explained, oracle.explained_variance_ratio_, atol=1e-12)
    assert json.loads(json.dumps(found.to_dict()))["explained"] == found.explained.tolist()


def test_planted_filters_are_found() -> None:
    """Kernels that are mixtures of a vertical edge and of a dot have these two components and no third."""
    model = model_of(patch_size=4, image_size=(16, 12))
    edge, dot = torch.zeros(2, 3, 4, 4, dtype=torch.float64)
    edge[:, :, 1] = 1 / np.sqrt(12)
    dot[0, 3, 3] = 1
    strength = torch.linspace(-1, 1, model.config.width, dtype=torch.float64)
    mixture = 3 * strength[:, None, None, None] * edge + strength.square()[:, None, None, None] * dot
    model.patch_embed.proj.weight.data.copy_(mixture)
    found = patch_filters(model)
    np.testing.assert_allclose(found.images[0], edge.permute(1, 2, 0), atol=1e-12)
    np.testing.assert_allclose(found.images[1], dot.permute(1, 2, 0), atol=1e-12)
    np.testing.assert_allclose(found.explained[2:], 0, atol=1e-12)


@pytest.mark.parametrize("shape", [(40, 7), (6, 30), (9, 9)])
def test_signs_and_order_do_not_depend_on_the_solver(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).normal(size=shape)
    count = min(shape) - 1
    oracle = PCA(count, svd_solver="full").fit(rows)
    found = principal_components(rows, count)
    np.testing.assert_allclose(found.components, oracle.components_, atol=1e-9)
    np.testing.assert_allclose(found.project(rows), oracle.transform(rows), atol=1e-9)


def test_what_does_not_vary_explains_nothing() -> None:
    assert principal_components(np.ones((5, 3)), 2).explained.tolist() == [0, 0]


@pytest.mark.parametrize("stem", ["conv", {"kind": "resnet", "layers": (1, 2), "width": 32}])
def test_stems_without_one_kernel_are_refused(stem: object) -> None:
    size = {"patch_size": (16, 8), "image_size": (32, 24)} if isinstance(stem, dict) else {"patch_size": 4}
    with pytest.raises(ConfigError, match=r"no patch kernel.*patch or linear"):
        patch_filters(model_of(stem=stem, **size))


def test_too_many_components_are_refused() -> None:
    with pytest.raises(ConfigError, match="use 1 to 3"):
        principal_components(np.ones((5, 3)), 4)
    with pytest.raises(ConfigError, match="0 principal components"):
        patch_filters(model_of(), 0)
