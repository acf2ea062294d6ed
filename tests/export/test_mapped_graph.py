"""The class map as an output of the graph: its trace, and how far it may differ from PyTorch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from exported_models import saved

from vitreous.checkpoint.opening import open_checkpoint
from vitreous.errors import CheckpointError
from vitreous.export.graph.core import CLASS_MAP, Core, output_names
from vitreous.export.graph.mapped import Mapped, class_map
from vitreous.export.run import Options, export
from vitreous.export.verification import reference as reference_module
from vitreous.export.verification.bounds import BOUNDS, bounds_of
from vitreous.export.verification.reference import Reference


@pytest.mark.parametrize("position", ["rope-2d", "rope-mixed", "relative-bias"])
def test_positions_that_act_in_attention(tmp_path, position):
    """Their tables are looked up by the grid, whose sides are symbols in the trace."""
    model, info = open_checkpoint(saved(tmp_path, position=position, rules=False))
    pixels = torch.randint(0, 256, (3, 3, 32, 48)).float()
    core = Core(model, info).eval()
    with torch.inference_mode():
        core(pixels)  # builds the tables
    found = Mapped(core, pixels[:1], plain_norms=False)(pixels)[len(output_names(info))]
    expected = class_map(model, info, info.pipeline.normalise(pixels))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))


def test_the_bound_is_what_float32_can_give_of_a_plain_image(tmp_path):
    """Relative positions leave the tokens of equal patches equal: their differences are of the size of rounding."""
    source = saved(tmp_path, pool="mean", class_token=False, position="relative-mlp", rules=False)
    model, info = open_checkpoint(source)
    rng, flat = np.random.default_rng(0), np.full((8, 36, 54, 3), 100)
    plain = flat + (rng.random(flat.shape) < 2e-4)  # a pixel here and there is one level brighter
    images = np.concatenate((plain, rng.integers(0, 256, flat.shape))).astype(np.uint8)
    reference = Reference(model, info, with_map=True)
    expected = reference.expected(images, 1e-5)
    pixels = info.pipeline.normalise(torch.from_numpy(reference.pixels(images)))
    found = expected.outputs[CLASS_MAP]
    exact = class_map(copy.deepcopy(model).double(), info, pixels.double()).numpy()
    differences = abs(found - exact).max((1, 2)) / exact.max((1, 2))
    usual = bounds_of(BOUNDS["float32"], CLASS_MAP, is_resized=False, resize="exact")
    bounds = expected.bounds(CLASS_MAP, usual)
    assert (differences <= bounds / 2).all()  # a written file is rounded too
    assert differences[:8].max() > usual
    assert (bounds[8:] == usual).all()
    assert (expected.bounds("logits", 3e-5) == 3e-5).all()


def test_a_map_that_differs_by_more_is_refused(tmp_path, monkeypatch):
    source = saved(tmp_path, "squash", "nearest", pool="mean", class_token=False, rules=False)
    monkeypatch.setattr(reference_module, "class_map", lambda *given: 1.0005 * class_map(*given))
    with pytest.raises(CheckpointError, match=r"class_map by \d\.\de-04, the bound is 0\.0001"):
        export(source, tmp_path / "out.pt2", "torch", options=Options(class_map=True))
