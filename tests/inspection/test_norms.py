"""Token norms against the reference, and the rule for outliers on planted and on ordinary norms."""

from __future__ import annotations

import json

import numpy as np
import pytest
from measured_models import images_of, model_of

from vit_reference import Seen, reference
from vitreous.errors import ConfigError
from vitreous.inspection.norms import TokenNorms, token_norms


@pytest.mark.parametrize("options", [{}, {"registers": 2, "block": {"layer_scale": 0.3}}, {"pool": "mean"}], ids=str)
@pytest.mark.parametrize("fast", [False, True])
def test_norms_are_those_of_the_reference(options: dict[str, object], fast: bool) -> None:
    model = model_of(fast, **options)
    images = images_of(model, 5)
    seen: Seen = {}
    reference(images, {n: t.detach() for n, t in model.state_dict().items()}, model.config, seen=seen)
    expected = [(after**2).sum(-1).sqrt().numpy() for after in seen["after"]]
    found = token_norms(model, images, batch_size=2)
    np.testing.assert_allclose(found.norms, expected, rtol=1e-12)
    assert found.patches.shape == (2, 5, 12)
    np.testing.assert_allclose(token_norms(model, images).norms, found.norms, rtol=1e-12)
    assert json.loads(json.dumps(found.to_dict()))["grid"] == [3, 4]


def drawn(sigma: float, images: int = 50, patches: int = 196) -> TokenNorms:
    """Log-normal norms of two blocks around 30, with one class token of a norm that no patch has."""
    norms = 30 * np.exp(sigma * np.random.default_rng(0).normal(size=(2, images, 1 + patches)))
    norms[:, :, 0] = 1e4
    return TokenNorms(norms, (14, patches // 14), 1)


@pytest.mark.parametrize("sigma", [1e-4, 0.05, 0.15, 0.3])
def test_planted_outliers_are_found_and_nothing_else(sigma: float) -> None:
    """About 2 % of the patches, ten times the median norm, as in arXiv 2309.16588; sigma 0.3 is a wide spread."""
    control = drawn(sigma)
    assert not control.outliers().any
    planted = np.random.default_rng(1).random(control.patches[1].shape) < 0.0237
    norms = control.norms.copy()
    norms[1, :, 1:][planted] = 300 * np.exp(0.1 * np.random.default_rng(2).normal(size=planted.sum()))
    found = TokenNorms(norms, control.grid, 1).outliers()
    assert not found.mask[0].any()
    np.testing.assert_array_equal(found.mask[1], planted)
    assert found.share[1] == pytest.approx(planted.mean())
    assert 90 <= found.threshold[1] <= 300
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["outliers"] == [[1, *place] for place in np.argwhere(planted).tolist()]


def test_the_rule_scales_with_the_norms_and_survives_equal_or_zero_norms() -> None:
    norms = drawn(0.1)
    norms.norms[1, 7, 30] *= 5
    scaled = TokenNorms(norms.norms * 1e-3, norms.grid, 1)
    np.testing.assert_array_equal(scaled.outliers().mask, norms.outliers().mask)
    for value in (0.0, 1.0):
        assert not TokenNorms(np.full((1, 2, 13), value), (3, 4), 1).outliers().any


def test_a_wide_spread_alone_makes_no_outlier_of_three_times_the_median() -> None:
    wide = drawn(0.6)
    assert (wide.patches > 3 * np.median(wide.patches)).mean() > 0.02
    assert not wide.outliers().any


def test_limits_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="ratio 1"):
        drawn(0.1).outliers(ratio=1)
    with pytest.raises(ConfigError, match="spreads is 0"):
        drawn(0.1).outliers(spreads=0)
