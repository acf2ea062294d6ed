"""Features of every depth against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from measured_models import images_of, model_of

from vit_reference import Seen, reference
from vitreous.errors import ConfigError
from vitreous.inspection.layer_features import layer_features


@pytest.mark.parametrize("options", [{}, {"registers": 2}, {"pool": "mean", "registers": 1}], ids=str)
@pytest.mark.parametrize("fast", [False, True])
def test_features_are_those_of_the_reference(options: dict[str, object], fast: bool) -> None:
    model = model_of(fast, **options)
    images, P = images_of(model, 5), model.config.prefix_tokens
    seen: Seen = {}
    reference(images, {n: t.detach() for n, t in model.state_dict().items()}, model.config, seen=seen)
    depths = [seen["before"][0], *seen["after"]]
    found = layer_features(model, images, batch_size=2)
    for depth, z in enumerate(depths):
        expected = sum(z[:, token] for token in range(P, z.shape[1])) / 12
        np.testing.assert_allclose(found.mean_patch[depth], expected, rtol=1e-5, atol=1e-6)
        if model.config.has_class_token:
            np.testing.assert_allclose(found.of()[depth], z[:, 0], rtol=1e-5, atol=1e-6)
    if not model.config.has_class_token:
        assert found.of() is found.mean_patch
        with pytest.raises(ConfigError, match="use token patches"):
            found.of("class")
    with pytest.raises(ConfigError, match="token is 'cls'"):
        found.of("cls")  # type: ignore[arg-type]
