"""Random coordinates of rotary positions: in training only, within their limits, in plain and fast models alike."""

from __future__ import annotations

import copy
import math

import pytest
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


def test_random_coordinates_are_those_of_the_formula() -> None:
    """Each number by itself, in the order of the draws: two shifts, two stretches, and one of both."""
    jitter, rescale, shift = 0.5, 1.0, 0.1
    rope = Rope2d(coordinates="centred", jitter=jitter, rescale=rescale, shift=shift)
    torch.manual_seed(3)
    found = rope.places((3, 4), training=True)
    torch.manual_seed(3)
    drawn = [2 * value - 1 for value in torch.rand(5, dtype=torch.float64).tolist()]
    both = math.exp(drawn[4] * math.log(1 + rescale))
    for axis, length in enumerate((3, 4)):
        stretch = math.exp(drawn[2 + axis] * math.log(1 + jitter)) * both
        for row in range(3):
            for column in range(4):
                place = (2 * (row, column)[axis] + 1) / length - 1
                expected = (place + drawn[axis] * shift) * stretch
                assert float(found[axis][4 * row + column]) == pytest.approx(expected, abs=1e-12)


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
