"""Random coordinates of rotary positions: in training only, within their limits, in plain and fast models alike."""

from __future__ import annotations

import copy

import torch

from vit_reference import small_config, stir
from vitreous.accelerate.model import accelerate
from vitreous.model.positions import Rope2d
from vitreous.model.vit import VisionTransformer


def test_coordinates_are_stretched_within_their_limits() -> None:
    torch.manual_seed(0)
    rope = Rope2d(coordinates="centred", jitter=0.5, rescale=1.0, shift=0.1)
    rows, columns = rope.places((3, 4))
    seen = [rope.places((3, 4), training=True) for _ in range(200)]
    spread = torch.tensor([[float(r[-1] - r[0]), float(c[3] - c[0])] for r, c in seen])
    ratio = spread / torch.tensor([float(rows[-1] - rows[0]), float(columns[3] - columns[0])])
    assert 1 / 3 <= float(ratio.min()) < 0.6
    assert 1.7 < float(ratio.max()) <= 3.0
    assert not torch.allclose(ratio[:, 0], ratio[:, 1])  # jitter is drawn for each axis


def test_only_training_is_random() -> None:
    config = small_config(position={"kind": "rope-2d", "rescale": 1.0})
    plain = stir(VisionTransformer(config)).double()
    fast = accelerate(copy.deepcopy(plain))  # type: ignore[arg-type]
    images = torch.randn(2, 3, 12, 16, dtype=torch.float64)
    with torch.no_grad():
        expected = plain.eval()(images)
        torch.testing.assert_close(fast.eval()(images), expected)
        for model in (plain, fast):
            model.train()
            assert not torch.allclose(model(images), model(images))
            torch.testing.assert_close(model.eval()(images), expected)
    assert fast.draws_in_forward
